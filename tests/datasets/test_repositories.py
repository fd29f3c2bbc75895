"""Labels of people in copies of public repositories: made files in the published formats, and files that differ from them."""

import csv
import hashlib
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fnlkit import datasets, pipeline
from fnlkit.datasets import load
from fnlkit.datasets.repositories import REPOSITORIES
from fnlkit.errors import InputError
from tests.commands import refuse, succeed

DIGITS = load("digits")


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Return a function that writes a repository's files into the cache folder and declares their checksums."""
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))

    def write(name, files):
        folder = tmp_path / "cache" / REPOSITORIES[name].folder
        for file, raw in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(raw if isinstance(raw, bytes) else raw.encode())
        sums = {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in files}
        monkeypatch.setitem(REPOSITORIES, name, replace(REPOSITORIES[name], files=sums))
        return folder

    return write


def table(rows):
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def pickled(**arrays):
    out = io.BytesIO()
    torch.save(arrays, out)
    return out.getvalue()


def sentences(verdicts):
    """Return a table in the form of CrowdTruth's; a verdict is baseline, crowd, expert, test_partition."""
    names = ("baseline", "crowd", "expert", "test_partition")
    words = {"sentence": "aspirin treats a headache", "term1": "aspirin", "term2": "headache"}
    return table([{"SID": i, **words, **dict(zip(names, each, strict=True))} for i, each in enumerate(verdicts)])


def test_crowdtruth_has_adjudicated_sentences_and_three_labelers(publish):
    """The third adjudicated sentence is tested; sentence 1 is unclear and sentence 3 has no verdict."""
    verdicts = [("1", "-0.8", "-1", "-1"), ("1", "0.9", "1", "0"), ("-1", "0.6", "1", "1"), ("1", "0.7", "NA", "NA"),
                ("1", "-0.9", "1", "-1"), ("-1", "-0.9", "-1", "-1")]  # fmt: skip
    publish("crowdtruth", {"ground_truth_treat.csv": sentences(verdicts)})
    data = load("crowdtruth(relation=treat)")
    assert data.class_names == ["other", "treat"] and data.ids.tolist() == ["0", "2", "5"]
    assert data.y_train.tolist() == [1, 0, 0] and data.truth.tolist() == [0, 1, 0] and data.y_test.tolist() == [0]
    assert data.annotators == ["baseline", "crowd", "expert"] and data.votes.tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert load("crowdtruth(relation=treat, labels=crowd)").y_train.tolist() == [0, 1, 0]
    rows = load("votes(data=crowdtruth(relation=treat))")
    assert len(rows.y_train) == 9 and rows.truth.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def item(i, given, kept):
    """Return an item of VariErr with the labels that annotators gave, and those that they kept."""
    out = {"id": f"item{i}", "context": f"a dog runs {i}", "statement": "an animal moves", "label_set_round_2": sorted(kept)}
    for label in ("entailment", "neutral", "contradiction"):
        out[label] = [{"annotator": annotator} for annotator, name in given if name == label]
    return out | {"label_count_round_2": {label: kept.get(label) for label in ("entailment", "neutral", "contradiction")}}


def test_varierr_separates_errors_from_other_opinions(publish):
    """Items 0 to 3 and 6 are read; 4 without any kept label is not, and 5 is the fifth and tested."""
    same = ([(0, "entailment"), (1, "entailment")], {"entailment": 2})
    items = [
        item(0, [(0, "neutral"), (1, "entailment"), (1, "neutral"), (2, "contradiction")], {"entailment": 1, "neutral": 2})
    ]
    items += [item(i, *same) for i in (1, 2, 3)] + [item(4, [(3, "neutral")], {})] + [item(5, *same), item(6, *same)]
    publish("varierr", {"varierr.json": "".join(json.dumps(each) + "\n" for each in items)})
    data = load("varierr")
    names = np.array(data.class_names)
    first = data.sample_of == 0
    assert names[data.y_train[first]].tolist() == ["neutral", "entailment", "neutral", "contradiction"]
    assert names[data.truth[first]].tolist() == ["neutral", "entailment", "neutral", "neutral"]  # only an error differs
    assert data.fields["annotator"][first].tolist() == ["0", "1", "1", "2"]
    assert len(data.y_train) == 4 + 4 * 2 and names[data.y_test].tolist() == ["entailment"]
    federation = pipeline.partition("varierr", "annotators", say=None)
    assert federation.names == ["0", "1", "2"] and [len(part) for part in federation.clients] == [5, 6, 1]


def test_lewidi_has_votes_and_sites(publish):
    def items(votes, bot):
        made = {}
        for i, (names, each) in enumerate(votes):
            made[str(i)] = {"text": "hello you", "annotators": names, "annotations": each, "hard_label": i % 2,
                            "other_info": {"bot": bot[i]}}  # fmt: skip
        return json.dumps(made)

    train = items([("Ann2,Ann1", "1,-3"), ("Ann1", "-1"), ("Ann3,Ann2", "0,0")], ["X", "Y", "X"])
    # A vote twice in the test set, as in the published files.
    test = items([("Ann1,Ann1", "0,0"), ("Ann2", "-2")], ["X", "X"])
    folder = "LeWiDi_2-2023/ConvAbuse_dataset/ConvAbuse"
    publish("lewidi", {f"{folder}_train.json": train, f"{folder}_test.json": test})
    data = load("lewidi(name=ConvAbuse)")
    assert data.votes.tolist() == [[1, 0, -1], [1, -1, -1], [-1, 0, 0]] and data.annotators == ["Ann1", "Ann2", "Ann3"]
    assert (
        data.y_train.tolist() == [0, 1, 0]
        and data.y_test.tolist() == [0, 1]
        and data.fields["site"].tolist() == ["X", "Y", "X"]
    )
    assert data.truth is None and not data.test_verified


def test_security_bugs_have_labels_before_and_after_the_check(publish):
    files = {}
    for project in ("Ambari", "Camel", "Derby", "Wicket"):
        for kind, wrong in (("Noisy", 7), ("Clean", -1)):
            rows = [{"id": i, "summary": f"leak {i}", "description": "text", "security": int(i % 10 == 7 and i != wrong)}
                    for i in range(520)]  # fmt: skip
            files[f"{kind}_sbr_datasets/{project}.csv"] = table(rows)
    publish("security-bugs", files)
    data = load("security-bugs")
    assert (len(data.y_train), len(data.y_test), data.y_test.sum()) == (2000, 80, 8)
    assert np.flatnonzero(data.truth != data.y_train).tolist() == [7, 507, 1007, 1507] and data.truth.sum() == 200
    assert np.unique(data.fields["site"]).tolist() == ["Ambari", "Camel", "Derby", "Wicket"]


def test_cifar100n_has_a_site_for_each_worker(publish, tmp_path):
    """A list of numbers, as the coarse labels of the published file, is an array."""
    true, given = np.arange(20) % 4, (np.arange(20) + (np.arange(20) < 5)) % 4
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=true, x_test=x, y_test=true)
    labels = pickled(clean_label=true, noisy_label=given, noisy_coarse_label=given.tolist(), fine=[])
    workers = table([{"Image-batch": k, "Worker-id": worker} for k, worker in enumerate((7, 3, 7, 11))])
    publish("cifar100n", {"data/CIFAR-100_human.pt": labels, "side_info_cifar100N.csv": workers})
    federation = pipeline.partition(f'cifar100n(data="{tmp_path}/mine.npz")', "sites", say=None)
    assert dict(zip(federation.names, federation.wrong_share(), strict=True)) == {"11": 0.0, "3": 0.0, "7": 0.5}
    assert datasets.present("cifar100n") and not datasets.present("cifar10n")


def test_cifar10n_compares_the_true_labels(publish, tmp_path):
    labels = {"clean_label": DIGITS.y_train, "worse_label": (DIGITS.y_train + 1) % 10, "aggre_label": DIGITS.y_train}
    folder = publish("cifar10n", {"data/CIFAR-10_human.pt": pickled(**labels)})
    data = load("cifar10n(data=digits)")
    assert np.array_equal(data.truth, DIGITS.y_train) and (data.y_train != data.truth).all() and data.test_verified
    assert np.array_equal(load("cifar10n(data=digits, column=aggre_label)").y_train, DIGITS.y_train)
    assert np.array_equal(load(data.name).y_train, data.y_train)
    np.savez(tmp_path / "mine.npz", x_train=DIGITS.x_train, y_train=DIGITS.y_train, x_test=DIGITS.x_test, y_test=DIGITS.y_test)
    assert load(f'cifar10n(data="{tmp_path}/mine.npz", path="{folder}")').truth is not None
    np.savez(
        tmp_path / "other.npz", x_train=DIGITS.x_train, y_train=DIGITS.y_train[::-1], x_test=DIGITS.x_test, y_test=DIGITS.y_test
    )
    refuse(f"fnlkit partition --dataset 'cifar10n(data=\"{tmp_path}/other.npz\")'", tmp_path, "other labels than CIFAR-10")


def test_people_judge_a_test_set(publish):
    """Sample 3 is an error, 5 has the right label, 8 has neither and is left out."""
    verdicts = {3: (0, 4, 1), 5: (5, 0, 0), 8: (2, 1, 2)}
    guess = {i: int(DIGITS.y_test[i] + 1) % 10 for i in verdicts}
    entries = []
    for i, votes in verdicts.items():
        found = dict(zip(("given", "guessed", "neither"), votes, strict=True))
        entries.append({"id": i, "given_original_label": int(DIGITS.y_test[i]), "our_guessed_label": guess[i], "mturk": found})
    publish("label-errors", {"mturk/mnist_mturk.json": json.dumps(entries)})
    data = load("label-errors(name=mnist, data=digits)")
    assert len(data.y_train) == len(DIGITS.y_test) - 1 and "8" not in data.ids
    assert data.ids[data.truth != data.y_train].tolist() == ["3"] and data.truth[3] == guess[3]
    assert np.array_equal(data.x_train[8], DIGITS.x_test[9]) and np.array_equal(data.x_test, DIGITS.x_train)
    entries[0]["given_original_label"] = (entries[0]["given_original_label"] + 1) % 10
    publish("label-errors", {"mturk/mnist_mturk.json": json.dumps(entries)})
    with pytest.raises(InputError, match="other labels than the test set of mnist"):
        load("label-errors(name=mnist, data=digits)")


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_card_has_license_checksums_and_the_step_to_obtain_the_files(name, tmp_path):
    text, source = datasets.card(name), REPOSITORIES[name]
    assert source.url in text and "icense" in text and f"git clone {source.url}" in text and source.commit[:12] in text
    assert [digest for digest in source.files.values() if digest not in text] == []


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_missing_repository_names_the_remedy(name, tmp_path):
    more = {
        "lewidi": "name=ArMIS",
        "label-errors": "name=mnist, data=digits",
        "cifar10n": "data=digits",
        "cifar100n": "data=digits",
    }
    assert not datasets.present(name, cache=tmp_path)
    with pytest.raises(InputError, match=f"git clone {REPOSITORIES[name].url} {tmp_path}") as error:
        load(f"{name}({more.get(name, '')})", cache=tmp_path)
    assert "\n" not in str(error.value)


def test_missing_and_changed_files_and_unknown_names_are_one_line(publish, tmp_path):
    spec = "crowdtruth"
    refuse(f"fnlkit data get {spec}", tmp_path, f"git clone {REPOSITORIES[spec].url}", "no ground_truth_cause.csv")
    folder = publish(spec, {"ground_truth_cause.csv": sentences([("1", "1", "1", "1"), ("-1", "1", "-1", "-1")] * 4)})
    assert "0.0 % of the training labels" in succeed(f"fnlkit data get {spec}", tmp_path).stdout
    facts = json.loads(succeed(f"fnlkit data info '{spec}(labels=crowd)' --json", tmp_path).stdout)
    assert (facts["wrong_labels"], facts["annotators"], facts["sites"]) == (0.5, 3, None)
    (folder / "ground_truth_cause.csv").write_text("changed")
    refuse(f"fnlkit data get {spec}", tmp_path, "SHA-256", "checkout")
    refuse(f"fnlkit data get 'crowdtruth(path=\"{tmp_path}/none\")'", tmp_path, "no ground_truth_cause.csv")
    refuse("fnlkit data get 'crowdtruth(relation=cures)'", tmp_path, "cause or treat")
    refuse("fnlkit data get crowdtruht", tmp_path, "did you mean 'crowdtruth'")
    refuse("fnlkit data get lewidi", tmp_path, "needs 'name'")
