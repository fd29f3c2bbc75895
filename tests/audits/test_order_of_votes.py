"""No consensus depends on the order of rows and annotators, or on the names of annotators."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.consensus import consensus_of_rows
from fnlkit.core import registry
from fnlkit.estimators import likelihood
from fnlkit.federated.client.client import Client
from fnlkit.federated.engines import make
from fnlkit.methods import fedem
from tests import toy

seeds = st.integers(0, 2**32 - 1)


def world(rng, size=24, people=4, classes=3):
    """Return (federation with two sites and ids, votes with many ties)."""
    votes = np.where(rng.random((size, people)) < 0.6, rng.integers(0, classes, (size, people)), -1)
    extra = {"sample_id": np.array([f"s{i}" for i in range(size)])}
    half = size // 2
    return Federation("d", classes, np.array([0, half, size]), np.arange(size), np.zeros(size, np.int64), extra=extra), votes


def rows_of(votes, names, order):
    """Return the lines of a table with a row per vote."""
    lines = [f"s{i},{names[a]},{votes[i, a]}" for i, a in zip(*np.nonzero(votes >= 0), strict=True)]
    return "\n".join(["task,worker,label", *(lines[i] for i in order)]) + "\n"


@pytest.mark.parametrize("method", ["majority", "dawid-skene"])
@given(seed=seeds)
def test_the_consensus_of_a_table_is_the_same_in_any_order_and_under_any_names(tmp_path_factory, method, seed):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("votes")
    federation, votes = world(rng)
    number = int((votes >= 0).sum())
    names = ["ada", "ben", "cem", "dee"]
    (folder / "a.csv").write_text(rows_of(votes, names, range(number)))
    other = dict(zip(names, rng.permutation(["z", "1", "M", "b"]).tolist(), strict=True))
    (folder / "b.csv").write_text(rows_of(votes, list(other.values()), rng.permutation(number)))
    first, second = (fnlkit.consensus(federation, folder / name, method) for name in ("a.csv", "b.csv"))
    assert np.array_equal(first.federation.given, second.federation.given)
    assert np.array_equal(*(each.federation.extra["consensus_confidence"] for each in (first, second)))
    for one, two in zip(first.sites, second.sites, strict=True):
        assert {other[name]: n for name, n in one["votes"].items()} == two["votes"]
        assert (one["alpha"], one["kappa"], one["changed"]) == (two["alpha"], two["kappa"], two["changed"])
        if method == "dawid-skene":
            assert {other[name]: share for name, share in one["accuracies"].items()} == two["accuracies"]


@pytest.mark.parametrize("method", ["majority", "dawid-skene"])
@given(seed=seeds)
def test_the_consensus_of_a_row_per_vote_is_the_same_in_any_order(method, seed):
    rng = np.random.default_rng(seed)
    _, votes = world(rng)
    sample, who = np.nonzero(votes >= 0)

    def federation_of(order, names):
        extra = {"sample_of": sample[order], "annotator": np.array(names)[who[order]]}
        size = len(order)
        return Federation("d", 3, np.array([0, size]), np.arange(size), votes[sample, who][order], extra=extra)

    order = rng.permutation(len(sample))
    first, _ = consensus_of_rows(federation_of(np.arange(len(sample)), ["a", "b", "c", "d"]), method)
    second, _ = consensus_of_rows(federation_of(order, ["d", "x", "a", "7"]), method)
    assert np.array_equal(first.given[order], second.given)
    assert np.array_equal(first.extra["consensus_confidence"][order], second.extra["consensus_confidence"])


def test_the_estimator_em_infers_the_same_in_any_order():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    rows = rng.permutation(60)
    first, second = (
        likelihood.fit(logits[order], labels[order], rng=np.random.default_rng(0)) for order in (np.arange(60), rows)
    )
    np.testing.assert_allclose(first["posterior"][rows], second["posterior"], atol=1e-9)
    np.testing.assert_allclose([first["level"]], [second["level"]], atol=1e-9)
    np.testing.assert_allclose(first["counts"], second["counts"], atol=1e-7)


def test_fedem_infers_the_same_in_any_order_of_rows_and_annotators():
    rng = np.random.default_rng(0)
    people = toy.clients(0, count=6)
    clients, rows = rng.permutation(6), [torch.from_numpy(rng.permutation(len(person))) for person in people]
    moved = [
        Client(i, one.x[row], one.y[row].clone(), one.given[row], toy.CLASSES, one.inputs, secret=bytes(32))
        for i, (one, row) in enumerate((people[k], rows[k]) for k in clients.tolist())
    ]
    inferred = []
    for members in (people, moved):
        _, model = toy.toy()
        session = make("sequential", members, model.network, members[0].inputs)
        session.sends = registry.sends("fedem")
        common, _ = fedem.infer_all(session, model)
        inferred.append((common, [client.rows["inferred"] for client in session.members]))
    torch.testing.assert_close(inferred[0][0], inferred[1][0], atol=1e-5, rtol=1e-5)
    for i, k in enumerate(clients.tolist()):
        torch.testing.assert_close(inferred[0][1][k][rows[k]], inferred[1][1][i], atol=1e-4, rtol=1e-4)
