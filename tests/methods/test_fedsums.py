"""fedsums, ridge and lda equal naive solutions, and a client that misses a step changes little."""

import importlib

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize

import fnlkit
from fnlkit.core import registry
from fnlkit.core.errors import WorkStopped
from fnlkit.evidence import head as heads
from fnlkit.evidence import label_model
from fnlkit.evidence.gaussian import softmax
from fnlkit.evidence.linear import Head, Scaling
from fnlkit.experiment.network import network_of
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.engines import make
from fnlkit.kernels.streams import stream
from fnlkit.models.fourier import fourier
from fnlkit.models.mlp import mlp
from fnlkit.results.predicted import describe_samples
from tests.commands import fnlkit as command
from tests.commands import refuse, refuse_call

CLASSES, FEATURES = 3, 6


def problem(clients=4, seed=0, skewed=False):
    """Return x (n, d), given and true labels and the client of each sample; every other client has 60 % random labels."""
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rng.integers(15, 30, clients))
    true = (client if skewed else rng.integers(0, CLASSES, len(client))) % CLASSES
    x = (2.5 * np.eye(FEATURES)[true] + rng.normal(size=(len(true), FEATURES))) * np.arange(1, FEATURES + 1) + 5
    wrong = (client % 2 == 0) & (rng.random(len(true)) < 0.6)
    return x.astype(np.float32), np.where(wrong, rng.integers(0, CLASSES, len(true)), true), true, client


def session(x, given, client, engine="sequential", **options):
    inputs, members = Inputs(False), []
    for k in range(client.max() + 1):
        y = torch.from_numpy(given[client == k])
        members.append(Client(k, torch.from_numpy(x[client == k]), y.clone(), y, CLASSES, inputs))
    network = Network(mlp(input_shape=x.shape[1:], classes=CLASSES, hidden=[]))
    return make(engine, members, network, inputs, **options), Model(network, network.flat.clone())


def solve(method, x, given, client, **options):
    """Return (weights (d + 1, C), clients, report) of a method."""
    clients, model = session(x, given, client, **options)
    clients.sends = registry.sends(method)
    (last,) = list(registry.method(method)(clients, model, None, None, rounds=1))
    flat = last.model.weights.numpy().astype(float)
    clients.close()
    return np.r_[flat[:-CLASSES].reshape(CLASSES, -1).T, flat[None, -CLASSES:]], clients, last.report


# ---- the method once more, on all samples at once, by general solvers
def standardized(x):
    x = (x.astype(float) - x.mean(0)) / x.std(0)
    return np.c_[x * np.sqrt(32 / (x**2).sum(1).mean()), np.ones(len(x))]


def naive_gaussian(f, q):
    x, means = f[:, :-1], []
    within = np.zeros((FEATURES, FEATURES))
    for c in range(CLASSES):
        means.append((q[:, c] @ x) / q[:, c].sum())
        within += (x - means[-1]).T @ (q[:, c, None] * (x - means[-1]))
    within /= len(x)
    within += 0.1 * np.trace(within) / FEATURES * np.eye(FEATURES)
    inverse = np.linalg.inv(within)
    return np.r_[np.stack([inverse @ m for m in means], 1),
                 [[np.log(q[:, c].mean()) - 0.5 * m @ inverse @ m for c, m in enumerate(means)]]]  # fmt: skip


def naive_matrix(common, share, by_class):
    """The common matrix with the odds of its diagonal multiplied so that the expected share of right labels is `share`."""

    def scaled(log_odds):
        t = common.copy()
        t[range(CLASSES), range(CLASSES)] *= np.exp(log_odds)
        return t / t.sum(1, keepdims=True)

    return scaled(brentq(lambda a: by_class @ np.diag(scaled(a)) / by_class.sum() - share, -12, 12))


def naive_label_model(f, given, client, use_shares):
    one_hot, clients = np.eye(CLASSES)[given], range(client.max() + 1)
    q, shares = one_hot, np.zeros((len(f), CLASSES))
    t = np.repeat((0.6 * np.eye(CLASSES) + 0.4 / CLASSES)[None], client.max() + 1, 0)
    for _ in range(3):
        w = naive_gaussian(f, q)
        likely = matrices_of_labels(t, given, client)
        scores = [np.log((softmax(f @ w / tau + shares) * likely).sum(1) + 1e-12).sum() for tau in (1, 1.5, 2, 3, 4, 6, 8)]
        w = w / (1, 1.5, 2, 3, 4, 6, 8)[int(np.argmax(scores))]
        for _ in range(3):
            q = softmax(f @ w + shares) * matrices_of_labels(t, given, client)
            q /= q.sum(1, keepdims=True)
            counts = q.T @ one_hot
            common = counts + 0.01 + np.eye(CLASSES)
            common /= common.sum(1, keepdims=True)
            usual = (counts.sum(1) + 1) / (len(f) + CLASSES)
            for k in clients:
                mine = client == k
                share = ((q * one_hot)[mine].sum() + 3 * np.trace(counts) / len(f)) / (mine.sum() + 3)
                t[k] = naive_matrix(common, share, q[mine].sum(0))
                if use_shares:
                    shares[mine] = np.log((q[mine].sum(0) + 20 * usual) / (mine.sum() + 20) / usual)
    return t


def naive_head(f, likely):
    """Minimize -log sum_z softmax(W f)_z P(y | z) + 15 / 2 |W|^2."""

    def loss(flat):
        w = flat.reshape(-1, CLASSES)
        p = softmax(f @ w)
        q = p * likely / (p * likely).sum(1, keepdims=True)
        return -np.log((p * likely).sum(1)).sum() + 7.5 * (w**2).sum(), (f.T @ (p - q) + 15 * w).ravel()

    return minimize(loss, np.zeros((FEATURES + 1) * CLASSES), jac=True, tol=1e-12).x.reshape(-1, CLASSES)


def matrices_of_labels(t, given, client):
    return t[client, :, given]


@pytest.mark.parametrize("skewed", [False, True])
def test_fedsums_equals_general_solvers_on_all_samples(skewed):
    x, given, _, client = problem(skewed=skewed)
    f, half = standardized(x), np.empty(len(x), int)
    for k in range(client.max() + 1):
        half[client == k] = stream(0, "halves", client=k).permutation((client == k).sum()) % 2
    scores = []
    for use_shares in (False, True):
        total = 0.0
        for part in (0, 1):
            mine, other = half == part, half != part
            t = naive_label_model(f[mine], given[mine], client[mine], use_shares)
            w = naive_head(f[mine], matrices_of_labels(t, given[mine], client[mine]))
            total += np.log((softmax(f[other] @ w) * matrices_of_labels(t, given[other], client[other])).sum(1)).sum()
        scores.append(total)
    t = naive_label_model(f, given, client, scores[1] > scores[0])
    wanted = f @ naive_head(f, matrices_of_labels(t, given, client))
    head, clients, report = solve("fedsums", x, given, client)
    assert report["class_shares"] == (scores[1] > scores[0]) and len(clients.log) == 36  # messages of each client
    np.testing.assert_allclose(np.c_[x, np.ones(len(x))] @ head, wanted, atol=0.05)


def test_references_equal_general_solvers():
    x, given, _, client = problem()
    f, inputs = standardized(x), np.c_[x, np.ones(len(x))]
    plain = f @ naive_head(f, np.eye(CLASSES)[given])
    np.testing.assert_allclose(inputs @ solve("fedsums(label_model=false)", x, given, client)[0], plain, atol=0.05)
    one_hot = np.eye(CLASSES)[given]
    least_squares = np.linalg.lstsq(
        np.r_[f, np.sqrt(15) * np.eye(FEATURES + 1)], np.r_[one_hot, np.zeros((FEATURES + 1, CLASSES))]
    )
    np.testing.assert_allclose(inputs @ solve("ridge", x, given, client)[0], f @ least_squares[0], atol=1e-3)
    np.testing.assert_allclose(inputs @ solve("lda", x, given, client)[0], f @ naive_gaussian(f, one_hot), atol=1e-2)


def test_labels_are_corrected_and_only_sums_are_logged():
    x, given, true, client = problem()
    head, clients, _ = solve("fedsums(steps=20)", x, given, client)
    corrected = torch.cat([c.y for c in clients.members]).numpy()
    assert (corrected == true).mean() > 0.9 > (given == true).mean() + 0.05
    assert ((np.c_[x, np.ones(len(x))] @ head).argmax(1) == true).mean() > 0.9
    assert all(len(values) == 1 for entry in clients.log for values in entry.values.values())
    assert all({*c.rows} == {"inferred"} and not c.state and not c.kept for c in clients.members)


def test_constant_inputs_and_tiny_clients_are_harmless():
    x, given, _, client = problem()
    x[:, 2] = 1000.0
    client = np.where(np.arange(len(x)) == len(x) - 1, client.max() + 1, client)  # a client with one sample
    head, _, _ = solve("fedsums(steps=5)", x, given, client)
    assert np.isfinite(head).all() and (head[2] == 0).all()


def test_a_feature_that_is_the_label_and_few_samples_leave_the_head_finite():
    """The covariance within the classes is 0, or a half of the samples is empty."""
    true = np.arange(60) % 3
    given = np.where(np.arange(60) < 6, (true + 1) % 3, true)
    head, clients, _ = solve("fedsums", np.eye(3)[true], given, np.arange(60) // 20)
    assert np.isfinite(head).all() and (torch.cat([c.y for c in clients.members]).numpy() == true).all()
    x = np.random.default_rng(0).normal(size=(8, 3))
    for size in (1, 2, 3, 4, 8):
        head, _, _ = solve("fedsums", x[:size], true[:size], np.zeros(size, int))
        assert np.isfinite(head).all()


def test_fourier_features_of_a_label_and_a_damaged_row_leave_the_head_finite(tmp_path):
    """Rounding of the sums in float32 makes the covariance indefinite."""
    y, rng = np.random.default_rng(0).integers(0, 3, 1000), np.random.default_rng(1)
    damaged = 2 * np.eye(3)[y] + rng.normal(size=(1000, 3))
    damaged[0] = 1e5
    for x, least in ((y[:, None].astype(float), 1.0), (np.eye(3)[y], 1.0), (damaged, 0.0)):
        np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x[:200], y_test=y[:200], site_train=np.arange(1000) % 4)
        run = fnlkit.train(fnlkit.partition(str(tmp_path / "x.npz"), "sites", holdout=0, say=None), "fedsums", say=None)
        assert run.weights.isfinite().all() and run.history[-1]["agreement"] >= least


STEPS = ["reply_products", "infer_labels", "reply_gradients"]
STEPS += [pytest.param(step, marks=pytest.mark.slow) for step in ("project_samples", "reply_likelihoods")]


@pytest.mark.parametrize("step", STEPS)
def test_a_client_that_misses_steps_of_one_kind_costs_little(step, monkeypatch):
    """The last client alone has class 2 in half of its steps; means over other clients beside products of all would lose it."""
    x, given, true, client = problem(clients=9, skewed=True)
    lost = []

    module = importlib.import_module("fnlkit.methods.fedsums")
    original = getattr(module, step)

    def failing(site, model, received, **options):
        lost.append(site.id)
        if site.id in (2, 5) and lost.count(site.id) % 2:
            raise RuntimeError("no connection")
        return original(site, model, received, **options)

    monkeypatch.setattr(module, step, failing)
    head, clients, _ = solve("fedsums(steps=5)", x, given, client, min_replies=0.0)
    assert clients.rejected
    assert ((np.c_[x, np.ones(len(x))] @ head).argmax(1) == true).mean() > 0.85


# ---- Fourier features
def test_fourier_features_equal_a_head_on_cosines_and_inputs():
    """F = 40 cosines of scaled inputs, whose directions are drawn from the public stream; a naive least-squares head."""
    x, given, _, client = problem()
    z = (x.astype(float) - x.mean(0)) / x.std(0) / np.sqrt(FEATURES)
    angles = z @ stream(0, "fourier").standard_normal((FEATURES, 20))
    f = np.c_[np.cos(angles), np.sin(angles)] / np.sqrt(20)
    np.testing.assert_allclose(f @ f.T, np.exp(-((z[:, None] - z) ** 2).sum(2) / 2), atol=0.8)  # the kernel, 20 draws
    f = np.c_[f - f.mean(0), z]
    axes = np.linalg.svd(f, full_matrices=False)[2][:5].T
    f = np.c_[f @ axes * np.sqrt(32 / ((f @ axes) ** 2).sum(1).mean()), np.ones(len(x))]
    wanted = f @ np.linalg.solve(f.T @ f + 15 * np.eye(6), f.T @ np.eye(CLASSES)[given])
    clients, _ = session(x, given, client)
    network = Network(fourier(input_shape=(FEATURES,), classes=CLASSES, features=40))
    clients.sends = registry.sends("ridge")
    (last,) = list(registry.method("ridge(components=5)")(clients, Model(network, network.flat), None, None, rounds=1))
    network.load(last.model.weights)
    np.testing.assert_allclose(network.module(torch.from_numpy(x)).detach().numpy(), wanted, atol=1e-3)
    numpy = Head.of(last.model.weights.numpy(), FEATURES, CLASSES)
    np.testing.assert_allclose(numpy.of_samples(x, Scaling(False)), wanted, atol=1e-3)


def rings(tmp_path, features=2):
    """Write a data set whose two classes are rings, and return a federation of it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = (rng.normal(size=(400, features)) * (1 + 0.1 * rng.random((400, 1)))).astype(np.float32)
    x *= (1 + 2 * y[:, None]) / np.linalg.norm(x, axis=1, keepdims=True)
    np.savez(tmp_path / "rings.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])
    return fnlkit.inject_noise(fnlkit.partition(str(tmp_path / "rings.npz"), clients=5, say=None), "clients(rho=0.6, tau=0.5)")


def test_curved_borders_need_fourier_features_which_small_tables_have_by_default(tmp_path):
    federation = rings(tmp_path)
    scores = {}
    for model in ("auto", "mlp(hidden=[])", "fourier(features=100)"):
        run = fnlkit.train(federation, "fedsums", model=model, say=None)
        scores[run.settings["model"]] = run.history[-1]["accuracy"]
    assert [*scores] == ["fourier(features=1000)", "mlp(hidden=[])", "fourier(features=100)"]
    assert scores["fourier(features=1000)"] > 0.95 and scores["fourier(features=100)"] > 0.95 > 0.8 > scores["mlp(hidden=[])"]
    assert fnlkit.train(federation, "ridge", say=None).settings["model"] == "mlp(hidden=[])"
    refuse_call("even number", fnlkit.train, federation, "fedsums", model="fourier(features=5)", say=None)


def test_halves_of_the_samples_choose_the_penalty_of_fourier_features(tmp_path):
    """Curved borders need the small penalty; linear classes with many wrong labels need the large one."""
    true, wrong = np.arange(600) % 3, np.random.default_rng(1).random(600) < 0.5
    x = 2.5 * np.eye(3, 8)[true] + np.random.default_rng(0).normal(size=(600, 8))
    given = np.where(wrong, (true + 1 + np.arange(600) // 3 % 2) % 3, true)
    np.savez(tmp_path / "linear.npz", x_train=x, y_train=given, x_test=x[:50], y_test=true[:50])
    linear = fnlkit.partition(str(tmp_path / "linear.npz"), clients=5, say=None)
    for federation, ridge in ((rings(tmp_path), 5), (linear, 50)):
        runs = [fnlkit.train(federation, f"fedsums(passes=1{penalty})", model="fourier(features=100)", say=None)
                for penalty in ("", ", ridge=5", ", ridge=50")]  # fmt: skip
        assert [np.array_equal(runs[0].weights, run.weights) for run in runs[1:]] == [ridge == 5, ridge == 50]


def test_a_run_with_fourier_features_is_evaluated_predicted_resumed_and_exported(tmp_path):
    federation = rings(tmp_path)
    run = fnlkit.train(federation, "fedsums(steps=10, passes=1)", output=str(tmp_path / "r.pt"), say=None)
    again = fnlkit.train(federation, "fedsums(steps=10, passes=1)", resume=str(tmp_path / "r.pt"), say=None)
    np.testing.assert_array_equal(again.weights, run.weights)
    x = np.load(tmp_path / "rings.npz")["x_test"]
    np.save(tmp_path / "new.npy", x)
    assert [row[1] for row in fnlkit.predict(run, tmp_path / "new.npy").rows] == run.predicted["test"].tolist()
    network = network_of(run).module.eval()
    about = describe_samples(run)
    x = Scaling(False, tuple(about["mean"]), tuple(about["std"])).plain(x)
    np.testing.assert_allclose(network(torch.from_numpy(x)).detach(), run.logits["test"], atol=1e-4)
    assert fnlkit.export(run, str(tmp_path / "r.pt2")) < 1e-4


# ---- parts
def test_all_of_a_few_independent_inputs_are_kept_if_there_are_enough_samples(tmp_path):
    """Of independent columns, 32 principal components are arbitrary directions, with half of the signal of 60 columns."""
    count = importlib.import_module("fnlkit.methods.fedsums")._default_components
    for samples, inputs, wanted in ((240, 60, 60), (239, 60, 32), (1024, 128, 128), (1100, 129, 68), (9600, 20, 256)):
        cosines = np.cos(np.pi / samples * np.outer(np.arange(samples) + 0.5, np.arange(inputs + 1)))  # orthogonal columns
        assert count(cosines.T[::-1] @ cosines[:, ::-1], np.full(inputs, np.sqrt(2))) == wanted
    correlated = np.append(np.full((60, 60), 240.0) + np.diag(np.full(60, 240.0)), np.zeros((60, 1)), 1)
    assert count(np.append(correlated, [[*np.zeros(60), 240.0]], 0), np.full(60, 0.5**0.5)) == 32
    x = np.random.default_rng(0).normal(size=(980, 60))
    y = (x[:, :5].sum(1) > 0).astype(int)
    np.savez(tmp_path / "x.npz", x_train=x[:480], y_train=y[:480], x_test=x[480:], y_test=y[480:])
    federation = fnlkit.partition(str(tmp_path / "x.npz"), clients=4, say=None)
    scores = [fnlkit.train(federation, f"ridge{part}", say=None).history[-1]["agreement"] for part in ("", "(components=32)")]
    assert scores[0] > 0.9 and scores[1] < 0.85


def test_steps_of_the_head_raise_the_likelihood_of_noisy_labels_to_its_maximum(monkeypatch):
    """Labels of which 60 % are random, whose likelihood is nearly flat where the head starts."""
    monkeypatch.setattr(heads, "BLOCK", 200)
    rng = np.random.default_rng(0)
    true = rng.integers(0, 10, 500)
    x = (rng.normal(size=(10, 30))[true] + rng.normal(size=(500, 30))).astype(np.float32)
    y = np.where(rng.random(500) < 0.6, rng.integers(0, 10, 500), true)
    likely = (0.4 * np.eye(10) + 0.06)[y]

    def loss(flat):
        w = flat.reshape(30, 10)
        gradient = heads.gradient(x, w, y, likely.T) + 15 * w
        return -np.log((softmax(x @ w) * likely).sum(1)).sum() + 7.5 * (w**2).sum(), gradient.ravel()

    ascent, losses = heads.Ascent(x.T @ x, 10, 15.0), []
    for _ in range(20):
        losses.append(loss(ascent.head.ravel())[0])
        ascent.step(heads.gradient(x, ascent.head, y, likely.T))
    assert (np.diff(losses) < 1e-6).all()
    assert losses[-1] - minimize(loss, np.zeros(300), jac=True, method="L-BFGS-B").fun < 0.5
    still = heads.Ascent(np.zeros((2, 2)), 3, 1.0)
    for _ in range(3):
        still.step(np.zeros((2, 3)))
    assert (still.head == 0).all()


# ---- commands
def test_the_network_becomes_a_linear_head_or_the_run_is_refused(tmp_path):
    notes: list[str] = []
    unused = {"model": "mlp(hidden=[8])", "embeddings": np.zeros((1438, 2), np.float32), "say": notes.append}
    run = fnlkit.train(fnlkit.partition("digits", clients=4), "ridge", engine="sequential", **unused)
    assert any("hidden layers are left out" in note for note in notes) and "`embeddings` are not used" in notes[0]
    assert run.settings["model"] == "mlp(hidden=[])" and run.history[-1]["accuracy"] > 0.85
    command("fnlkit partition --dataset digits --clients 4 -o f.npz", tmp_path)
    done = command("fnlkit train f.npz --method ridge -o r.pt", tmp_path).stderr
    assert "wrote r.pt: accuracy 0." in done and "hidden layers are left out" not in done
    again = command("fnlkit train f.npz --method ridge --model mlp --overwrite -o r.pt", tmp_path).stderr
    assert "--model mlp: hidden layers are left out" in again
    refuse(
        "fnlkit train f.npz --method fedsums --model lenet5 -o r.pt", tmp_path, "--model lenet5: fedsums computes a linear head"
    )
    refuse("fnlkit train f.npz --method fedsums --aggregator median -o r.pt", tmp_path, "fedsums averages no models")


def test_blocks_of_clients_give_the_weights_of_the_sequential_engine():
    federation = fnlkit.inject_noise(fnlkit.partition("digits", clients=6), "clients(rho=0.5, tau=0.5)")
    plain, together, apart = (fnlkit.train(federation, "fedsums(passes=1, steps=5)", engine=engine, say=None)
                              for engine in ("sequential", "auto", "workers"))  # fmt: skip
    assert torch.equal(apart.weights, plain.weights)
    np.testing.assert_allclose(together.weights.numpy(), plain.weights.numpy(), atol=2e-3)
    assert together.traffic == plain.traffic and together.history[0] == plain.history[0]
    assert (together.labels["corrected"] == plain.labels["corrected"]).mean() > 0.999
    assert (together.predicted["test"] == plain.predicted["test"]).mean() > 0.995
    assert together.meta.keys() == plain.meta.keys()


def test_sums_that_count_other_samples_than_the_clients_have_end_the_run():
    """A site at fault, whose masked reply nobody sees, spoils the sum."""
    x, given, _, client = problem()
    clients, model = session(x, given, client)
    clients.sends, clients.sizes = registry.sends("lda"), clients.sizes + 1
    refuse_call("their sums count", list, registry.method("lda")(clients, model, None, None, rounds=1), error=WorkStopped)


def test_odds_reach_the_share_of_right_labels():
    counts = np.array([[30.0, 5, 5], [2, 40, 3], [1, 1, 20]])
    by_class = np.array([[10.0, 5, 5], [0, 0, 1]])
    odds = label_model.fit_odds(counts, np.array([18.0, 0]), by_class)
    common = label_model.common_matrix(counts)
    for k, right in enumerate((18.0, 0)):
        share = (right + 3 * 90 / 107) / (by_class[k].sum() + 3)
        np.testing.assert_allclose(label_model.likelihood(common, odds[[k]], np.arange(CLASSES), np.zeros(CLASSES, int)).T,
                                   naive_matrix(common, share, by_class[k]), atol=1e-8)  # fmt: skip
