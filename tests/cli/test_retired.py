"""Names of earlier versions end with one line that names what to do instead."""

import pytest

import fnlkit
from fnlkit.core import declare
from fnlkit.core.errors import InputError
from fnlkit.core.registry import loss
from fnlkit.core.retired import RETIRED
from tests.commands import fnlkit as run

INSTEAD = "write the new name"


@pytest.mark.parametrize("kind, name, line", [
    ("command", "old", "fnlkit old --x 1"),
    ("command", "sites old", "fnlkit sites old FOLDER"),
    ("option", "train --old", "fnlkit train --old 3"),
    ("data set", "old", "fnlkit partition --dataset 'old(a=1)'"),
    ("method", "old", "fnlkit partition | fnlkit train --method 'old(a=1)'"),
    ("method", "fedcorr(old=)", "fnlkit partition | fnlkit train --method 'fedcorr(old=1)'"),
    ("estimator", "old", "fnlkit partition | fnlkit estimate-noise --estimator old"),
    ("engine", "old", "fnlkit partition | fnlkit train --engine old"),
    ("protection", "old", "fnlkit partition | fnlkit train --protect 'old(a=1)'"),
])  # fmt: skip
def test_a_removed_name_of_the_command_line(kind, name, line, tmp_path, monkeypatch):
    monkeypatch.setitem(RETIRED, kind, {name: INSTEAD})
    code, out, err = run(line, tmp_path)
    assert code == 2 and not out
    assert err.strip().splitlines()[-1] == f"fnlkit: error: the {kind} {name} was removed: {INSTEAD}"


def test_a_removed_name_of_python(monkeypatch):
    monkeypatch.setitem(RETIRED, "name", {"fnlkit.old": INSTEAD})
    monkeypatch.setitem(RETIRED, "loss", {"old": INSTEAD})
    for refused in (lambda: fnlkit.old, lambda: __import__("fnlkit", fromlist=["old"]).old):
        with pytest.raises(ImportError, match=INSTEAD):
            refused()
    with pytest.raises(ImportError, match=INSTEAD):
        from fnlkit import old  # noqa: F401
    with pytest.raises(InputError, match=INSTEAD):
        loss("old(a=1)")
    with pytest.raises(InputError, match="the declaration terms was removed"):
        declare(terms=len)


def test_names_that_exist_are_not_retired():
    assert not set(RETIRED["name"]) & {f"fnlkit.{name}" for name in fnlkit.__all__}
    assert all(text and "\n" not in text for names in RETIRED.values() for text in names.values())
