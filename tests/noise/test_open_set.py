"""Open-set inputs: samples of no class at clients, and every consumer of true labels."""

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.components.spec import FileText
from fnlkit.datasets import partitioning
from fnlkit.errors import InputError
from fnlkit.estimators.compare import compare
from fnlkit.experiment import references
from fnlkit.noise import inject, mean_requested_transition, summary
from fnlkit.results import evaluation

SHUFFLED = "open-set(data=digits, source=shuffled)"


def noisy(spec="openset-inputs(share=0.25, clients=0.5)", seed=0, dataset=SHUFFLED, **options):
    return inject(partitioning.federation(datasets.load(dataset), clients=4, **options), spec, seed=seed)


@pytest.fixture(scope="module")
def federation():
    return noisy()


def test_a_share_of_the_samples_of_some_clients_has_no_class(federation):
    clean = partitioning.federation(datasets.load(SHUFFLED), clients=4)
    assert clean.client_indices.max() < 1438 and (clean.true[clean.client_indices] >= 0).all()
    nothing = federation.true < 0
    assert np.array_equal(np.flatnonzero(nothing), np.arange(1438, 2876)) and len(federation.spare) == 1438 - 180
    held = [nothing[part].sum() for part in federation.clients]
    assert sorted(held) == [0, 0, 90, 90] and np.array_equal(np.array(held) > 0, federation.noise_client_noisy)
    assert federation.noise_client_level == pytest.approx(np.array(held) / [360, 360, 359, 359])
    for before, after in zip(clean.clients, federation.clients, strict=True):  # sizes and labels of a client are unchanged
        assert np.array_equal(clean.given[before], federation.given[after])
        assert np.array_equal(before[before == after], after[federation.true[after] >= 0])
    facts = summary(federation)
    assert facts["no_class"] == 180 and facts["wrong_share"] == facts["requested_share"] == 180 / 1438
    assert facts["transition_error"] == 0 and np.array_equal(federation.achieved_transition(), np.eye(10))
    assert "180 samples of no class" in repr(federation)


def test_equal_seeds_give_equal_samples_and_other_seeds_others(federation):
    assert np.array_equal(noisy().client_indices, federation.client_indices)
    assert not np.array_equal(noisy(seed=1).client_indices, federation.client_indices)


def test_noise_before_and_after_counts_samples_of_no_class_as_wrong(federation):
    after = inject(federation, "symmetric(eta=0.4)", seed=0)
    assert (after.true[federation.true < 0] == -1).all() and np.array_equal(after.client_indices, federation.client_indices)
    spare = federation.spare
    assert np.array_equal(after.given[spare], federation.given[spare])  # their labels have no meaning
    facts = summary(after)
    assert 0.4 < facts["wrong_share"] < 0.56 and facts["requested_share"] == pytest.approx(0.4 + 0.6 * 180 / 1438, abs=0.02)
    assert mean_requested_transition(after) == pytest.approx(0.6 * np.eye(10) + (1 - np.eye(10)) * 0.4 / 9)
    both = inject(inject(noisy("none"), "symmetric(eta=0.4)", seed=0), "openset-inputs(share=0.25)", seed=0)
    assert summary(both)["no_class"] == 360 and len(np.unique(both.client_indices)) == 1438
    twice = inject(both, "openset-inputs(share=0.25)", seed=0)
    assert summary(twice)["no_class"] > 500 and len(np.unique(twice.client_indices)) == 1438
    whole = inject(federation, "instance(eta=0.4)", seed=0, x=datasets.load(SHUFFLED).x_train)
    assert np.array_equal(whole.given[spare], federation.given[spare]) and summary(whole)["wrong_share"] > 0.4


def test_labels_without_declared_truth_are_true_except_of_samples_without_class():
    found = noisy(labels="observed")
    assert np.array_equal(found.true < 0, np.arange(2876) >= 1438)
    assert found.meta["truth"] and summary(found)["no_class"] == 180


def test_the_checksum_names_the_inputs_and_statistics_are_those_of_the_data():
    plain, first, other = (
        datasets.load(name) for name in ("digits", SHUFFLED, "open-set(data=digits, source=shuffled, number=1)")
    )
    assert len({plain.checksum, first.checksum, other.checksum}) == 3 and first.checksum == datasets.load(first.name).checksum
    assert (first.mean, first.std) == (plain.mean, plain.std)
    assert np.array_equal(first.x_train[:1438], plain.x_train) and not np.array_equal(
        first.x_train[1438:], other.x_train[1438:]
    )
    assert np.array_equal(first.x_test, plain.x_test) and np.array_equal(first.truth[:1438], plain.truth)


def test_shuffled_inputs_have_the_values_of_each_place_in_another_combination():
    data = datasets.load(SHUFFLED)
    real, inputs = (part.reshape(1438, -1) for part in np.split(data.x_train, 2))
    assert all(set(inputs[:, j]) <= set(real[:, j]) for j in range(64))
    assert inputs.mean(0) == pytest.approx(real.mean(0), abs=8)
    assert not (inputs[:, None, :] == real[None, :50]).all(-1).any()
    correlation = [np.corrcoef(part[:, [28, 36]].T)[0, 1] for part in (real, inputs)]  # neighbors in the center
    assert correlation[0] > 0.3 and abs(correlation[1]) < 0.1


def test_held_out_classes_are_no_classes_and_never_tested():
    plain, data = datasets.load("digits"), datasets.load("open-set(data=digits, classes=[8, 2])")
    held = np.isin(plain.y_train, [2, 8])
    assert data.class_names == list("01345679") and np.array_equal(data.truth < 0, held)
    names = np.array(data.class_names).astype(int)
    assert np.array_equal(names[data.truth[~held]], plain.y_train[~held])
    assert np.array_equal(names[data.y_test], plain.y_test[~np.isin(plain.y_test, [2, 8])])
    assert np.array_equal(data.x_test, plain.x_test[~np.isin(plain.y_test, [2, 8])])
    found = inject(partitioning.federation(data, clients=4), "openset-inputs(share=0.2)", seed=0)
    assert summary(found)["no_class"] == 232 and np.array_equal(
        found.true[found.client_indices] < 0, held[found.client_indices]
    )


def test_another_data_set_is_the_source(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "other.npz"
    np.savez(path, x_train=rng.integers(0, 17, (50, 8, 8, 1), np.uint8), y_train=np.arange(50) % 3)
    data = datasets.load(f'open-set(data=digits, source="{path}", size=30)')
    assert len(data.x_train) == 1468 and data.no_class.sum() == 30
    with np.load(path) as arrays:
        assert all((row == arrays["x_train"]).all((1, 2, 3)).any() for row in data.x_train[1438:])
    with pytest.raises(InputError, match="360 samples are to be replaced, but the data set has 30 unused inputs"):
        noisy("openset-inputs(share=0.25)", dataset=data.name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("open-set(data=digits)", "give `source`"),
        ("open-set(data=digits, source=shuffled, classes=[1])", "give `source`"),
        ("open-set(data=digits, source=heart)", "choose a source of the same form"),
        ("open-set(data=digits, source=digits, size=2000)", "has 1,438 training samples"),
        ("open-set(data=digits, classes=[10])", "no class '10'"),
        ("open-set(data=digits, classes=[0, 1, 2, 3, 4, 5, 6, 7, 8])", "1 classes would remain"),
        ("open-set(data=mriqc, source=shuffled)", "one class per sample, no votes"),
        ('open-set(data="open-set(data=digits, source=shuffled)", source=shuffled)', "no inputs of no class yet"),
    ],
)
def test_unusable_open_sets_are_refused(spec, message):
    with pytest.raises(InputError, match=message):
        len(datasets.load(spec).x_train)


@pytest.mark.parametrize(
    "name",
    [
        "open-set(data='mine.py:load', source=shuffled)",
        "open-set(data=digits, source='mine.py:load')",
        "votes(data='mine.py:load')",
    ],
)
def test_a_file_cannot_name_code_as_the_source(name, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("raise SystemExit('this code must not run')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="reading it runs that code"):
        datasets.load(FileText(name))


def test_the_noise_requires_clients_and_inputs():
    with pytest.raises(InputError, match="run `fnlkit partition` first"):
        inject(partitioning.empty(datasets.load(SHUFFLED)), "openset-inputs", seed=0)
    with pytest.raises(InputError, match="has 0 unused inputs"):
        noisy("openset-inputs", dataset="digits")


def test_held_out_samples_keep_their_class_and_files_say_so(federation):
    found = noisy("openset-inputs(share=0.5)", holdout=0.2)
    assert (found.true[np.concatenate(found.held_out)] >= 0).all() and summary(found)["no_class"] > 500
    found.extra["holdout_client"][found.spare[0]] = 0
    with pytest.raises(InputError, match="no class, for a held-out sample"):
        found.check()
    again = Federation.from_artifact(federation.to_artifact())
    assert np.array_equal(again.spare, federation.spare) and np.array_equal(again.true, federation.true)


def test_the_oracle_trains_as_if_these_samples_did_not_exist(federation):
    kept = [part[federation.true[part] >= 0] for part in federation.clients]
    without = Federation(**{**vars(federation), "client_indices": np.concatenate(kept), "extra": {},
                            "client_offsets": np.cumsum([0, *map(len, kept)]), "noise_client_level": None,
                            "noise_client_noisy": None})  # fmt: skip
    settings = {"rounds": 2, "epochs": 1, "fraction": 1.0, "say": None}
    oracle = fnlkit.train(federation, method="oracle", **settings)
    assert evaluation.weights_digest(oracle) == evaluation.weights_digest(fnlkit.train(without, method="oracle", **settings))
    assert evaluation.weights_digest(oracle) != evaluation.weights_digest(fnlkit.train(federation, method="fedavg", **settings))
    assert evaluation.summary(oracle)["label_accuracy_given"] == 1 and len(oracle.client_indices) == 1438 - 180
    only = noisy("openset-inputs(share=1, clients=0.25)")
    with pytest.raises(InputError, match="has only samples of no class"):
        references.arrange(only, {"truth"}, "oracle")


def test_a_run_counts_them_as_wrong_and_leaves_them_out_of_matrices(federation, tmp_path):
    run = fnlkit.train(federation, method="fedavg", rounds=2, fraction=1.0, memorization=True, say=None)
    nothing = 180 / 1438
    facts, arrays = evaluation.summary(run), evaluation.arrays(run)
    assert facts["label_accuracy_given"] == pytest.approx(1 - nothing) and facts["labels_repaired"] == 0
    assert arrays["label_confusion_given"].sum() == 1438 - 180
    assert arrays["client_level_given"] == pytest.approx(federation.noise_client_level)
    last = run.history[-1]
    assert last["label_accuracy"] == pytest.approx(1 - nothing) and last["global_noisy_correct"] == 0
    path = tmp_path / "run.pt"
    run.write(path)
    assert np.array_equal(Run.read(path).labels["true"], federation.true)
    resumed = fnlkit.train(federation, method="fedavg", rounds=3, fraction=1.0, memorization=True, say=None, resume=path)
    assert len(resumed.history) == 3


def test_estimates_are_compared_with_them_as_wrong(federation):
    found = fnlkit.estimate_noise(federation, "knn", say=None)
    facts = compare(found)
    wrong, flagged = (values[federation.client_indices] for values in (federation.true < 0, found.extra["estimate_flagged"]))
    assert facts["flag_recall"] == pytest.approx(flagged[wrong].mean()) and facts["flag_recall"] > 0.5
    assert facts["flag_precision"] == pytest.approx(wrong[flagged].mean()) and facts["sample_auc"] > 0.85
    assert compare(fnlkit.estimate_noise(federation, "knn", relabel=True, say=None))["label_accuracy"] <= 1 - 180 / 1438


def test_clients_without_any_sample_of_a_class_have_no_transition():
    facts = summary(noisy("openset-inputs(share=1.0)"))
    assert facts["wrong_share"] == 1 and facts["no_class"] == 1438 and facts["transition_error"] is None
