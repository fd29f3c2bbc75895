"""Methods for clients with their own transition matrices: the E step by hand, and what leaves a client."""

import numpy as np
import pytest
import torch

import fnlkit
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.votes import by_vote
from fnlkit.evidence.gaussian import gaussian_head, symmetric
from fnlkit.experiment.assembly import shared_samples
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.client import LocalModel
from fnlkit.methods import fedem, label_inference
from fnlkit.methods.label_inference import _infer_labels, keep_given, match_level
from fnlkit.simulate import noise
from fnlkit.sites.project import Project, deployable
from fnlkit.sites.site.allowed import functions
from tests import naive
from tests.commands import refuse_call
from tests.toy import CLASSES, toy, train, visit

ABOUT = Project(
    names=list("abc"), kind="vector", shape=[4], classes=["a", "b"], mean=[], std=[], settings={}, tasks=["train"], keys=[]
)


def take(step, received=None, **options):
    *_, client, local = visit()
    return client, local, step(client, local, received, **options)


def told(strength=4.0, **more):
    common = 0.7 * torch.eye(CLASSES, dtype=torch.float64) + 0.3 / CLASSES
    return {"common": common, "strength": torch.tensor(strength), **more}


def head_of(width=16):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(width + 1, CLASSES)))


def test_inferred_labels_are_those_of_a_naive_loop():
    head = head_of()
    client, model, reply = take(_infer_labels, told(head=head), steps=2)
    features, y = model.features(client.x).numpy(), client.y.numpy()
    logits = features @ head[:-1].numpy() + head[-1].numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    q, T, *_ = naive.annotator(p, y, told()["common"].numpy(), 4.0, 2)
    np.testing.assert_allclose(client.rows["inferred"], q, atol=1e-12)
    np.testing.assert_allclose(client.state["transition"], T, atol=1e-12)
    np.testing.assert_allclose(reply["counts"], q.T @ np.eye(CLASSES)[y], atol=1e-12)
    np.testing.assert_allclose(reply["class_features"], q.T @ features, atol=1e-12)
    assert set(reply) == {"counts", "class_features", "products"}  # T and q stay at the client


@pytest.mark.parametrize("included", [True, False])
def test_labels_of_others_for_the_same_sample_multiply_the_probabilities(included):
    """Samples 0, 1, 2, ... of the client have labels of others; the sums include the client's labels if it was in the pass."""
    *_, client, local = visit()
    n, y = len(client), client.y.numpy()
    client.rows["input/sample"] = torch.arange(n).flip(0) + 2  # of n + 2 samples
    first = _infer_labels(client, local, told(shared=torch.tensor(n + 2)), steps=2)
    common = told()["common"].numpy()
    np.testing.assert_allclose(first["votes"][2:].flip(0), np.log(common[:, y].T), atol=1e-12)
    assert not first["votes"][:2].any()
    others = torch.from_numpy(np.log(np.random.default_rng(1).uniform(0.1, 1, (n + 2, CLASSES))))
    head = head_of()
    total = others + first["votes"] if included else others
    received = told(head=head, shared=torch.tensor(n + 2), votes=total, included=torch.tensor(included))
    reply = _infer_labels(client, local, received, steps=2)
    logits = local.features(client.x).numpy() @ head[:-1].numpy() + head[-1].numpy()
    p = np.exp(logits) * np.exp(others[2:].flip(0).numpy())
    q, T, *_ = naive.annotator(p, y, common, 4.0, 2)
    np.testing.assert_allclose(client.rows["inferred"], q, atol=1e-9)
    np.testing.assert_allclose(reply["votes"][2:].flip(0), np.log(T[:, y].T), atol=1e-9)


def test_odds_of_right_labels_of_the_common_matrix_are_those_of_the_annotator():
    """Expected: 8 + 5 of 20 labels are right, 0.65; found 4 of 20, with 5 labels more (4 + 3.25) / 25 = 0.29.

    The odds of right labels become 0.29 / 0.71 * 0.35 / 0.65 = 0.219934 times those of the common matrix: 4 and 1.
    """
    common = torch.tensor([[0.8, 0.1, 0.1], [0.3, 0.5, 0.2], [0, 0, 1]], dtype=torch.float64)
    counts = torch.tensor([[2, 8, 0], [4, 2, 4], [0, 0, 0]], dtype=torch.float64)
    found, odds = match_level(common, counts, 5.0), 0.2199350
    right = [4 * odds / (4 * odds + 1), odds / (odds + 1), 1.0]
    torch.testing.assert_close(found.diagonal().tolist(), right, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.sum(1), torch.ones(3).double())
    assert found[1, 0] / found[1, 2] == pytest.approx(1.5)
    torch.testing.assert_close(match_level(common, counts, 1e12), common)
    assert torch.equal(match_level(common, None), common) and torch.equal(match_level(common, 0 * counts), common)


def test_combined_labels_need_samples_of_several_clients():
    data, federation = crowd(np.random.default_rng(1))
    found, here, sample = shared_samples(federation, "fedem"), federation.client_indices, federation.extra["sample_of"]
    assert sorted(set(found[here].tolist())) == list(range(len(np.unique(sample[here]))))
    assert np.array_equal(np.unique(sample[here])[found[here]], sample[here])
    apart = np.arange(len(sample))  # twice the same sample at one client only
    apart[federation.clients[0][:2]] = federation.clients[0][0]
    federation.extra["sample_of"] = apart
    for _ in range(2):
        with pytest.raises(InputError, match="no sample belongs to several clients"):
            fnlkit.train(federation, method="fedem(combine=true)", dataset=data, rounds=2, ledger="none", say=None)
        federation.extra.pop("sample_of", None)


def test_the_first_pass_depends_on_the_labels_alone_and_its_sums_are_those_of_all_samples():
    client, model, reply = take(_infer_labels, told(), steps=2)
    features = model.features(client.x)
    np.testing.assert_allclose(symmetric(reply["products"].double().numpy()), features.T @ features, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reply["class_features"].sum(0), features.sum(0))
    assert reply["counts"].sum().item() == pytest.approx(len(client)) and "transition" not in client.state
    same = [client.rows["inferred"][client.y == c] for c in client.y.unique()]
    assert all(torch.equal(rows, rows[:1].expand_as(rows)) for rows in same)


def test_kept_features_are_used_with_the_same_weights_only(monkeypatch):
    client, model, _ = take(_infer_labels, told(), steps=2, keep=True)
    right = model.features(client.x)
    other = LocalModel(model.network, 2 * model.weights, model.weights, client.inputs)
    wrong = other.features(client.x)
    computed, score = [], LocalModel.features
    monkeypatch.setattr(LocalModel, "features", lambda self, x: computed.append(self) or score(self, x))
    for used, features, count in ((model, right, 0), (other, wrong, 1), (other, wrong, 1), (model, right, 2)):
        reply = _infer_labels(client, used, told(head=head_of()), steps=2, keep=True)
        torch.testing.assert_close(reply["class_features"], client.rows["inferred"].T @ features)
        assert len(computed) == count
    _infer_labels(client, model, told(head=head_of()), steps=2)
    assert len(computed) == 2 and not {"features", "features_of"} & {*client.rows, *client.state}


def test_the_classifier_is_that_of_scikit_learn():
    """Without a ridge and with hard labels, it is linear discriminant analysis."""
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 3000)
    x = rng.normal(size=(3, 5))[y] + rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 5))
    given = np.eye(3)[y]
    head = gaussian_head(given.sum(0), given.T @ x, x.T @ x, 1e-9, prior=1.0)
    found = np.exp(x @ head[:-1] + head[-1])
    expected = LinearDiscriminantAnalysis(solver="lsqr").fit(x, y).predict_proba(x)
    np.testing.assert_allclose(found / found.sum(1, keepdims=True), expected, atol=0.01)  # it adds a sample to each class


def test_absent_classes_and_constant_features_give_finite_weights():
    ones = np.ones((4, 3))
    sums = np.array([4.0, 0.0]), np.stack([ones.sum(0), np.zeros(3)]), ones.T @ ones
    assert np.isfinite(gaussian_head(*sums, 0.1)).all() and np.isfinite(gaussian_head(*sums, 0.1, prior=1.0)).all()


def test_a_client_without_a_pass_keeps_the_given_labels():
    client, model, reply = take(keep_given)
    assert torch.equal(client.rows["inferred"].argmax(-1), client.y) and reply is None
    client.rows["inferred"] = torch.zeros(len(client), CLASSES)
    keep_given(client, model, {})
    assert not client.rows["inferred"].any()


@pytest.mark.parametrize(("spread", "stage"), [(0.3, "given labels"), (1.5, "inferred labels")])
def test_labels_are_kept_if_the_passes_drift_away(spread, stage, tmp_path):
    """Ten classes with close centers, where the passes replace right labels by groups of samples, and with distant ones."""
    rng = np.random.default_rng(0)
    y, centers = rng.integers(0, 10, 4000), rng.normal(size=(10, 20)) * spread
    x = (centers[y] + rng.normal(size=(len(y), 20))).astype(np.float32)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[:200], y_test=y[:200])
    federation = fnlkit.partition(str(tmp_path / "data.npz"), clients=10, scheme="iid", say=None)
    federation = noise.inject(federation, "clients(rho=0.6, tau=0.5)", seed=0)
    run = fnlkit.train(federation, method="fedem", model="mlp(hidden=[64])", rounds=12, fraction=0.5, epochs=2, lr=0.05,
                         ledger="none", say=None)  # fmt: skip
    row = next(row for row in run.history if "decrease" in row)
    assert row["stage"] == stage and (row["decrease"] > fedem.UNSETTLED) == (stage == "given labels")


def test_sums_that_contradict_each_other_are_refused():
    """Means of twice the features of the products: the covariance would be E[ff'] - 4 E[f] E[f]'."""
    features = np.ones((6, 3)) + 0.01 * np.eye(6, 3)
    sums = np.array([6.0]), 2 * features.sum(0, keepdims=True), features.T @ features
    refuse_call("not positive definite", gaussian_head, *sums, 0.1)


def test_the_server_receives_and_stores_only_the_sums_over_clients():
    clients, model = toy()
    clients.sends = registry.sends("fedem")
    fedem.infer_all(clients, model)
    passes = [entry for entry in clients.log if "counts" in entry.values]
    assert len(passes) == 5 and all(len(entry.kept) == len(clients) for entry in passes)
    assert {len(values) for entry in passes for values in entry.values.values()} == {1}
    assert [set(entry.values) for entry in passes] == [set(label_inference.SENDS)] * 4 + [{"counts"}]
    assert all(entry.values["counts"][0].sum() == pytest.approx(float(clients.sizes.sum())) for entry in passes)


def test_real_sites_refuse_sums_that_reveal_samples():
    refuse_call("sums of a site reveal its samples.*choose another method", deployable, Settings(method="fedem"), ABOUT)
    refuse_call("auto needs folds.*runs in simulation only", deployable, Settings(method="auto"), ABOUT)
    assert ("fnlkit.methods.label_inference", "_infer_labels") not in functions()


def test_without_rounds_after_the_warm_up_it_is_fedavg():
    plain, em = (train(method=name, rounds=4)[1].weights for name in ("fedavg", "fedem(warmup=4)"))
    assert torch.equal(plain, em)


def test_on_simulated_annotators_it_closes_most_of_the_gap():
    """400 samples of three blobs; eight annotators of which three are mostly wrong; every annotator labels 60 samples."""
    late, sent = {}, {}
    for name in ("fedavg", "fedem", "fedem(combine=true)", "oracle"):
        data, federation = crowd(np.random.default_rng(1))
        run = fnlkit.train(federation, method=name, dataset=data, rounds=20, fraction=0.5, epochs=4, batch_size=8, lr=0.1,
                             model="mlp(hidden=[32])", ledger="none", say=None)  # fmt: skip
        late[name], sent[name] = np.mean([row["accuracy"] for row in run.history[-5:]]), run.traffic.sent
    for name in ("fedem", "fedem(combine=true)"):
        assert late[name] - late["fedavg"] > 0.6 * (late["oracle"] - late["fedavg"]) > 0.03
    assert sent["fedem"]["counts"] == 8 * 5 * 9 * 8 and "votes" not in sent["fedem"]
    samples = len(np.unique(federation.extra["sample_of"][federation.client_indices]))
    # Passes after rounds 3, 6, 9, 12, 15 and 18: five passes with counts, four with labels by sample.
    combined = sent["fedem(combine=true)"]
    assert combined["counts"] == 6 * 8 * 5 * 9 * 8 and combined["votes"] == 6 * 8 * 4 * samples * 3 * 8


def crowd(rng, people=8, classes=3):
    """Return (Dataset, Federation) with annotators as clients."""
    centers, n = 1.3 * rng.normal(size=(classes, 20)), 400
    true = rng.integers(0, classes, n + 300)
    x = (centers[true] + rng.normal(size=(n + 300, 20))).astype(np.float32)
    votes = np.full((n, people), -1)
    for a in range(people):
        here = rng.choice(n, 60, replace=False)
        right = rng.random(60) < (0.9 if a >= 3 else 0.3)
        votes[here, a] = np.where(right, true[here], (true[here] + 1) % classes)
    data = Dataset("crowd", "vector", true[:n], true[n:], list("abc"), lambda: (x[:n], x[n:]))
    data.votes, data.annotators = votes, list(map(str, range(people)))
    data = by_vote(data)
    return data, fnlkit.partition(data, "annotators", say=None)
