"""Sums in secret: the server sees masked numbers and one mean, and a site refuses what would show more."""

import importlib
import io

import numpy as np
import pytest
import torch

from fnlkit.experiment import Experiment, Settings
from fnlkit.sites.site import ledger
from tests.commands import refuse_call
from tests.experiment.test_experiment import problem

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict  # noqa: E402
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key  # noqa: E402
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen  # noqa: E402
from flwr.supercore.primitives.asymmetric import generate_key_pairs  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from fnlkit.federated.server.clients import TooManyLost  # noqa: E402
from fnlkit.sites.secret import MODULUS, STEPS, common, from_entries, masks, to_entries, unit_of  # noqa: E402
from fnlkit.sites.site import secret  # noqa: E402
from tests.sites.deployed import CANARY, Deployed, gather, lines, request, sent, told  # noqa: E402

STEP = 2 / STEPS  # of a quantized entry, in units of clip


def listened(grid):
    """Return a list to which the masked vectors of all replies are added."""
    heard, pull = [], grid.pull_messages

    def pulled(numbers):
        for reply in pull(numbers):
            if not reply.has_error():
                parts = reply.content.config_records.get("secaggplus_configs", {}).get("masked_params", [])
                heard.extend(np.load(io.BytesIO(part)) for part in parts[1:])  # the first is what it counts
            yield reply

    grid.pull_messages = pulled
    return heard


def test_sites_end_where_open_updates_do(place, tmp_path, capsys):
    runs, masked = [], []
    for name, more in {"open": {}, "hidden": {"protect": "secagg(clip=2)"}, "again": {"protect": "secagg(clip=2)"}}.items():
        deployed = Deployed(place, tmp_path / name, "flr", rounds=1, **more)
        masked.append(listened(deployed.grid))
        runs.append(deployed.train())
    plain, hidden, again = runs
    apart = (hidden.weights - plain.weights).abs().max().item()
    assert 0 < apart < 2 * STEP and not hidden.rejected and hidden.finished
    # The masks are drawn anew, and the mean is the same.
    assert torch.equal(hidden.weights, again.weights)
    assert [len(each) for each in masked] == [0, 3, 3]
    for one, other in zip(*masked[1:], strict=True):
        assert one.size == hidden.weights.numel() and (one == other).mean() < 0.01
        # Uniform on 0..2^62 - 1, whose mean has a deviation of 2^62 / sqrt(12 n); unmasked all are below 2^52.
        assert abs(one.mean() / MODULUS - 0.5) < 5 / np.sqrt(12 * one.size) and one.max() > 0.9 * MODULUS
    assert hidden.traffic.bytes_up == sum(hidden.traffic.sent.values()) > 1.2 * plain.traffic.bytes_up > 0
    for k in range(3):
        left = ledger.read_ledger(str(tmp_path / f"hidden/memory-{k}/left.jsonl"))
        assert [line["told"]["masked"] for line in left if "masked" in line.get("told", {})] == [
            ["pk1", "pk2"], ["ctxts", "dsts"], ["masked_params"], ["nids", "shares"]
        ]  # fmt: skip


@pytest.mark.parametrize(("method", "model"), [("lda", "auto"), ("fedsums(passes=1, steps=2)", "fourier(features=20)")])
def test_sums_of_sites_end_where_open_sums_do(method, model, place, tmp_path, capsys):
    about = {"rounds": 1, "model": model, "precision": "fp32", "fraction": 0.1, "protect": "secagg", "max_samples": 10_000}
    deployed = Deployed(place, tmp_path, method, **about)
    asked_before = deployed.stop_before_replies(12)
    with pytest.raises(KeyboardInterrupt):
        deployed.train()
    masked = listened(deployed.grid)
    run, plain = deployed.train(), deployed.simulated()  # a run that was stopped begins again
    assert run.finished and not run.rejected and len(asked_before) > 12
    assert "fraction" not in capsys.readouterr().err  # sums are those of all sites
    np.testing.assert_allclose(run.weights, plain.weights, atol=1e-4 * plain.weights.abs().max())
    assert len(masked) == 3 * len(plain.log) and max(values.max() for values in masked) > 0.9 * MODULUS
    assert all(abs(values.mean() / MODULUS - 0.5) < 5 / np.sqrt(12 * values.size) for values in masked)
    # The same steps are refused if they are asked for openly, and sums of other sizes do not come back.
    step = request(deployed, importlib.import_module("fnlkit.methods.fedsums").reply_products, weights=torch.zeros(0))
    assert told(sent(deployed, step)) == "failed" and "not masked" in lines(deployed)[-1]["told"]["refused"]


def test_sums_are_restored_from_masked_entries(tmp_path):
    rng, unit = np.random.default_rng(0), unit_of(10_000)
    sums = [{"a": torch.from_numpy(rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-4, 6, (3, 4))),
             "b": torch.tensor([1e-3 * k, 5.0])} for k in range(5)]  # fmt: skip
    mean, inside, *_ = gather([to_entries(each, unit) for each in sums], [1] * 5, REQUESTS, folder=tmp_path)
    for name, values in from_entries(mean.numpy(), {"a": (3, 4), "b": (2,)}, unit).items():
        np.testing.assert_allclose(5 * values, sum(each[name].double() for each in sums), rtol=0, atol=2e-6)
    alone = from_entries(to_entries({"a": sums[0]["a"]}, unit), {"a": ("n", 4)}, unit)
    np.testing.assert_allclose(alone["a"], sums[0]["a"], rtol=1e-12)
    assert len(inside) == 5 and from_entries(to_entries({}, unit), {}, unit) == {}
    with pytest.raises(ValueError, match="not those"):
        from_entries(mean.numpy(), {"a": (3, 4), "b": (3,)}, unit)
    cut = to_entries({"a": torch.tensor([2 * unit, -np.inf, np.nan, 1.0])}, unit)
    np.testing.assert_allclose(cut, [1, -1, 0, 1 / unit])
    with pytest.raises(secret.Refused):
        secret.masked_values({"weights": torch.zeros(2)}, {"weights": torch.zeros(2)}, secret.Terms(1.0, 1, 1.0, unit))


REQUESTS = [{"run": "a", "round": 0, "weights": torch.zeros(2), "visits": [[10 + k, -1, -1, {}]]} for k in range(7)]


def test_secure_mean_of_the_remaining_sites():
    rng = np.random.default_rng(0)
    updates, weights = rng.uniform(-1, 1, (5, 300)), [7, 100, 30, 31, 1]
    for fails in ((), (1,), (1, 4)):
        mean, inside, failed, _ = gather(updates, weights, REQUESTS, fails)
        there = [k for k in range(5) if k not in fails]
        wanted = np.average(updates[there], axis=0, weights=np.array(weights)[there])
        # Each entry and each weight is rounded, by less than a step.
        bound = 3 * len(there) * STEP * max(weights) / sum(weights[k] for k in there)
        assert np.abs(mean.numpy() - wanted).max() < bound and sorted(inside) == [10 + k for k in there]
        assert {node: str(found) for node, found in failed.items()} == {10 + k: "failed: RuntimeError" for k in fails}
    mean, inside, failed, _ = gather(updates, weights, REQUESTS, (0, 1, 2))
    assert mean is None  # the sum of two updates would reveal each to the other client


@pytest.mark.parametrize("stage", ["setup", "share_keys", "collect_masked_vectors", "unmask"])
def test_a_site_that_is_lost_in_any_stage_costs_its_update_only(stage, tmp_path):
    updates = np.random.default_rng(0).uniform(-1, 1, (7, 30))
    for more in (), (2,):  # a second site is lost later
        mean, inside, failed, _ = gather(updates, [1] * 7, REQUESTS, [(1, stage), *more])
        there = [k for k in range(7) if k not in more and (k != 1 or stage == "unmask")]
        assert sorted(inside) == [10 + k for k in there] and set(failed) == {11, *(10 + k for k in more)}
        np.testing.assert_allclose(mean, updates[there].mean(0), atol=1e-12)
    # The difference of the sums of all and of all but one would be the sum of a site.
    assert (gather(updates, [1] * 7, REQUESTS, [(1, stage)], folder=tmp_path)[0] is None) == (stage != "unmask")


def test_masks_of_sums_cancel_only_among_sites_with_one_history(tmp_path):
    """A server could ask some sites so that their next replies are zero, and read the sum of the others."""
    updates = np.random.default_rng(0).uniform(-1, 1, (3, 30))
    first, second = ([{"run": "a", "round": r, "weights": torch.zeros(2), "visits": [[10 + k, r - 1, -1, {}]]}
                      for k in range(3)] for r in (0, 1))  # fmt: skip
    mean, *_ = gather(updates, [1] * 3, first, folder=tmp_path)
    np.testing.assert_allclose(mean, updates.mean(0), atol=1e-12)
    history = common(first[0], {}, "")
    mean, *_ = gather(updates, [1] * 3, second, folder=tmp_path, history=history)
    np.testing.assert_allclose(mean, updates.mean(0), atol=1e-12)
    mean, _, failed, _ = gather(updates, [1] * 3, second, folder=tmp_path, history=history)  # not the last round any more
    assert mean is None and {failure.name for failure in failed.values()} == {"Refused"}
    odd = [first[0], first[1] | {"weights": torch.ones(2)}, first[2]]
    for requests in odd, second:  # the second round of sites that were asked for different things
        mean, *_ = gather(updates, [1] * 3, requests, folder=tmp_path, history=history if requests is second else "")
        assert np.abs(mean.numpy() - updates.mean(0)).max() > 1


def test_two_means_reveal_the_site_that_only_one_contains():
    """A limit that docs/deployment-protection.md states: the difference of two sums is the update of a site."""
    updates, weights = np.random.default_rng(0).uniform(-1, 1, (5, 30)), [7, 100, 30, 31, 10]
    (whole, *_), (rest, *_) = (gather(updates, weights, REQUESTS, fails) for fails in ((), (1,)))
    found = (whole.numpy() * sum(weights) - rest.numpy() * (sum(weights) - 100)) / 100
    assert np.abs(found - updates[1]).max() < 1e-3


def asked(config):
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    records = {"secaggplus_configs": ConfigRecord(config)} if config else {}
    return Message(RecordDict(records), 1, "train"), Context(1, 1, {}, RecordDict(), {})


SETUP = {"stage": "setup", "sample_num": 5, "share_num": 5, "threshold": 3, "clipping_range": 1.0,
         "target_range": STEPS, "mod_range": MODULUS, "max_weight": 1.0}  # fmt: skip


TERMS = secret.Terms(1.0, 5, 1.0)


@pytest.mark.parametrize("config", [
    SETUP | {"max_weight": 1e12}, SETUP | {"max_weight": 0.5}, SETUP | {"clipping_range": 2.0},
    {name: value for name, value in SETUP.items() if name != "max_weight"},
    SETUP | {"share_num": 2, "sample_num": 2}, SETUP | {"threshold": 2}, SETUP | {"mod_range": 2**23},
    {"stage": "share_keys", "1": [b"a", b"b"], "2": [b"c", b"d"]},
    {"stage": "unmask", "active_nids": [1, 2, 3], "dead_nids": [3]},
    {"stage": "unmask", "active_nids": [1, 2], "dead_nids": []},
])  # fmt: skip
def test_a_site_refuses_requests_that_reveal_more(config):
    refuse_call("", secret.answer, *asked(config), None, TERMS, error=secret.Refused)
    assert secret.answer(*asked(SETUP), None, TERMS).content["secaggplus_configs"].keys() == {"pk1", "pk2"}


@pytest.mark.parametrize("config", [
    SETUP | {"share_num": 4, "sample_num": 4}, {"stage": "share_keys"} | {str(k): [b"a", b"b"] for k in range(4)},
    {"stage": "unmask", "active_nids": [1, 2, 3, 4], "dead_nids": [5]},
    {"stage": "unmask", "active_nids": [1, 2, 3, 4], "dead_nids": []},
])  # fmt: skip
def test_masked_sums_are_those_of_all_sites(config):
    terms = secret.Terms(1.0, 1, 1.0, 1.0, sites=5)
    refuse_call("all sites", secret.answer, *asked(config), None, terms, error=secret.Refused)
    assert secret.answer(*asked(SETUP), None, terms).content["secaggplus_configs"].keys() == {"pk1", "pk2"}


def test_masks_hang_on_all_of_their_seed():
    """Flower's own fold it to 32 bits, of which a shared key, being text, fills 28: those can be tried one by one."""
    seed = bytes(range(32))
    other = seed[4:8] + seed[:4] + seed[8:]
    shapes = [(1,), (5, 200), ()]
    key, partner = generate_key_pairs(), generate_key_pairs()
    assert max(generate_shared_key(key[0], partner[1])) < 128  # the highest bit of each byte is none of the 32
    theirs = [pseudo_rand_gen(each, 2**32, shapes) for each in (seed, other)]
    assert all(np.array_equal(a, b) for a, b in zip(*theirs, strict=True))
    one, two = masks(seed, 2**32, shapes), masks(other, 2**32, shapes)
    assert [values.shape for values in one] == shapes and not (one[1] == two[1]).any()
    assert all(np.array_equal(a, b) for a, b in zip(one, masks(seed, 2**32, shapes), strict=True))
    counts = np.histogram(one[1], 10, (0, 2**32))[0]
    assert one[1].min() >= 0 and abs(counts - 100).max() < 60


def test_an_update_that_is_too_long_or_weighs_too_much_stays():
    mean, _, failed, _ = gather(np.full((5, 3), 1.1), [1] * 5, REQUESTS)
    assert mean is None and {found.name for found in failed.values()} == {"AboveClip"} and len(failed) == 5
    updates = np.zeros((5, 3))
    updates[2, 0] = np.nan
    mean, inside, failed, _ = gather(updates, [1] * 5, REQUESTS)
    assert [found.name for found in failed.values()] == ["AboveClip"] and 12 not in inside and mean.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("more", "why"), [
    ({"method": "fedcorr"}, "reads each client's reply"), ({"method": "fedefc"}, "sends more than weights"),
    ({"fraction": 0.5}, "`fraction`"), ({"method": "fedem"}, "no protection masks them"),
    ({"method": "fedsums", "model": "auto", "protect": "none"}, "add `protect='secagg'`"),
    ({"method": "fedsums", "model": "auto", "protect": "secagg(clip=2)"}, "`clip` limits updates"),
    ({"method": "fedsums"}, "omit the network"), ({"method": "fedsums", "model": "auto", "select": "label-wave"}, "`select`"),
    ({"aggregator": "median"}, "compares the clients' models"), ({"optimizer": "scaffold"}, "reads each client's model"),
])  # fmt: skip
def test_what_needs_single_replies_is_refused_before_a_project_is_written(more, why, place, tmp_path):
    refuse_call(why, Deployed, place, tmp_path, **{"method": "fedavg", "protect": "secagg"} | more)


def test_cohorts_too_small_to_hide_a_client_are_refused():
    simulated = Settings(method="fedavg", model="mlp(hidden=4)", rounds=1, fraction=1.0, protect="secagg")
    refuse_call("real sites", Experiment(*problem(), simulated, engine="sequential").run)
    small = Settings(method="fedavg", rounds=1, fraction=0.01, protect="secagg")
    refuse_call("`fraction`", Experiment, *problem(), small, engine="sequential")


def test_a_site_that_masks_answers_nothing_else(place, tmp_path, capsys):
    """A server that asks such a site for an open reply gets none."""
    deployed = Deployed(place, tmp_path, "fedavg", rounds=1, protect="secagg")
    open_one = {"run": "0" * 16, "round": 0, "seed": 0, "weights": torch.zeros(2), "steps": [], "broadcast": {}, "visits": []}
    assert sent(deployed, open_one, node=100)["replies"] == [[0, ("failure", "failed", "Refused", "")]]


@pytest.mark.parametrize("broken", ["memory", "data"])
def test_a_failing_site_is_named_without_its_error_text(broken, place, tmp_path, capsys):
    """Of three sites two are too few, so the run stops, and goes on when the site is mended."""
    deployed = Deployed(place, tmp_path, "fedavg", rounds=1, protect="secagg")
    wrong = tmp_path / CANARY
    wrong.write_text("no folder and no data")
    answer = deployed.grid.app

    def other(message, context):
        if message.metadata.message_type == "train" and context.node_id == 101:
            context = Context(1, 101, context.node_config | {broken: str(wrong)}, context.state, context.run_config)
        return answer(message, context)

    deployed.grid.app = other
    refuse_call(r"site-1: (failed|its site cannot be opened): \w+", deployed.train, error=TooManyLost)
    assert deployed.grid.left and not any(CANARY.encode() in each for each in deployed.grid.left)
    deployed.grid.app = answer
    assert deployed.train().finished
