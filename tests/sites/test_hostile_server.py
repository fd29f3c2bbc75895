"""A server that uses all replies of a site's table recovers what the table reveals, and nothing beyond it."""

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from benchmarks import hostile_server  # noqa: E402
from fnlkit.audits.site import judging  # noqa: E402
from fnlkit.sites.site import audit  # noqa: E402

ATTACKS = {attack.name: attack for attack in hostile_server.ATTACKS}


def cells_of(name, monkeypatch):
    """Return the shares of samples in percent, and the rest of the line, of an attack with few visits."""
    monkeypatch.setattr(hostile_server, "VISITS", 3)
    line = list(hostile_server.report(attacks=[ATTACKS[name]]))[2].removeprefix(name).split()
    sites = len(hostile_server.SIZES)
    samples, values = ([float(word) for word in line[a : a + sites]] for a in (0, sites))
    return samples, values, [int(word.replace(",", "")) for word in line[3 * sites : 3 * sites + 2]]


def test_open_weights_reveal_samples(monkeypatch):
    """Without this control, an attack that never works would find nothing either."""
    samples, _, (answered, refused) = cells_of("training on traps", monkeypatch)
    assert samples[0] == 100 and answered == 15 and not refused


def test_scores_of_samples_reveal_all_samples(monkeypatch):
    assert cells_of("energy of each sample", monkeypatch)[0] == [100] * len(hostile_server.SIZES)


def test_classifiers_of_an_audit_reveal_a_value_only_without_the_limit(monkeypatch):
    """Counts in steps of five are thresholds, which need many classifiers; a site answers one."""
    monkeypatch.setattr(hostile_server, "SIZES", (4, 100))
    _, values, (answered, refused) = cells_of("classifiers of an audit", monkeypatch)
    assert values == [0, 0] and answered <= 4 and refused >= 2
    monkeypatch.setattr(audit, "RUNS", 10**6)
    monkeypatch.setattr(audit, "_ONCE", False)
    # A site's own model, most of the time of a reply, does not depend on the server's classifier.
    models, train = {}, judging.judge_within
    own = lambda samples, *rest: models.get(len(samples.y)) or models.setdefault(len(samples.y), train(samples, *rest))  # noqa: E731
    monkeypatch.setattr(judging, "judge_within", own)
    _, values, (answered, _) = cells_of("classifiers of an audit", monkeypatch)
    assert values[1] > 0 and answered > 30


@pytest.mark.parametrize(
    "name",
    [
        "training on traps, secagg",
        "training on traps, task audit",
        "energy of each sample, fedavg",
        "requests outside the table",
        "open sums instead of masked ones",
    ],
)
def test_nothing_beyond_the_table_is_answered(name, monkeypatch):
    samples, values, (answered, refused) = cells_of(name, monkeypatch)
    assert not any(samples) and not any(values) and not answered and refused


@pytest.mark.parametrize(
    "name",
    ["evaluate with changed weights", "sums and moments of an audit", "moving centers of an audit", "sums of changed data"],
)
def test_counts_and_means_reveal_no_sample(name, monkeypatch):
    samples, values, _ = cells_of(name, monkeypatch)
    assert not any(samples) and not any(values)
