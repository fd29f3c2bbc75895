"""`fnlkit estimate-noise` as a shell sees it."""

import json

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.estimators import estimate
from fnlkit.estimators.apply import add_judgment
from fnlkit.estimators.compare import compare
from tests.commands import fnlkit, succeed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    succeed("fnlkit partition --clients 8 | fnlkit inject-noise -o noisy.npz", folder)
    return folder


def test_unknown_arrays_are_passed_on(folder):
    before = Federation.read(str(folder / "noisy.npz"))
    before.extra["color_of_the_sky"] = np.arange(3)
    before.write(folder / "more.npz")
    done = succeed("fnlkit estimate-noise more.npz | fnlkit estimate-noise --estimator 'knn(k=3)' -o judged.npz", folder)
    assert "against the truth" in done.stderr
    after = Federation.read(str(folder / "judged.npz"))
    assert (after.given == before.given).all() and (after.extra["color_of_the_sky"] == np.arange(3)).all()
    assert after.extra["estimate_client_transition"].shape == (8, 10, 10)
    commands = [step["command"] for step in after.meta["provenance"]]
    assert commands == ["partition", "inject-noise", "estimate-noise", "estimate-noise"]
    assert after.meta["provenance"][-1]["parameters"]["estimator"] == "knn(k=3)"


def test_probabilities_and_embeddings_from_files(folder):
    given = Federation.read(str(folder / "noisy.npz")).given
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(10), len(given))
    np.save(folder / "p.npy", probs)
    np.savez(folder / "emb.npz", embeddings=rng.normal(size=(len(given), 8)))
    np.savez(folder / "p.npz", probs=probs, index=np.arange(len(given)))
    done = succeed(
        "fnlkit estimate-noise noisy.npz --embeddings emb.npz -o knn.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npy --json -o a.npz && "
        "fnlkit estimate-noise noisy.npz --estimator confident --probs p.npz --json -o b.npz",
        folder,
    )
    assert "neighbors are searched" not in done.stderr
    a, b = (Federation.read(str(folder / name)).extra for name in ("a.npz", "b.npz"))
    assert (a["estimate_issue_score"] == b["estimate_issue_score"]).all()


def test_a_run_replaces_the_warm_up(folder):
    succeed("fnlkit train noisy.npz --rounds 8 --fraction 0.5 --epochs 2 -o run.pt", folder)
    done = succeed("fnlkit estimate-noise noisy.npz --estimator anchor --run run.pt --json -o out.npz", folder)
    assert json.loads(done.stdout)["sample_auc"] > 0.9
    federation, run = Federation.read(str(folder / "noisy.npz")), Run.read(str(folder / "run.pt"))
    found = estimate(federation, datasets.load("digits"), "lid(iterations=1)", run=run)
    assert compare(add_judgment(federation, found))["sample_auc"] > 0.6
    run.weights[:] = float("nan")
    with pytest.raises(InputError, match="not finite: training diverged"):
        estimate(federation, datasets.load("digits"), "loss", run=run)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--estimator 'knn(k=5000)'", "the largest client has 180 samples; write k from 1 to 179"),
        ("--estimator 'knn(k=5000, across=true)'", "all clients together have 1,438 samples; write k from 1 to 1,437"),
        ("--estimator confident --probs short.npy", "short.npy: array 'array' has shape (5, 10); expected 1,438 rows"),
        ("--estimator confident --probs narrow.npy", "narrow.npy has 3 columns, but the federation has labels of 10 classes"),
        ("--estimator confident --probs other.npz", "`index` is int64 (5,) for 'probs'"),
        ("--embeddings -", "cannot come from the pipe"),
        ("--embeddings foreign.npz", "the checksums differ"),
        ("--apply drop", "--apply"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(options, says, folder):
    np.save(folder / "short.npy", np.full((5, 10), 0.1))
    np.save(folder / "narrow.npy", np.full((1438, 3), 1 / 3))
    np.savez(folder / "other.npz", probs=np.full((5, 10), 0.1), index=np.array([0, 1, 2, 3, 5000]))
    meta = {"dataset": "mnist", "checksum": "0" * 64}
    foreign = files.Artifact("fnlkit.embeddings/1", {"embeddings": np.zeros((1438, 2))}, meta)
    files.write(foreign, folder / "foreign.npz")
    done = fnlkit(f"fnlkit estimate-noise noisy.npz -o never.npz {options}", folder)
    assert done.returncode == 2, (done.returncode, done.stderr)
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert not (folder / "never.npz").exists()
