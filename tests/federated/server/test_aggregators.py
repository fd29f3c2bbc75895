"""Robust aggregators against their formulas, written out client by client; what they withstand; rounds too small for them."""

import numpy as np
import pytest
import torch

from fnlkit import datasets
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import select_accepted
from fnlkit.experiment import Experiment, Settings
from fnlkit.federated.server.aggregation import mean, outvotes_nobody, too_few
from fnlkit.federated.server.distance import distance_aware_weights
from fnlkit.simulate import partitioning
from tests.toy import train

pytestmark = pytest.mark.smoke

K, P = 9, 13
SLOTS = [("a", 0, 8, (8,)), ("b", 8, 13, (5,))]
WITHSTAND = ("median", "trimmed-mean(share=0.25)", "krum(f=2)", "multi-krum(f=2)", "rfa", "arfl", "norm-clipping",
             "daagg(clean=[0, 1])")  # fmt: skip


def cohort(seed=0, bad=0):
    """Return vectors (K, P) around 1, the last `bad` of them far away, and numbers of samples (K,)."""
    rng = np.random.default_rng(seed)
    vectors = 1 + 0.1 * rng.normal(size=(K, P))
    vectors[K - bad :] += 50 * rng.normal(size=(bad, P))
    return torch.from_numpy(vectors), torch.from_numpy(rng.integers(5, 40, K).astype(np.float64))


def aggregated(spec, stacked, weights, start=None, trainable=None):
    part = registry.aggregator(spec)
    start = torch.ones(stacked.shape[1], dtype=stacked.dtype) if start is None else start
    context = {"start": start, "slots": SLOTS, "trainable": trainable, "ids": np.arange(len(stacked))}
    return part(stacked, weights, **select_accepted(part, context))


def scores(vectors, f):
    """Krum's, by sorting all distances of each client."""
    out = []
    for i, v in enumerate(vectors):
        others = sorted(sum((a - b) ** 2 for a, b in zip(v, w, strict=True)) for j, w in enumerate(vectors) if j != i)
        out.append(sum(others[: len(vectors) - f - 2]))
    return np.array(out)


@pytest.mark.parametrize("f", [0, 1, 3])
def test_krum_takes_the_client_with_the_nearest_neighbors(f):
    stacked, weights = cohort(1)
    order = scores(stacked.tolist(), f).argsort()
    assert torch.equal(aggregated(f"krum(f={f})", stacked, weights), stacked[order[0]])
    several = aggregated(f"multi-krum(f={f}, m=4)", stacked, weights)
    torch.testing.assert_close(several, stacked[order[:4]].mean(0))
    torch.testing.assert_close(aggregated(f"multi-krum(f={f})", stacked, weights), stacked[order[: K - f]].mean(0))


def test_rfa_minimizes_the_weighted_sum_of_distances():
    stacked, weights = cohort(2, bad=3)

    def total(v):
        return (weights * (stacked - v).norm(dim=1)).sum()

    v = aggregated("rfa(iterations=200)", stacked, weights).requires_grad_()
    gradient = torch.autograd.grad(total(v), v)[0].norm() / weights.sum()
    assert gradient < 1e-6 < torch.autograd.grad(total(v + 0.1), v)[0].norm()
    # Its steps: v <- sum b_k w_k / sum b_k.
    middle = (weights[:, None] * stacked).sum(0) / weights.sum()
    for _ in range(4):
        pull = weights / (stacked - middle).norm(dim=1)
        middle = (pull[:, None] * stacked).sum(0) / pull.sum()
    torch.testing.assert_close(aggregated("rfa", stacked, weights), middle)


def test_clipped_updates_are_no_longer_than_the_bound():
    stacked, weights = cohort(4, bad=2)
    start = torch.zeros(P, dtype=torch.float64)
    for spec, limit in (("norm-clipping(bound=0.5)", 0.5), ("norm-clipping", stacked.norm(dim=1).median().item())):
        cut = torch.stack([v * min(1.0, limit / v.norm().item()) for v in stacked])
        expected = (weights[:, None] * cut).sum(0) / weights.sum()
        torch.testing.assert_close(aggregated(spec, stacked, weights, start), expected)
    torch.testing.assert_close(aggregated("norm-clipping(bound=1e6)", stacked, weights, start), mean(stacked, weights))


# The residuals of `arfl` and the distances of `daagg` are compared with public code in tests/methods/test_golden.py.
def test_too_few_and_equal_clients_are_averaged():
    stacked, weights = cohort(5)
    alike = torch.ones(4, 3, dtype=torch.float64)
    assert torch.equal(aggregated("arfl", alike, torch.ones(4)), alike[0])
    assert torch.equal(aggregated("arfl", stacked[:2], weights[:2]), mean(stacked[:2], torch.ones(2)))
    for clean in (np.zeros(K, bool), np.ones(K, bool)):
        assert torch.equal(distance_aware_weights(stacked, weights, clean, SLOTS), weights / weights.sum())


@pytest.mark.parametrize("spec", WITHSTAND)
def test_the_order_of_clients_and_their_type_do_not_matter(spec):
    stacked, weights = cohort(7)
    found = aggregated(spec, stacked, weights)
    assert aggregated(spec, stacked.float(), weights).dtype == torch.float32
    torch.testing.assert_close(aggregated(spec, stacked.float(), weights).double(), found, rtol=1e-5, atol=1e-5)
    if not spec.startswith("daagg"):
        order = torch.from_numpy(np.random.default_rng(0).permutation(K))
        torch.testing.assert_close(aggregated(spec, stacked[order], weights[order]), found)


@pytest.mark.parametrize("spec", registry.AGGREGATORS)
def test_each_trains(spec):
    fed, model, steps = train(rounds=2, fraction=0.5, aggregator=spec)
    assert len(steps) == 2 and torch.isfinite(model.weights).all() and not fed.rejected
    for count in (1, 2, 3):  # what a round may be left with
        stacked, weights = cohort(8)
        assert torch.isfinite(aggregated(spec, stacked[:count], weights[:count])).all()


def test_rounds_too_small_for_an_aggregator_are_refused_before_training():
    digits = datasets.load("digits")
    federation = partitioning.federation(digits, clients=10)
    for spec, fraction in (("krum(f=2)", 0.4), ("multi-krum(f=3)", 0.5)):
        with pytest.raises(InputError, match=r"krum needs rounds of [56] clients or more, found [45]; raise `fraction`"):
            Experiment(federation, digits, Settings(rounds=1, fraction=fraction, aggregator=spec))
    krum = registry.aggregator("krum(f=2)")
    assert [too_few(krum, k) is None for k in (4, 5)] == [False, True]
    assert "rounds of 7 or more clients, found 6" in outvotes_nobody(krum, 6) and outvotes_nobody(krum, 7) is None
    for spec, first in (("rfa", 3), ("arfl", 3), ("median", 3), ("trimmed-mean", 10), ("mean", 1)):
        silent = [count for count in range(1, 30) if outvotes_nobody(registry.aggregator(spec), count) is None]
        assert silent == list(range(first, 30))


def with_buffers(seed, scale=1000.0):
    """Return vectors (7, P) whose last 5 entries are buffers with a large spread; the parameters of client 0 are far away."""
    stacked, weights = cohort(seed)
    stacked, weights = stacked[:7].clone(), weights[:7]
    stacked[0, :8] -= 3
    rng = np.random.default_rng(seed)
    stacked[:, 8:] += torch.from_numpy(scale * rng.normal(size=(7, 5)))
    stacked[0, 8:] = stacked[1:, 8:].mean(0)  # its buffers are nearest to those of the others
    return stacked, weights


@pytest.mark.parametrize("seed", range(5))
def test_buffers_do_not_decide_which_client_is_far_away(seed):
    stacked, weights = with_buffers(seed)
    for spec in ("krum(f=1)", "krum(f=1, nearest=all)"):
        assert torch.equal(aggregated(spec, stacked, weights), stacked[0])  # without the number of trainable entries
        chosen = aggregated(spec, stacked, weights, trainable=8)
        assert not torch.equal(chosen, stacked[0]) and (stacked == chosen).all(1).any()
    several = aggregated("multi-krum(f=1, m=6)", stacked, weights, trainable=8)
    torch.testing.assert_close(several, stacked[1:].mean(0))
    near = aggregated("rfa(iterations=50)", stacked, weights, trainable=8)
    assert (near[:8] - 1).abs().max() < 0.3


def test_updates_are_clipped_by_their_trainable_entries():
    stacked, weights = with_buffers(0)
    start = torch.ones(P, dtype=torch.float64)
    away = stacked - start
    length = away[:, :8].norm(dim=1)
    factor = torch.minimum(torch.ones(7), 0.5 / length)
    wanted = start + ((weights / weights.sum() * factor)[:, None] * away).sum(0)
    torch.testing.assert_close(aggregated("norm-clipping(bound=0.5)", stacked, weights, trainable=8), wanted)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("spec", ["krum(f=1)", "krum(f=1, nearest=all)", "multi-krum(f=1)", "multi-krum(f=1, m=9)", "rfa",
                                  "rfa(variant=public)", "norm-clipping", "median", "trimmed-mean(share=0.2)"])  # fmt: skip
def test_a_vector_that_is_not_finite_does_not_reach_the_result(spec, bad):
    stacked, weights = cohort(4)
    stacked = stacked.float()
    for position in (0, 4, 8):
        damaged = stacked.clone()
        damaged[position, 2] = bad
        result = aggregated(spec, damaged, weights)
        assert result.isfinite().all() and (result - 1).abs().max() < 0.5, (spec, position)
    if "krum" in spec or "norm" in spec or spec == "rfa":  # as if this client had not replied
        rest = torch.arange(K) != 8
        known = aggregated(spec, damaged[rest], weights[rest]) if "m=9" in spec or "krum" not in spec else None
        assert known is None or torch.allclose(result, known)


def test_results_are_floats_computed_in_float64():
    even = torch.tensor([[50_000.0], [60_000.0], [60_000.0], [60_000.0]], dtype=torch.float16)
    weights = torch.ones(4)
    for spec, wanted in (("median", 60_000), ("trimmed-mean(share=0.25)", 60_000), ("mean", 57_500)):
        result = aggregated(spec, even, weights)
        assert result.dtype == torch.float16 and abs(float(result) - wanted) <= 32
    whole = torch.tensor([[0], [1], [1], [5]])
    for spec, wanted in (("median", 1), ("trimmed-mean(share=0.1)", 1.75), ("mean", 1.75), ("norm-clipping(bound=9)", 1.75)):
        result = aggregated(spec, whole, weights, start=torch.zeros(1))
        assert result.dtype == torch.float64 and float(result) == wanted
    for spec in ("krum(f=0)", "multi-krum(f=0)", "rfa"):
        assert aggregated(spec, whole, weights).is_floating_point()
