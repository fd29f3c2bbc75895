"""A command writes over none of its input files, and two outputs are two files."""

import pytest

from tests.commands import refuse

FILES = ("fed.npz", "run.pt", "votes.csv", "data.csv")


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
    ],
)
def test_no_file_is_written_over(words, option, tmp_path):
    """An audit wrote its page over the federation, a consensus over the votes, a prediction over the samples."""
    for name in FILES:
        (tmp_path / name).write_bytes(name.encode())
    done = refuse(f"fnlkit {words}", tmp_path, option)
    assert len(done.stderr.splitlines()) == 1 and "choose another name" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: name.encode() for name in FILES}
