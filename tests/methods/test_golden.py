"""Methods against inputs and outputs of the authors' own functions (tests/golden)."""

import numpy as np
import pytest
import torch

from fnlkit.federated.client.client import Batch, Client
from fnlkit.federated.client.drift import decorrelate
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.losses.adjusted import label_learning, partly_distilled
from fnlkit.federated.client.losses.correction import forward_corrected
from fnlkit.federated.client.losses.cross_entropy import cross_entropy
from fnlkit.federated.client.losses.mixture import label_mixture
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit, plan, train_client
from fnlkit.federated.server.aggregation import mean, median, squared_distances, trimmed_mean
from fnlkit.federated.server.distance import distance_aware_weights
from fnlkit.federated.server.optimizers import Updates
from fnlkit.federated.server.optimizers.feddyn import subtract_drift
from fnlkit.federated.server.optimizers.fedexp import extrapolate, extrapolation
from fnlkit.federated.server.residuals import arfl, reweight
from fnlkit.federated.server.robust import krum, rfa
from fnlkit.kernels import count_matrix
from fnlkit.kernels.mixture import two_components
from fnlkit.kernels.scores import anchor_transition
from fnlkit.kernels.subspaces import class_similarity, class_subspaces, classify_by_subspaces, lower_group, merge_subspaces
from fnlkit.methods import energy_levels, fedcorr, na_fedavg, neighbor_votes
from fnlkit.methods.corrected_training import keep_anchor_transition
from fnlkit.methods.fedefc import transition_of
from fnlkit.methods.forward import confident_issues
from fnlkit.methods.noisy_clients import teachers_weight
from tests.naive import golden


class Scored:
    """A model whose logits are given."""

    def __init__(self, logits):
        self.logits = self.weights = logits

    def __call__(self, x):
        return self.logits


# ---- FedEFC and its baselines
CASES = ["A", "B", "C", "F"]


def shares_of(labels, classes):
    return np.bincount(labels, minlength=classes) / len(labels)


def corrected_loss(probabilities, labels, transition):
    """Return the mean loss; the authors' inputs are probabilities, so that logits are their logarithms."""
    logits = torch.from_numpy(np.log(probabilities + 1e-12))
    batch = Batch(y=torch.from_numpy(labels), state={"transition": torch.from_numpy(transition)})
    return forward_corrected(logits, batch).mean().item()


@pytest.mark.parametrize("case", CASES)
def test_fedefc_transition_and_loss(case):
    g = golden("fedefc_transition_and_loss")
    p, y = g[f"{case}_pred_probs"], g[f"{case}_labels"]
    counts = count_matrix(p, y, least_diagonal=1)
    t, identity = transition_of(counts, shares_of(y, p.shape[1]), limit=np.inf)
    assert identity == 0
    # Theirs has the true class in columns.
    assert t.T == pytest.approx(g[f"{case}_T_compensate0"], rel=1e-9)
    assert corrected_loss(p, y, t) == pytest.approx(g[f"{case}_loss_T_compensate0"].item(), rel=1e-9)
    # Weighted, theirs is transposed but used as before, which `public` repeats.
    t, _ = transition_of(counts, shares_of(y, p.shape[1]), weighting="public")
    assert t.T == pytest.approx(g[f"{case}_T_compensate1"], rel=1e-9, abs=1e-15)
    assert corrected_loss(p, y, t) == pytest.approx(g[f"{case}_loss_T_compensate1"].item(), rel=1e-9)
    plain = cross_entropy(torch.from_numpy(np.log(p + 1e-12)), Batch(y=torch.from_numpy(y))).mean().item()
    assert plain == pytest.approx(g[f"{case}_loss_identity"].item(), rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_fedefc_anchor_points_are_means_in_the_public_code(case):
    g = golden("fedefc_transition_and_loss")
    p, y = g[f"{case}_pred_probs"], g[f"{case}_labels"]
    raw = g[f"{case}_T_fwd_raw"]  # single-precision rows, which sum to 1 within 1e-8
    assert anchor_transition(p, average=True) == pytest.approx(raw / raw.sum(1, keepdims=True), rel=1e-9)
    classes = p.shape[1]
    client = Client(0, torch.zeros(len(y), 1), torch.from_numpy(y), torch.from_numpy(y), classes, Inputs(False))
    scored = Scored(torch.from_numpy(np.log(p.astype(np.float64))))
    options = {"percentile": 97.0, "anchor": "mean", "weighting": "public", "limit": 1e3, "report": False}
    assert keep_anchor_transition(client, scored, {}, **options) is None
    t = client.state["transition"].numpy()
    assert t.T == pytest.approx(g[f"{case}_T_fwd_final"], rel=1e-6)
    assert corrected_loss(p, y, t) == pytest.approx(g[f"{case}_loss_T_fwd_final"].item(), rel=1e-6)


@pytest.mark.parametrize("case", ["A", "B", "C", "D", "E", "F"])
def test_confident_learning_flags_the_off_diagonal(case):
    g = golden("count_matrix_cleanlab_fedefc")
    flagged = confident_issues(g[f"{case}_pred_probs"], g[f"{case}_labels"])
    assert np.array_equal(np.flatnonzero(flagged), g[f"{case}_offdiag_idx"])


# ---- FedCorr
def test_fedcorr_stage_one():
    """The block that follows an iteration, as the authors run it: noisy clients, their levels, the new labels."""
    g = golden("fedcorr")
    n, clients = int(g["s1_n_per_client"]), int(g["s1_n_clients"])
    noisy, means, variances, shares = two_components(g["s1_lid"], seed=1)
    assert np.flatnonzero(noisy).tolist() == g["s1_noisy_set"].tolist()
    assert np.sort(means) == pytest.approx(np.sort(g["s1_gmm_means"]), rel=1e-4)
    assert np.sort(variances) == pytest.approx(np.sort(g["s1_gmm_vars"]), rel=1e-4)
    assert np.sort(shares) == pytest.approx(np.sort(g["s1_gmm_weights"]), rel=1e-4)
    levels, after = np.zeros(clients), g["s1_targets_before"].copy()
    for k in np.flatnonzero(noisy):
        mine = slice(k * n, (k + 1) * n)
        logits = torch.from_numpy(np.log(g["s1_probs_global"][mine].astype(np.float64)))
        labels = torch.from_numpy(g["s1_targets_before"][mine])
        client = Client(k, torch.zeros(n, 1), labels.clone(), labels, 5, Inputs(False))
        client.rows["loss"] = torch.from_numpy(g["s1_loss"][mine])
        said = fedcorr.find_and_relabel(
            client, Scored(logits), {}, ratio=0.5, confidence=0.5, ranking="local", strict=True, seed=1
        )
        levels[k] = said["noise_level"].item()
        after[mine] = client.y.numpy()
    assert levels == pytest.approx(g["s1_est_level"], abs=1e-12)
    assert np.array_equal(after, g["s1_targets_after"])
    assert (after != g["s1_targets_before"]).sum() == 20


def test_fedcorr_losses_of_the_public_code():
    g = golden("fedcorr")
    logits, labels = torch.from_numpy(g["ds_logits"]), torch.from_numpy(g["ds_labels"])
    losses = {name: f(logits, labels).numpy() for name, f in fedcorr.LOSSES.items()}
    assert losses["double-softmax"] == pytest.approx(g["ds_loss_official"], rel=1e-5)
    assert losses["cross-entropy"] == pytest.approx(g["ds_ce"], rel=1e-5)


@pytest.mark.parametrize(("case", "batch", "beta"), [
    ("prox", 2, 5.0), ("noprox", 2, 0.0), ("prox_onebatch", 8, 5.0), ("noprox_onebatch", 8, 0.0)
])  # fmt: skip
def test_fedcorr_proximal_term_of_the_public_code(case, batch, beta):
    module = torch.nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.1, 0.2], [-0.3, 0.4]]))
        module.bias.zero_()
    network = Network(module)
    x, y = torch.tensor([[1.0, -2.0]]).repeat(8, 1), torch.zeros(8, dtype=torch.int64)
    client = Client(0, x, y.clone(), y, 2, Inputs(False), rng=np.random.default_rng(0))
    corrections = (fedcorr.adaptive_proximal_norm,) if beta else ()
    fit = Fit(corrections=corrections, epochs=2, batch_size=batch, lr=0.1, momentum=0.5)
    draws = plan(8, fit, seed=0, round=0, client=0)
    received = {"proximal": torch.tensor(beta * 0.5)}
    weights = train_client(network, client, network.flat.clone(), fit, draws, received)
    assert weights.numpy() == pytest.approx(golden("fedcorr")[f"prox_{case}"], rel=1e-5)


# ---- FedLN
def voter(features, labels, classes):
    y = torch.from_numpy(labels)
    client = Client(0, torch.zeros(len(y), 1), y.clone(), y, classes, Inputs(False), rng=np.random.default_rng(0))
    client.rows["input/embedding"] = torch.from_numpy(features)
    return client


def test_nnc_keeps_labels_of_clients_below_the_least_level():
    g = golden("fedln")
    public = {"k": 10, "include_self": True, "ties": "lowest", "correct": True, "least": 0.15}
    low = voter(g["knn_features"], g["knn_low_labels"], int(g["knn_low_labels"].max()) + 1)
    assert neighbor_votes.vote(low, None, {}, **public)["noise_level"].item() == pytest.approx(g["knn_low_est_raw"].item())
    assert torch.equal(low.y, low.given)
    high = voter(g["knn_features"], g["knn_labels"], int(g["knn_labels"].max()) + 1)
    neighbor_votes.vote(high, None, {}, **public)
    assert np.array_equal(high.y.numpy(), g["knn_k10_pred"])
    late = voter(g["knn_features"], g["knn_labels"], int(g["knn_labels"].max()) + 1)  # it missed the round of the votes
    for _ in range(2):  # the second visit does not vote on the votes
        assert neighbor_votes.vote(late, None, {}, **public, missed=True) is None and torch.equal(late.y, high.y)


def test_na_fedavg_threshold_and_weights():
    g = golden("fedln")
    who, before, after = g["na_scores"].T
    said = {"scores_global": [], "scores_local": []}
    for k in np.unique(who):
        said["scores_global"].append(before[who == k])
        said["scores_local"].append(after[who == k])

    class Replies(dict):
        ids = np.arange(len(np.unique(who)))

    levels, threshold = energy_levels.estimate_levels(Replies(said), len(Replies.ids), side="above")
    assert threshold == pytest.approx(g["na_tau75"].item(), rel=1e-9)
    sizes = [len(s) for s in said["scores_global"]]
    weights = na_fedavg.noise_aware_weights(sizes, levels, weighting="public")
    assert weights == pytest.approx(g["na_weights"])


def test_fedexp_takes_the_step_of_the_public_benchmark():
    g = golden("aggregation")
    start, trained, n = (torch.from_numpy(np.asarray(g[name], np.float64)) for name in ("global", "clients", "n"))
    updates = Updates(start, trained, np.arange(len(n)), n, {}, Fit(), n, {})
    merged = mean(trained, n)
    assert extrapolation(updates, merged, 1e-3).item() == pytest.approx(g["fedexp_eta"].item(), rel=1e-9)
    # Their step is exact, but they take it in single precision.
    assert extrapolate(updates, merged, epsilon=1e-3).numpy() == pytest.approx(g["fedexp"], rel=1e-5)


def test_fedelr_equals_its_public_code():
    """A sample that is not visited keeps its target, and the first target is 0.9 of the first prediction."""
    g = golden("fedelr")
    n, classes = g["logits"].shape[1:]
    memory = torch.zeros(n, classes, dtype=torch.float64)
    fixed = {"strength": 2.0, "alpha": 0.0, "beta": 0.0, "gamma": 0.1, "clamp": 1e-4}  # as `fedelr` passes to `flr`
    for visit, index in enumerate((range(n), range(0, n, 2), range(n))):
        index = torch.tensor(index)
        logits = torch.from_numpy(g["logits"][visit])[index].requires_grad_()
        rows = {"mixture_local": memory[index], "mixture_seen": torch.ones(len(index), dtype=torch.bool)}
        values, rows = label_mixture(logits, Batch(y=torch.from_numpy(g["labels"])[index], rows=rows), **fixed)
        values.mean().backward()
        memory[index] = rows["mixture_local"]
        assert values.mean().item() == pytest.approx(g["loss"][visit], rel=1e-12)
        assert logits.grad.numpy() == pytest.approx(g["gradient"][visit][index], rel=1e-10, abs=1e-15)
        assert memory.numpy() == pytest.approx(g["average"][visit], rel=1e-12)


def test_maskedoptim_equals_its_public_code():
    """Eleven samples: the eight with the smallest losses are held near the given labels."""
    g = golden("maskedoptim")
    n, classes = g["logits"].shape
    logits, labels, y = (
        torch.from_numpy(g["logits"]).requires_grad_(),
        torch.from_numpy(g["label_logits"]),
        torch.from_numpy(g["labels"]),
    )
    state = {"class_share": torch.full((classes,), 1 / classes, dtype=torch.float64)}
    batch = Batch(y=y, rows={"label_logits": labels}, state=state, received={"noisy": torch.ones(())})
    # Two times the rate of a single sample: theirs is the gradient of the mean over the batch.
    values, rows = label_learning(logits, batch, alpha=0.5, beta=0.1, rate=2.0, kept=0.8)
    values.mean().backward()
    assert logits.grad.numpy() == pytest.approx(g["gradient"], rel=1e-9, abs=1e-15)
    assert (labels - rows["label_logits"]).numpy() / (2 * n) == pytest.approx(g["label_gradient"], rel=1e-9, abs=1e-15)
    # Their value includes the term of the given labels, which moves labels only.
    held = -labels.log_softmax(-1).gather(1, y[:, None])[:, 0]
    smallest = torch.nn.functional.cross_entropy(logits, y, reduction="none").argsort()[:8]
    assert values.mean().item() + 0.5 * held[smallest].sum().item() / n == pytest.approx(g["loss"].item(), rel=1e-9)
    batch.received["noisy"] = torch.zeros(())  # a clean client learns from its labels
    values, rows = label_learning(logits, batch)
    torch.testing.assert_close(values, torch.nn.functional.cross_entropy(logits, y, reduction="none"))
    assert torch.equal(rows["label_logits"], labels)


# ---- FedSIR
def subspaces_of(g, k):
    return class_subspaces(g[f"x{k}"], g[f"y{k}"], 3)


def project(vectors):
    """Return V^T V of vectors (..., R, d), which does not depend on signs and on the basis."""
    return np.swapaxes(vectors, -1, -2) @ vectors


def test_fedsir_singular_vectors_and_similarity():
    g = golden("fedsir")
    for k in range(3):
        directions, residuals, spectra = subspaces_of(g, k)
        assert spectra == pytest.approx(g[f"spectrum{k}"], rel=1e-4)
        assert np.abs((directions * g[f"direction{k}"]).sum(-1)) == pytest.approx(np.ones(3), abs=1e-5)
        assert project(residuals)[:, :8] == pytest.approx(g[f"residual_projection{k}"], abs=1e-3)
        found = class_similarity(directions, spectra[:, 0], least=20)
        assert found == pytest.approx(g[f"similarity{k}"], rel=1e-5)


@pytest.mark.parametrize(("name", "least"), [("code", 100), ("low", 30)])
def test_fedsir_relabels_as_its_public_code(name, least):
    """With the limit of 100 samples, one class has two clients in its consensus and two have one; with 30, all have three."""
    g = golden("fedsir")
    parts = [np.stack(part) for part in zip(*(subspaces_of(g, k) for k in range(3)), strict=True)]
    directions, residuals = merge_subspaces(*parts, least=least)
    assert np.abs((directions * g[f"{name}_merged"]).sum(-1)) == pytest.approx(np.ones(3), abs=1e-5)
    along, away = classify_by_subspaces(g["x"], directions, residuals)
    assert along.tolist() == g[f"{name}_arg_sr"].tolist()
    assert away.tolist() == g[f"{name}_arg_sn"].tolist()
    assert np.where(along == away, along, g["y"]).tolist() == g[f"{name}_y_pred"].tolist()


def test_fedsir_clean_clients_and_loss():
    g = golden("fedsir")
    assert lower_group(g["points"]).tolist() == (g["p_clean"] >= 0.5).tolist()
    logits, y = torch.from_numpy(g["logits"]).requires_grad_(), torch.from_numpy(g["labels"])
    shares = torch.from_numpy(g["counts"] / g["counts"].sum())
    rows = {"distilled": torch.ones(len(y), dtype=torch.bool)}
    batch = Batch(y=y, rows=rows, state={"class_share": shares}, teacher=torch.from_numpy(g["teacher"]))
    batch.received = {"distil": torch.tensor(0.15, dtype=torch.float64)}
    values = partly_distilled(logits, batch)
    values.mean().backward()
    assert values.mean().item() == pytest.approx(g["la_kd"].item(), rel=1e-6)  # theirs takes logarithms in single precision
    assert logits.grad.numpy() == pytest.approx(g["la_kd_gradient"], rel=1e-6, abs=1e-12)
    rises = [teachers_weight(r, strength=1, start=2, end=49) for r in (0, 2, 10, 49, 80)]
    assert rises == pytest.approx(g["ramp"], rel=1e-12)
    batch.rows["distilled"] = torch.arange(len(y)) > 2  # relabeled samples learn from the label alone
    mixed = partly_distilled(logits, batch)
    batch.received = {"distil": torch.zeros((), dtype=torch.float64)}
    assert torch.equal(mixed[:3], partly_distilled(logits, batch)[:3]) and torch.equal(mixed[3:], values[3:])


def test_feddecorr_equals_the_public_code_of_the_benchmark():
    """One of the features never varies; one sample has no correlation, two have 1 or -1: 2^2 / 4 = 1, divided by B = 2."""
    g = golden("feddecorr")
    features = torch.from_numpy(g["features"]).requires_grad_()
    value = decorrelate(features, Batch(y=torch.zeros(16)), strength=1.0)
    value.backward()
    assert value.item() == pytest.approx(g["loss"].item(), rel=1e-12)
    assert features.grad.numpy() == pytest.approx(g["gradient"], rel=1e-9, abs=1e-14)
    two = torch.from_numpy(g["two"])
    halves = [decorrelate(two, Batch(y=torch.zeros(2)), strength=s).item() for s in (1.0, 0.1)]
    assert halves == pytest.approx([g["two_loss"].item(), 0.1 * g["two_loss"].item()], rel=1e-9)
    for alone in (two[:1], two[:, :1]):
        alone = alone.clone().requires_grad_()
        lone = decorrelate(alone, Batch(y=torch.zeros(len(alone))), strength=1.0)
        lone.backward()
        assert lone.item() == g["one_loss"].item() == 0 and not alone.grad.any()
    stacked = torch.stack([features.detach(), 2 * features.detach() + 1, features.detach() ** 2])
    found = decorrelate(stacked, Batch(y=torch.zeros(3, 16)), strength=0.5)
    single = [decorrelate(each, Batch(y=torch.zeros(16)), strength=0.5).item() for each in stacked]
    assert found.tolist() == pytest.approx(single, rel=1e-12) and found[0].item() == pytest.approx(found[1].item(), rel=1e-6)


# ---- aggregation
SLOTS = [("a.weight", 0, 6, (3, 2)), ("b.bias", 6, 10, (4,))]


def test_robust_aggregators_of_the_public_benchmark():
    g = golden("aggregation")
    stacked, n = torch.from_numpy(g["clients"]), torch.from_numpy(g["n"]).double()
    assert mean(stacked, n).numpy() == pytest.approx(g["fedavg"], rel=1e-6)
    assert squared_distances(stacked).sum(1).numpy() == pytest.approx(g["sum_sq_dist"], rel=1e-5)
    assert median(stacked, n, even="lower").numpy() == pytest.approx(g["median"], rel=1e-6)
    assert krum(stacked, n, nearest="all").numpy() == pytest.approx(g["krum_c1"], rel=1e-6)
    found = trimmed_mean(stacked, n, share=1 / 6, by="distance").numpy()
    assert found == pytest.approx(g["trimmed_c1"], rel=1e-5)
    assert trimmed_mean(stacked, n, share=1 / 6).numpy() == pytest.approx(g["trimmed_coordinatewise_c1"], rel=1e-5)
    assert rfa(stacked, n, slots=SLOTS, variant="public").numpy() == pytest.approx(g["rfa"], rel=1e-5)


def test_distance_aware_aggregation():
    g = golden("aggregation")
    stacked, n = torch.from_numpy(g["clients"]), torch.from_numpy(g["n"]).double()
    for k in range(6):  # model_dist: the others clean, one noisy at a time against one clean
        for j in range(6):
            if j != k:
                pair = stacked[[j, k]]
                away = sum((pair[0, a:b] - pair[1, a:b]).norm().item() for _, a, b, _ in SLOTS)
                assert away == pytest.approx(g["model_dist"][j, k], rel=1e-5)
    weights = distance_aware_weights(stacked, n, np.arange(6) < 3, SLOTS)
    assert weights.numpy() == pytest.approx(g["daagg_weights"], rel=1e-5)
    assert mean(stacked, weights).numpy() == pytest.approx(g["daagg_clean012_noisy345"], rel=1e-5)


def test_residual_reweighting():
    g = golden("aggregation")
    stacked = torch.from_numpy(g["arfl_clients"])
    assert arfl(stacked, torch.ones(10)).numpy() == pytest.approx(g["arfl_result"], rel=1e-4, abs=1e-6)
    confidence, _ = reweight(stacked, 2.0, 0.1)
    shares = ((confidence / confidence.max()) ** 2).numpy()
    assert shares / shares.max() == pytest.approx(g["arfl_weights"], rel=1e-4)


def test_feddyn_of_the_public_code_of_fedefc():
    g = golden("aggregation")
    clients, start, memory = torch.from_numpy(g["clients"]), torch.from_numpy(g["global"]), {}
    sizes, mu = torch.ones(6, dtype=torch.float64), g["feddyn_mu"].item()
    for name, ids, rows in (("round1", [0, 1, 2], [0, 1, 2]), ("round2", [2, 3, 0], [2, 3, 4])):
        trained = clients[rows]
        updates = Updates(start, trained, np.array(ids), torch.ones(3), {}, Fit(), sizes, memory)
        start = subtract_drift(updates, trained.mean(0), alpha=mu)
        assert start.numpy() == pytest.approx(g[f"feddyn_fedefc_{name}"], rel=1e-6), name
