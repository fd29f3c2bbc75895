"""Randomized response keeps its promise, and what it costs adds up."""

import dataclasses
import json
import math
import types

import numpy as np
import pytest
import torch
from filelock import FileLock

from fnlkit import datasets
from fnlkit.artifacts import ledger
from fnlkit.core.errors import InputError
from fnlkit.estimators.judgment import add_judgment
from fnlkit.experiment import Experiment, Settings, assembly
from fnlkit.federated import privacy
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines.sequential import Sequential
from fnlkit.methods import feddpcont
from fnlkit.methods.feddpcont import release_labels
from fnlkit.simulate.partitioning import federation
from tests import toy
from tests.commands import fnlkit, refuse_call, succeed


def test_the_published_epsilons_keep_about_a_fifth():
    for epsilon, classes, keep in ((0.81, 10, 0.2), (3.21, 100, 0.2), (1.17, 14, 0.2)):
        assert privacy.keep_probability(epsilon, classes) == pytest.approx(keep, abs=2e-3)
    # ln(0.2 (K - 1) / 0.8), by hand
    for classes, exact in ((10, 0.81093), (100, 3.20883), (14, 1.17865)):
        assert privacy.keep_probability(exact, classes) == pytest.approx(0.2, abs=2e-6)


def test_impossible_settings_are_refused():
    for wrong in (0.0, -1.0, math.inf, math.nan):
        refuse_call("epsilon", privacy.keep_probability, wrong, 10)
    refuse_call("at least 2", privacy.keep_probability, 1.0, 1)


def test_debiasing_solves_the_linear_system():
    """(T_DP^T) q = p with T_DP the k-ary mechanism's matrix; the closed form is its solution."""
    rng = np.random.default_rng(0)
    for classes, epsilon in ((2, 0.3), (10, 0.81), (14, 1.17)):
        keep = privacy.keep_probability(epsilon, classes)
        matrix = np.full((classes, classes), (1 - keep) / (classes - 1))
        np.fill_diagonal(matrix, keep)
        counts = rng.integers(0, 100, classes)
        expected = np.linalg.solve(matrix.T, counts / counts.sum())
        assert privacy.debias(counts, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    # The inverse's entries at K = 10, eps = 0.81: 8.21207 on the diagonal, -0.80134 off it, by hand.
    one = privacy.debias(np.eye(10)[0], 0.81)
    assert one[0] == pytest.approx(8.21207, abs=1e-4) and one[1] == pytest.approx(-0.80134, abs=1e-4)
    # At an epsilon that keeps all labels there is nothing to undo.
    assert privacy.debias([3, 1, 0], 1e4).tolist() == [0.75, 0.25, 0]


@pytest.mark.parametrize("how", ["project", "clip"])
def test_the_simplex_is_reached(how):
    rng = np.random.default_rng(2)
    for _ in range(50):
        v = rng.normal(0.2, 0.3, 5)
        v += (1 - v.sum()) / 5
        q = privacy.to_simplex(v, how=how)
        assert q.min() >= 0 and q.sum() == pytest.approx(1)
        if how == "project":  # optimality: v - q is constant where q > 0 and no larger elsewhere
            gap = v - q
            assert np.ptp(gap[q > 0]) < 1e-12 and gap[q == 0].max(initial=-1) <= gap[q > 0].max() + 1e-12
        if (v >= 0).all():
            assert q == pytest.approx(v)
    assert privacy.to_simplex([0.7, 0.5, -0.2]) == pytest.approx([0.6, 0.4, 0])
    assert privacy.to_simplex([0.7, 0.5, -0.2], how="clip") == pytest.approx([7 / 12, 5 / 12, 0])


# ---- the ledger
def run_of(seed, *, epsilon=0.81, given=(0, 1, 2), cut=1, held=None, data="d", round=1, beside=()):
    """Return what `releases` reads of a Run with two clients, parted at `cut`."""
    held = np.arange(len(given)) if held is None else np.array(held)
    name = "private_counts" if epsilon else "exact_counts"
    told = {name: [np.array([1, 0, 0]), np.array([0, 1, 1])]} | ({"epsilon": [np.float64(epsilon)] * 2} if epsilon else {})
    others = [types.SimpleNamespace(values={name: [np.float64(1)] * 2 for name in beside})] * round
    return types.SimpleNamespace(
        settings={"seed": seed},
        meta={"dataset_checksum": data},
        log=[*others, types.SimpleNamespace(values=told)],
        labels={"given": np.array(given)},
        client_offsets=np.array([0, cut, len(held)]),
        client_indices=held,
    )


def spent(*runs, **known):
    said = privacy.statement(list(runs), **known)
    return said["label_releases"], said["label_epsilon"]


def test_a_release_is_identified_by_its_inputs():
    """Every run here says the same counts: what tells them apart is what the draws follow from."""
    first = run_of(0)
    alone = privacy.statement(first)
    assert (alone["label_releases"], alone["label_epsilon"]) == (1, 0.81)
    assert "once" in alone["label_statement"] and "(0.81, 0)-label-DP" in alone["label_statement"]
    assert spent(first, run_of(0)) == (1, 0.81)  # a copy, or the same run again, tells nothing new
    assert spent(*[run_of(seed) for seed in range(12)]) == (12, pytest.approx(12 * 0.81))
    for other in (run_of(0, epsilon=0.5), run_of(0, round=2), run_of(0, cut=2), run_of(0, given=(0, 1, 1))):
        assert spent(first, other)[0] == 2
    both = privacy.statement([first, run_of(1)])
    assert "2 times" in both["label_statement"]
    assert privacy.statement(types.SimpleNamespace(**{**vars(first), "log": first.log[:1]})) == {}
    refuse_call("different data sets", privacy.statement, [first, run_of(1, data="other")])


def test_releases_add_up_sample_by_sample_over_partitions():
    """Samples 0, 1, 2 told at 0.81, then 2, 3 at 0.5, then 3, 4 at 0.4: sample 2 costs 1.31, the most."""
    given = (0, 1, 2, 0, 1)
    runs = [run_of(0, given=given, held=(0, 1, 2)), run_of(1, given=given, held=(2, 3), epsilon=0.5)]
    runs.append(run_of(2, given=given, held=(4, 3), epsilon=0.4))
    assert spent(*runs) == (2, pytest.approx(1.31))
    assert spent(*runs[1:]) == (2, pytest.approx(0.9))
    assert spent(runs[0], runs[2]) == (1, 0.81)  # no sample in both


def test_exact_counts_state_no_privacy():
    said = privacy.statement([run_of(0), run_of(0, epsilon=None)])
    assert said["label_releases"] == 2 and said["label_epsilon"] is None
    assert "no differential privacy" in said["label_statement"]
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_no_label_privacy_is_stated_with_other_replies_about_labels():
    """NNC sends the exact share of outvoted labels before FedDPCont releases counts."""
    said = privacy.statement(run_of(0, beside=("noise_level", "local_loss")))
    assert said["label_releases"] == 1 and said["label_epsilon"] is None and "label_keep" not in said
    assert "noise_level" in said["label_statement"] and "local_loss" in said["label_statement"]
    assert "-label-DP" not in said["label_statement"]
    # Another run on the same samples tells of their labels too.
    assert privacy.statement([run_of(0), run_of(1, beside=("noise_level",))])["label_epsilon"] is None
    lying = run_of(0)
    lying.log[-1].values["epsilon"] = [np.float64(0.81), np.float64(0.81), np.float64(1e-9)]
    assert privacy.statement(lying)["label_epsilon"] == 0.81


def test_nnc_with_feddpcont_names_the_uncovered_replies(noisy, tmp_path):
    line = f"fnlkit train {noisy} --method 'nnc(usual=feddpcont())' --rounds 1 --epochs 1 --ledger spent -o run.pt"
    done = succeed(line, tmp_path)
    assert "noise_level" in done.stderr and "-label-DP" not in done.stderr
    told = fnlkit("fnlkit evaluate run.pt --json --ledger none", tmp_path)
    row = json.loads(told.stdout)
    assert row["label_epsilon"] is None and "noise_level" in row["label_statement"]


def test_the_ledger_adds_up_and_keeps(tmp_path):
    path = tmp_path / "new" / "data.npz.ledger"
    assert ledger.read_ledger(path) == []
    runs = [run_of(seed, given=(0, 1, 2, 0, 1), held=(seed, seed + 1)) for seed in range(3)]
    for number, run in enumerate(runs, 1):
        (made,) = privacy.releases(run)
        assert len(ledger.commit(path, made)) == number
        assert len(ledger.commit(path, made)) == number  # the same again
    ledger.commit(path, privacy.releases(run_of(0, epsilon=None, data="other"))[0])
    known = ledger.read_ledger(path)
    assert [one.id for one in known[:3]] == [privacy.releases(run)[0].id for run in runs]
    assert known[1].held.tolist() == [False, True, True, False, False] and known[3].epsilon is None
    # What the ledger knows is added to what runs say; what both know counts once.
    assert spent(runs[0], known=known) == (2, pytest.approx(1.62))
    assert spent(run_of(7, given=(0, 1, 2, 0, 1), held=(1, 2)), known=known) == (3, pytest.approx(3 * 0.81))
    assert b"given" not in path.read_bytes() and b"labels" not in path.read_bytes()


def test_equal_labels_of_another_data_set_are_another_entry(tmp_path):
    """The second of two sizes of one folder had no entry, and its training ended with a KeyError."""
    path, one, other = tmp_path / "l", *(privacy.releases(run_of(0, data=name))[0] for name in ("small", "large"))
    assert one.id == other.id and len(ledger.commit(path, one)) == 1 and len(ledger.commit(path, other)) == 2
    assert len(ledger.commit(path, other)) == 2
    for name in ("small", "large"):
        assert "released once" in privacy.sum_costs(ledger.read_ledger(path), name)["label_statement"]


def test_a_link_to_a_ledger_has_the_lock_of_the_ledger(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    monkeypatch.setattr(ledger, "PATIENCE", 0.1)
    made = privacy.releases(run_of(0))[0]
    with FileLock(tmp_path / "ledger.lock"), pytest.raises(InputError, match="link: .*lock"):
        ledger.commit(tmp_path / "link", made)
    ledger.commit(tmp_path / "link", made)
    assert len(ledger.read_ledger(tmp_path / "ledger")) == 1


def test_a_ledger_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "ledger"
    for seed in range(3):
        ledger.commit(path, privacy.releases(run_of(seed))[0])
    whole = path.read_bytes()
    first, second, third = whole.splitlines(keepends=True)
    changed = [
        second + third, first + third, whole.replace(b"0.81", b"0.01", 1), whole[:-30], b"[1, 2]\n", b"\xff\n", b"{}\n" + whole
    ]  # fmt: skip
    for data in changed:
        path.write_bytes(data)
        refuse_call("line [123] is not a release", ledger.read_ledger, path)
        refuse_call("line [123] is not a release", ledger.commit, path, privacy.releases(run_of(9))[0])
        assert path.read_bytes() == data
    folder = tmp_path / "folder"
    folder.mkdir()
    refuse_call("`ledger`", ledger.read_ledger, folder)


def test_a_release_is_in_the_ledger_before_it_is_made(tmp_path, monkeypatch):
    """The first round, in which labels are told, fails: what was about to be told is written down, and adds up later."""
    digits = datasets.load("digits")
    path = tmp_path / "digits.ledger"

    def experiment(seed, partition=0, **options):
        fed = federation(digits, clients=20, seed=partition)
        settings = Settings(method="feddpcont", rounds=1, epochs=1, seed=seed)
        return Experiment(fed, digits, settings, engine="sequential", release_ledger=path, **options)

    def dies(*arguments):
        raise RuntimeError("dies")

    with monkeypatch.context() as patch:
        patch.setattr(Sequential, "run", dies)
        refuse_call("dies", experiment(0).run, error=RuntimeError)
    assert len(ledger.read_ledger(path)) == 1
    run = experiment(0).run()  # the very same release, now made
    assert len(ledger.read_ledger(path)) == 1 and ledger.read_ledger(path)[0].id == privacy.releases(run)[0].id
    again = experiment(0, resume=run)
    assert len(ledger.read_ledger(path)) == 1 and any("once" in note for note in again.clients.notes)
    other = experiment(1, partition=5)
    other.run()
    (released,) = [note for note in other.clients.notes if "2 times" in note]
    assert "(1.62, 0)-label-DP" in released
    path.write_text("not a ledger")
    refuse_call("not a release", experiment(2).run)


def test_labels_as_they_came_are_released_whatever_corrected_them_since():
    """Client 0 received 0 0 1 1 2 2; a vote of neighbors would make them 0 0 0 0 0 0."""
    client = toy.clients(count=1)[0]
    counts = torch.bincount(client.given, minlength=toy.CLASSES)
    client.y.fill_(3)
    said = release_labels(client, None, {}, epsilon=None)
    assert said["exact_counts"].tolist() == counts.tolist()
    assert release_labels(client, None, {}, epsilon=None) == said

    client = toy.clients(count=1)[0]
    client.y.fill_(3)
    client.begin_round(0, 0)
    said = release_labels(client, None, {}, epsilon=50.0)  # keeps every label
    assert said["private_counts"].tolist() == counts.tolist()

    client = toy.clients(count=1)[0]  # relabeled before it was given to the client: `estimate-noise --apply relabel`
    client.rows["input/received"] = torch.ones_like(client.given)
    said = release_labels(client, None, {}, epsilon=None)
    assert said["exact_counts"].tolist() == [0, len(client), 0, 0]


def test_the_received_labels_of_a_relabeled_federation_are_released():
    digits = datasets.load("digits")
    fed = federation(digits, clients=10)
    n = len(fed.given)
    arrays = {"estimate_flagged": np.ones(n, bool), "estimate_suggested_label": np.zeros(n, np.int64)}
    corrected = add_judgment(fed, arrays, relabel=True)
    assert not corrected.given.any()
    settings = Settings(method="feddpcont(release=exact)", rounds=1, epochs=1)
    run = Experiment(corrected, digits, settings, engine="sequential").run()
    told = np.sum(run.log[0].values["exact_counts"], 0)
    assert told.tolist() == np.bincount(fed.given, minlength=10).tolist()


def test_exact_and_an_epsilon_contradict_each_other():
    refuse_call("release=exact has no epsilon, found 0.5", toy.train, method="feddpcont(release=exact, epsilon=0.5)")


def test_the_tight_ledger_is_never_above_the_sum():
    pytest.importorskip("dp_accounting", reason="extra `privacy`")
    for classes, epsilon, times in ((10, 0.81, 1), (10, 0.81, 20), (4, 2.0, 5)):
        tight = privacy.epsilon_at(1e-5, [epsilon] * times, classes)
        assert 0 < tight <= times * epsilon + 1e-6
        if times > 10:
            assert tight < 0.7 * times * epsilon
    # One release at delta 0 costs its epsilon.
    assert privacy.epsilon_at(0, [0.81], 10) == 0.81
    assert privacy.epsilon_at(1e-12, [0.81], 10) == pytest.approx(0.81, abs=1e-3)


def test_releases_with_one_seed_do_not_reveal_differences(monkeypatch):
    """Labels told at epsilon 2 in two runs of one seed and key, a quarter of them changed in between.

    With draws that follow from the seed, exactly changed labels are told otherwise.  With independent draws and p = 0.451, a
    label is told twice alike with s = p^2 + (1 - p)^2 / 9 = 0.237 if unchanged and d = 2 p (1 - p) / 9 + 8 ((1 - p) / 9)^2 =
    0.085 if changed, so that (1 - d) / (1 - d + 3 (1 - s)) = 0.286 of those told otherwise were changed.
    """
    digits, told = datasets.load("digits"), []
    real = privacy.randomized_response

    def recorded(*arguments):
        told.append(real(*arguments))
        return told[-1]

    monkeypatch.setattr(feddpcont, "randomized_response", recorded)
    fed = federation(digits, clients=4)

    def release(given, **more):
        told.clear()
        changed = dataclasses.replace(fed, given=given)
        settings = Settings(method="feddpcont(epsilon=2)", rounds=1, epochs=1, fraction=0.25, **more)
        Experiment(changed, digits, settings, engine="sequential", privacy_key=bytes(32)).run()
        return np.concatenate(told)

    held = fed.client_indices
    other = fed.given.copy()
    other[held[::4]] = (other[held[::4]] + 1) % 10
    first, again, second = release(fed.given), release(fed.given, lr=0.5), release(other)
    assert np.array_equal(first, again)  # the same labels, told once more: the same answer, and one release
    moved = first != second
    right = np.mean((fed.given != other)[held][moved])
    assert right == pytest.approx(0.286, abs=4 * math.sqrt(0.286 * 0.714 / moved.sum()))


def test_feddpcont_trains_with_the_debiased_distribution():
    """24,000 labels with shares 0.85, 0.09, 0.04, 0.02 at epsilon 0.81, where a label is kept with probability 0.4284.

    The released frequencies are 0.1905 + 0.2378 q: 0.393 for the first class.  An estimate has the standard deviation
    sqrt(0.393 * 0.607 / 24,000) / 0.2378 = 0.013.
    """
    shares = np.array([0.85, 0.09, 0.04, 0.02])
    fed, model = toy.toy(count=12)
    for client in fed.members:
        labels = torch.from_numpy(np.repeat(np.arange(4), (2000 * shares).astype(int)))
        client.samples, client.y, client.given = torch.zeros(2000, toy.FEATURES, dtype=torch.float64), labels, labels.clone()
    run = toy.program("feddpcont(epsilon=0.81)", fed, model, rounds=1, fit=Fit(epochs=1, batch_size=1000), fraction=0.1)
    assert next(run).report["prior"] == pytest.approx(shares, abs=0.05)


def test_a_refused_run_leaves_no_new_key(tmp_path, monkeypatch):
    digits, key = datasets.load("digits"), str(tmp_path / "new.key")

    def refuse(*arguments, **more):
        raise InputError("no scale")

    for message, precision in (("fused has no bf16", "bf16"), ("no scale", "fp32")):
        settings = Settings(method="feddpcont(epsilon=2)", precision=precision)
        refuse_call(message, Experiment, federation(digits, clients=4), digits, settings, engine="fused", privacy_key=key)
        assert not list(tmp_path.iterdir())
        monkeypatch.setattr(assembly, "scale_of", refuse)
    (tmp_path / "new.key").write_text("no key")  # is found before clients send statistics
    for wrong, message in ((key, "contains no key"), (b"short", "has 5 bytes")):
        refuse_call(message, Experiment, federation(digits, clients=4), digits, settings, engine="fused", privacy_key=wrong)
