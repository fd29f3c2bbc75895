"""Calls as users write them, for the type checker only; it reports each `ignore` that hides no error."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.sheets import Sheet
from fnlkit.pipeline.judging import Evaluation
from fnlkit.results.trained_run import TrainedRun


def pipeline() -> None:
    fed = fnlkit.partition("digits", "dirichlet(alpha=0.5)", clients=5, say=None)
    assert_type(fed, Federation)
    noisy = fnlkit.inject_noise(fed, "symmetric(eta=0.4)", say=print)
    run = fnlkit.train(noisy, "fedcorr", rounds=20, lr=0.01, output="run.pt")
    assert_type(run, TrainedRun)
    assert_type(fnlkit.evaluate(run, "other.pt", test=True), Evaluation)
    judged = fnlkit.audit(noisy, probabilities=np.eye(10)).federation
    assert_type(fnlkit.suspects(judged), Sheet)
    fnlkit.save(judged, "judged.npz")
    fnlkit.partition("digits", clients="five")  # type: ignore[arg-type]
    fnlkit.train(noisy, "fedavg", workers="2")  # type: ignore[arg-type]
    fnlkit.audit(noisy, seed="2")  # type: ignore[arg-type]
    fnlkit.audit(noisy, quik=True)  # type: ignore[call-arg]
    fnlkit.train(noisy, "fedavg", rounds="2")  # type: ignore[arg-type]
    fnlkit.train(noisy, "fedavg", round=2)  # type: ignore[call-arg]
    fnlkit.save(3, "judged.npz")  # type: ignore[arg-type]


def kernels(probs: NDArray[np.float32], labels: list[int]) -> None:
    inverse, condition = fnlkit.invert_transition([[0.9, 0.1], [0.2, 0.8]])
    counts = fnlkit.count_matrix(probs, labels)
    counts.sum()
    fnlkit.invert_transition(inverse, ridge="0.1")  # type: ignore[arg-type]
    fnlkit.lid(probs, k="many")  # type: ignore[arg-type]
