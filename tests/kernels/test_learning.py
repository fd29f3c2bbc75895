"""A matrix learned by the compiled function equals the one that torch.optim.Adam learns."""

import numpy as np
import pytest
import torch

from fnlkit.core.errors import InputError
from fnlkit.kernels.learning import learn_matrix


def data(n, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.4), n), rng.integers(0, max(1, classes - 1), n)  # the last class has no label


def reference(values, p, labels, *, rate, steps, base, factor=None, floor=1e-12):
    p, labels, values = torch.from_numpy(p), torch.from_numpy(labels), torch.tensor(values, requires_grad=True)
    optimizer = torch.optim.Adam([values], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        matrix = (torch.from_numpy(base) + values).clamp_min(0)
        matrix = matrix / matrix.sum(1, keepdim=True).clamp_min(1e-12)
        through = (p @ matrix).gather(1, labels[:, None])[:, 0] + floor
        loss = -through.log().mean() if factor is None else (torch.from_numpy(factor) / through).mean()
        loss.backward()
        optimizer.step()
    return values.detach().numpy()


@pytest.mark.parametrize(("n", "classes"), [(1, 3), (5, 4), (60, 7)])
@pytest.mark.parametrize("weighted", [False, True])
def test_learned_matrices_equal_torch(weighted, n, classes):
    p, labels = data(n, classes)
    # Negative entries of the sum are cut off, and a row without positive entries has a sum of 0.
    base = np.random.default_rng(1).dirichlet(np.ones(classes), classes)
    start, options = np.random.default_rng(2).normal(0, 0.1, (classes, classes)), {"rate": 0.05, "steps": 80, "base": base}
    start[0] = -base[0] - 0.1
    if weighted:
        own = p[np.arange(n), labels]
        options |= {"factor": -own * np.log(own), "floor": 1e-3}
    found, before = learn_matrix(start, p, labels, **options), start.copy()
    np.testing.assert_allclose(found, reference(start, p, labels, **options), rtol=0, atol=1e-9)
    assert np.array_equal(start, before) and np.abs(found - start).max() > 1e-3


def test_no_samples_and_no_steps_change_nothing():
    (p, labels), options = data(4, 3), {"rate": 0.1, "base": np.eye(3)}
    assert np.array_equal(learn_matrix(np.eye(3), p[:0], labels[:0], steps=5, **options), np.eye(3))
    assert np.array_equal(learn_matrix(np.eye(3), p, labels, steps=0, **options), np.eye(3))


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.eye(2)},
        {"labels": np.array([0, 1])},
        {"labels": np.full(4, 3)},
        {"factor": np.ones(3)},
    ],
    ids=str,
)
def test_arguments_that_do_not_fit(change):
    p, labels = data(4, 3)
    given = {"values": np.eye(3), "probabilities": p, "labels": labels, "base": np.eye(3)} | change
    with pytest.raises(InputError):
        learn_matrix(**given, rate=0.1, steps=1)
