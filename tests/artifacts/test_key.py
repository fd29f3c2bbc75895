"""The privacy key: drawn once, for its owner alone; draws from it are uniform, normal, and independent between facts."""

import os
import stat

import numpy as np
import pytest
from scipy.stats import kstest

from fnlkit.artifacts import key
from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import HiddenStream, derive_key


def test_a_key_is_drawn_once_and_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "state" / "privacy.key"
    before = os.umask(0)
    try:
        drawn = key.read_or_draw(path)
    finally:
        os.umask(before)
    assert len(drawn) == 32 and key.read_or_draw(path) == drawn != key.read_or_draw(tmp_path / "other")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and os.listdir(os.path.dirname(path)) == ["privacy.key"]
    assert drawn.hex() not in key.fingerprint(drawn) and key.fingerprint(drawn) == key.fingerprint(key.read_or_draw(path))


def test_foreign_or_damaged_keys_are_refused(tmp_path):
    path = tmp_path / "key"
    key.read_or_draw(path)
    whole = path.read_bytes()
    path.chmod(0o640)
    with pytest.raises(InputError, match="chmod 600"):
        key.read_or_draw(path)
    path.chmod(0o600)
    for data in (b"", whole[:-10], whole.upper(), whole * 2, b"\xff" * 86):
        path.write_bytes(data)
        with pytest.raises(InputError, match="`privacy_key`"):
            key.read_or_draw(path)
        assert path.read_bytes() == data
    (tmp_path / "pipe").symlink_to("/nowhere/at/all")
    for wrong in (tmp_path, "/proc/nothing", "/dev/null", tmp_path / "pipe"):
        with pytest.raises(InputError):
            key.read_or_draw(wrong)


def test_hidden_draws_have_the_right_distribution_and_follow_from_secret_and_facts_alone():
    stream = HiddenStream(b"s", "noise", 3)
    assert kstest(stream.random(20_000), "uniform").pvalue > 1e-3
    assert kstest(stream.standard_normal((200, 100)).reshape(-1), "norm").pvalue > 1e-3
    first = HiddenStream(b"s", "noise", 3).random(50)
    assert np.array_equal(first, HiddenStream(b"s", "noise", 3).random((5, 10)).reshape(-1))
    others = [("t", "noise", 3), ("s", "noise", 4), ("s", "noise"), ("s", "noise3")]
    seen = [first, *(HiddenStream(name.encode(), *facts).random(50) for name, *facts in others), stream.random(50)]
    assert len({draws.tobytes() for draws in seen}) == len(seen)
    assert (
        derive_key(b"s", np.zeros(2))
        != derive_key(b"s", np.zeros(2, np.float32))
        != derive_key(b"s", np.zeros((2, 1), np.float32))
    )
    assert derive_key(b"s", "a", "b") != derive_key(b"s", "ab") and derive_key(b"s", b"1") != derive_key(b"s", 1)
    with pytest.raises(InputError, match="`privacy_key`"):
        HiddenStream(None, "noise").random(1)
