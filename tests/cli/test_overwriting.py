"""A command writes over none of its input files, and two outputs are two files."""

from pathlib import Path

import numpy as np
import pytest

import fnlkit
from fnlkit.core.errors import InputError
from tests.commands import refuse

FILES = ("fed.npz", "run.pt", "votes.csv", "data.csv", "data.npz")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("audit fed.npz --html fed.npz -o judged.npz", "--html fed.npz"),
        ("audit fed.npz --html new.npz -o new.npz", "--html new.npz"),
        ("consensus fed.npz votes.csv --csv votes.csv -o agreed.npz", "--csv votes.csv"),
        ("consensus fed.npz votes.csv --csv ./agreed.npz -o agreed.npz", "--csv ./agreed.npz"),
        ("correct fed.npz --csv new.npz -o new.npz", "--csv new.npz"),
        ("review import fed.npz votes.csv --csv votes.csv -o new.npz", "--csv votes.csv"),
        ("predict run.pt data.csv -o data.csv", "-o data.csv"),
        ("predict run.pt data.csv -o run.pt", "-o run.pt"),
        ("report run.pt -o run.pt", "-o run.pt"),
        ("partition --dataset fed.npz -o fed.npz", "fed.npz"),  # before the data are read
        ("train fed.npz --metrics fed.npz -o new.pt", "--metrics fed.npz"),
        ("partition fed.npz -o fed.npz", "-o fed.npz"),
        ("inject-noise --dataset data.npz -o data.npz", "data.npz"),
        ("inject-noise fed.npz -o fed.npz", "-o fed.npz"),  # a repeated command would add noise to noise
    ],
)
def test_no_file_is_written_over(words, option, tmp_path):
    """An audit wrote its page over the federation, a consensus over the votes, a prediction over the samples."""
    for name in FILES:
        (tmp_path / name).write_bytes(name.encode())
    done = refuse(f"fnlkit {words}", tmp_path, option)
    assert len(done.stderr.splitlines()) == 1 and "choose another name" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: name.encode() for name in FILES}


@pytest.mark.parametrize("dataset", ["data.npz", "votes(data='data.npz')"])
def test_a_federation_is_not_written_over_its_data_set(dataset, tmp_path, monkeypatch):
    """`partition --dataset data.npz -o data.npz` replaced the samples by the federation."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.savez("data.npz", x_train=rng.normal(size=(40, 3)), votes_train=rng.integers(0, 2, (40, 2)))
    before = Path("data.npz").read_bytes()
    federation = fnlkit.partition(dataset)
    with pytest.raises(InputError, match="contains the data set"):
        federation.write("data.npz")
    federation.write("fed.npz")
    federation.write("fed.npz")
    for option in ("output", "metrics"):  # the numbers of rounds replaced the data
        with pytest.raises(InputError, match="contains the data set"):
            fnlkit.train("fed.npz", "fedavg", rounds=1, say=None, **{"output": "run.pt", option: "data.npz"})
    assert not Path("run.pt").exists()
    assert Path("data.npz").read_bytes() == before
