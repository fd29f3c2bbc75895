"""An interrupted audit continues its models and returns the result of an uninterrupted one."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.estimators import checkpoints
from tests.commands import fnlkit as command
from tests.commands import succeed

ROUNDS, FOLDS = 6, 3
HOW = {"folds": FOLDS, "rounds": ROUNDS, "say": None, "seed": 3}


@pytest.fixture(scope="module")
def fed(tmp_path_factory):
    """300 digits at three clients: the audit of a client takes longer than its training."""
    digits, path = datasets.load("digits"), tmp_path_factory.mktemp("digits") / "few.npz"
    np.savez(path, x_train=digits.x_train[:300], y_train=digits.y_train[:300], x_test=digits.x_test, y_test=digits.y_test)
    return fnlkit.inject_noise(fnlkit.partition(str(path), clients=3, labels="observed", say=None), "symmetric(eta=0.2)")


def embeddings(fed):
    return np.random.default_rng(0).normal(size=(len(fed.given), 5)).astype(np.float32)


@pytest.fixture(scope="module")
def whole(fed):
    """The uninterrupted audits without and with embeddings."""
    return fnlkit.audit(fed, **HOW), fnlkit.audit(fed, **HOW, embeddings=embeddings(fed))


def stop_after(rounds):
    """Return a progress function that interrupts after this number of rounds, and the rounds that were trained."""
    seen = set()

    def progress(done, total, title):
        seen.add((title, done))
        if len(seen) == rounds:
            raise KeyboardInterrupt

    return progress, seen


@pytest.mark.parametrize(("rounds", "vectors"), [(1, False), (2 * ROUNDS + 2, False), (ROUNDS, True)])
def test_an_interrupted_audit_continues_bit_for_bit(fed, whole, rounds, vectors, tmp_path):
    more, whole = {"embeddings": embeddings(fed)} if vectors else {}, whole[vectors]
    progress, _ = stop_after(rounds)
    with pytest.raises(KeyboardInterrupt):
        fnlkit.audit(fed, **HOW, **more, checkpoints=tmp_path / "part", progress=progress)
    progress, again = stop_after(10**9)
    found = fnlkit.audit(fed, **HOW, **more, checkpoints=tmp_path / "part", progress=progress)
    # Without vectors, a finished model is evaluated once more on test samples, in a last call of progress.
    full = 0 if vectors else rounds // ROUNDS
    assert len(again) == FOLDS * ROUNDS - rounds + full
    assert found.facts == whole.facts
    found.federation.write(tmp_path / "found.npz")
    whole.federation.write(tmp_path / "whole.npz")
    assert (tmp_path / "found.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


@pytest.fixture(scope="module")
def interrupted(fed, tmp_path_factory):
    """The checkpoints of an audit with embeddings that stopped in its second model."""
    folder, (progress, _) = tmp_path_factory.mktemp("interrupted"), stop_after(ROUNDS + 1)
    with pytest.raises(KeyboardInterrupt):
        fnlkit.audit(fed, **HOW, embeddings=embeddings(fed), checkpoints=folder, progress=progress)
    return folder


@pytest.mark.parametrize("change", [{"seed": 4}, {"rounds": 5}, {"lr": 0.02}, {"embeddings": 1}, {"given": 1}])
def test_a_changed_audit_starts_anew(fed, interrupted, change, tmp_path):
    shutil.copytree(interrupted, tmp_path, dirs_exist_ok=True)
    vectors = embeddings(fed)
    how = HOW | {"embeddings": vectors}
    if "embeddings" in change:
        how["embeddings"] = vectors + np.float32(1e-3)
    elif "given" in change:
        given = np.array(fed.given)
        given[fed.client_indices] = (given[fed.client_indices] + (np.arange(len(fed.client_indices)) < 200)) % 10
        fed = fnlkit.artifacts.federation.Federation(**vars(fed) | {"given": given})
    else:
        how |= change
    progress, again = stop_after(10**9)
    fnlkit.audit(fed, **how, checkpoints=tmp_path, progress=progress)
    assert len(again) == FOLDS * how["rounds"]


def test_the_same_command_continues_after_ctrl_c(fed, tmp_path, monkeypatch):
    fed.write(tmp_path / "fed.npz")
    line = f"fnlkit audit fed.npz --folds {FOLDS} --rounds {ROUNDS} --seed 3 -o judged.npz"
    save, saved = checkpoints.Run.write, []

    def interrupted(run, path):
        save(run, path)
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.Run, "write", interrupted)
        stopped = command(line, tmp_path)
    assert stopped.returncode == 130 and not (tmp_path / "judged.npz").exists()
    assert "2 models are saved in judged.npz.checkpoints; the same command continues the audit" in stopped.stderr
    assert "model 2 of 3 is finished in judged.npz.checkpoints" in succeed(line, tmp_path).stderr
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["fed.npz", "judged.npz"]
    assert command(line.replace("judged", "whole"), tmp_path).returncode == 0
    assert (tmp_path / "judged.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
