"""Messages between processes: what was written is read, and foreign bytes are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fnlkit import partition, train
from fnlkit.artifacts import message
from fnlkit.artifacts.run_schema import check
from tests.commands import refuse_call

VALUE = {
    "plain": [None, True, 3, 2.5, float("inf"), "text", b"\0\xff", torch.float64],
    ("a", 1): (torch.arange(6).reshape(2, 3), torch.zeros(0, 2), torch.tensor(1.5), torch.tensor([True])),
    "numpy": [np.arange(3, dtype=np.int16), np.float64(0.1), np.array(7)],
}


def alike(a, b):
    assert type(a) is type(b)
    if isinstance(a, (torch.Tensor, np.ndarray)):
        assert a.dtype == b.dtype and a.shape == b.shape and (a == b).all()
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            alike(a[k], b[k])
    elif isinstance(a, (list, tuple)):
        for x, y in zip(a, b, strict=True):
            alike(x, y)
    else:
        assert a == b


def test_messages_round_trip():
    alike(message.decode(message.encode(VALUE)), VALUE)


@pytest.mark.parametrize("value", [{1, 2}, object(), lambda: 0, np.array(["a"]), np.array([{}])])
def test_only_plain_values_are_sent(value):
    refuse_call("cannot be sent", message.encode, value)


def packed(value, *arrays, data=None, magic=message.MAGIC, size=None):
    """Return the bytes of a message that `encode` need not have written."""
    header = json.dumps({"about": {}, "value": value, "arrays": list(arrays)}) if not isinstance(value, bytes) else value
    header = header.encode() if isinstance(header, str) else header
    length = len(header) if size is None else size
    return magic + length.to_bytes(8, "little") + header + (b"" if data is None else data)


ONE, TWO = {"tensor": 0}, ["float64", [2]]
BAD = [
    b"", b"fnlkit", packed(1)[:-1], packed(1, size=2**40), packed(1, magic=b"fnlkit.message/2\n"), packed(b"{"), packed(b"[]"),
    packed(ONE, ["float64", [65536, 65536]], data=bytes(16)), packed(ONE, ["float64", [-1, -2]], data=bytes(16)),
    packed(ONE, ["object", [2]], data=bytes(16)), packed(ONE, ["no", [2]], data=bytes(16)), packed(ONE, TWO, data=bytes(17)),
    packed(ONE, ["float64", [True, 2]], data=bytes(16)), packed({"tensor": 1}, TWO, data=bytes(16)), packed([1]),
    packed(1, TWO, data=bytes(16)),  # an array without a name
    packed({"list": [ONE, ONE]}, TWO, data=bytes(16)),  # each name would be another copy of a large array
    packed({"pickle": 1}), packed({"type": "os"}), packed({"bytes": "*"}), packed({"dict": [[{"list": []}, 1]]}),
    packed({"list": [1], "tuple": [1]}),
    packed(b'{"about": {}, "arrays": [], "value": ' + b'{"list": [' * 60 + b"1" + b"]}" * 61),
    packed(b'{"about": {}, "arrays": [], "value": ' + b'{"list": [' * 9000 + b"1" + b"]}" * 9001),
]  # fmt: skip


def test_hand_made_messages_are_read():
    assert message.decode(packed(ONE, TWO, data=bytes(16))).tolist() == [0, 0]
    assert message.about_of(message.encode(1, {"task": "audit"})) == {"task": "audit"}


@pytest.mark.parametrize("data", BAD)
def test_foreign_bytes_are_refused(data):
    refuse_call("", message.decode, data, error=message.Unreadable)


@pytest.mark.parametrize("data", [b"", packed(b"[]"), packed(b'{"about": 3}'), packed(b"{" * 100_000)])
def test_foreign_facts_are_refused(data):
    refuse_call("", message.about_of, data, error=message.Unreadable)


def test_a_header_of_another_size_is_not_parsed():
    assert message.decode(message.encode("x" * (message.MOST_TEXT - 100)))
    refuse_call("", message.decode, message.encode("x" * message.MOST_TEXT), error=message.Unreadable)


# ---- a run file with metadata of a wrong type is refused, and the message names the entry
@pytest.fixture(scope="module")
def run():
    federation = partition("digits", clients=3, scheme="iid", seed=0)
    return train(federation, "fedavg", rounds=1, model="mlp(hidden=[2])", epochs=1, ledger="none", say=None)


@pytest.mark.parametrize("value", [False, "", "text", [0], {"a": 1}])
@pytest.mark.parametrize("name", ["needs", "own", "head", "unsaved", "machine", "input_shape", "features", "samples"])
def test_metadata_of_a_wrong_type_is_refused(run, name, value):
    check(run)
    refuse_call(name, check, replace(run, meta=run.meta | {name: value}))
