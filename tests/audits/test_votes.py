"""Votes of annotation tools land on the right samples on every route, and no consensus depends on their order."""

import csv
import json

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fnlkit
from fnlkit import InputError
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.consensus import consensus_of_rows
from fnlkit.audits.votes import read_votes
from fnlkit.core import registry
from fnlkit.estimators import likelihood
from fnlkit.federated.client.client import Client
from fnlkit.federated.engines import make
from fnlkit.methods import fedem
from fnlkit.pipeline.inputs import read_inputs
from tests import toy
from tests.commands import refuse, refuse_call, succeed

# ---- votes from exports of annotation tools land on the right samples, on every route
CLASSES = ["cat", "dog", "emu"]
IDS = [f"p-{i}" for i in range(1, 49)]


def federation_of(ids, **extra):
    """Return two sites of 24 samples with these ids."""
    size = len(ids)
    meta = {"class_names": CLASSES, "client_names": ["Aix", "Bonn"]}
    extra = {"sample_id": np.array(list(map(str, ids)))} | extra
    return Federation("d", 3, np.array([0, size // 2, size]), np.arange(size), np.zeros(size, np.int64), extra=extra, meta=meta)


def label_of(i, person=0):
    return CLASSES[(i + (person if i % 7 == 0 else 0)) % 3]


def expected(samples, people):
    votes = np.full((48, people), -1)
    for i in samples:
        votes[i - 1] = [CLASSES.index(label_of(i, person)) for person in range(people)]
    return votes


def annotation(number, person, choices, **more):
    """Return an annotation as in Label Studio's task format; `choices` is {control: class}."""
    result = [{"id": f"r{number}", "type": "choices", "from_name": name, "to_name": "image", "origin": "manual",
               "value": {"choices": [word]}} for name, word in choices.items()]  # fmt: skip
    when = {"created_at": "2026-03-09T21:52:49.513742Z", "updated_at": "2026-03-09T22:16:08.746926Z"}
    by = {"id": person, "email": f"{'ab'[person]}@x.org", "first_name": "", "last_name": ""}
    state = {"was_cancelled": False, "ground_truth": False, "lead_time": 4.288, "task": 1}
    return {"id": number, "completed_by": by, "result": result, **state, **when, **more}


def tasks_of(samples, tool=20, **data):
    """Return an export as JSON: two annotators, the tool's number in `id`, the sample in `data`."""
    tasks = []
    for i in samples:
        own = {name: value(i) for name, value in data.items()} or {"sample_id": i}
        made = [annotation(1000 + 2 * i + person, person, {"kind": label_of(i, person)}) for person in (0, 1)]
        tasks.append({"id": i + tool, "data": own, "annotations": made, "drafts": [], "predictions": [], "meta": {},
                      "inner_id": i, "total_annotations": 2, "cancelled_annotations": 0, "total_predictions": 0})  # fmt: skip
    return tasks


def min_of(tasks):
    """Return JSON-MIN as label_studio_converter writes it: the data, the tool's `id` over it, and a key per control."""
    rows = []
    for task in tasks:
        for made in task["annotations"]:
            if not made["was_cancelled"]:
                record = {**task["data"], "id": task["id"]}
                for result in made["result"]:
                    choices = result["value"]["choices"]
                    record[result["from_name"]] = choices[0] if len(choices) == 1 else {"choices": choices}
                rows.append(record | {"annotator": made["completed_by"]["id"], "annotation_id": made["id"],
                                      **{name: made[name] for name in ("created_at", "updated_at", "lead_time")}})  # fmt: skip
    return rows


def csv_of(tasks, path):
    """Write the CSV of label_studio_converter: columns in alphabetic order."""
    rows = [{**row, "annotator": "ab"[row["annotator"]] + "@x.org", "was_cancelled": False} for row in min_of(tasks)]
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, sorted({name for row in rows for name in row}), quoting=csv.QUOTE_NONNUMERIC)
        table.writeheader()
        table.writerows(rows)


def write(kind, tasks, folder):
    """Write tasks as an export and return its path."""
    path = folder / f"votes.{'csv' if kind == 'csv' else 'json'}"
    if kind == "csv":
        csv_of(tasks, path)
    else:
        path.write_text(json.dumps(min_of(tasks) if kind == "json-min" else tasks))
    return path


@pytest.mark.parametrize("kind", ["csv", "json", "json-min"])
def test_votes_land_on_the_sample_and_not_on_the_number_of_the_task(kind, tmp_path):
    """Ids 1 to 48; the tool numbers the tasks from 21, the samples are 1 to 30."""
    federation = federation_of(range(1, 49))
    path = write(kind, tasks_of(range(1, 31)), tmp_path)
    if kind == "csv":
        refuse_call(r"'id' \(56 of 60 rows\), 'sample_id' \(60 of 60 rows\)", read_votes, path, federation)
    for column in ["sample_id"] if kind == "csv" else [None, "sample_id"]:
        votes, names = read_votes(path, federation, sample_column=column)
        assert len(names) == 2 and (votes == expected(range(1, 31), 2)).all()


@pytest.mark.parametrize("kind", ["csv", "json", "json-min"])
@pytest.mark.parametrize("tool", [0, 20])
def test_paths_win_over_the_number_of_the_task(kind, tool, tmp_path):
    paths = np.array([f"scans/{i}.png" for i in range(1, 49)])
    federation = federation_of(range(1, 49), sample_path=paths)
    tasks = tasks_of(range(1, 31), tool, image=lambda i: f"/data/upload/7/0a1b2c3d-{i}.png", age=lambda i: 2 * i)
    votes, _ = read_votes(write(kind, tasks, tmp_path), federation)
    assert (votes == expected(range(1, 31), 2)).all()


@pytest.mark.parametrize(("kind", "message"), [("csv", "'id'.*number of the task"), ("json-min", "no sample 'other-1.png'")])
def test_the_number_of_the_task_alone_is_not_taken_for_the_sample(kind, message, tmp_path):
    path = write(kind, tasks_of(range(1, 31), 1, image=lambda i: f"other-{i}.png"), tmp_path)
    refuse_call(message, read_votes, path, federation_of(range(1, 49)))
    votes, _ = read_votes(path, federation_of(range(2, 50)), sample_column="id")
    assert (votes == expected(range(1, 31), 2)).all()


def test_the_command_the_option_and_python_agree(tmp_path):
    federation = federation_of(range(1, 49))
    federation.write(tmp_path / "fed.npz")
    path, wanted = write("csv", tasks_of(range(1, 31)), tmp_path), expected(range(1, 31), 2)
    done = refuse("fnlkit consensus fed.npz votes.csv -o agreed.npz", tmp_path, "'id'", "'sample_id'", "--sample-column")
    assert len(done.stderr.strip().splitlines()) == 1 and not (tmp_path / "agreed.npz").exists()
    succeed("fnlkit consensus fed.npz votes.csv --sample-column sample_id -o agreed.npz", tmp_path)
    assert (Federation.read(str(tmp_path / "agreed.npz")).extra["votes"] == wanted).all()
    frame = pandas.read_csv(path)
    assert (fnlkit.consensus(federation, frame, sample_column="sample_id").federation.extra["votes"] == wanted).all()
    assert (fnlkit.consensus(federation, frame.drop(columns="id")).federation.extra["votes"] == wanted).all()
    wide = pandas.DataFrame({"id": range(21, 51), "sample_id": range(1, 31), "ada": [label_of(i) for i in range(1, 31)]})
    for ambiguous in (frame, wide):
        refuse_call("several columns name different samples", fnlkit.consensus, federation, ambiguous)
    found = fnlkit.consensus(federation, wide, sample_column="sample_id")
    assert found.annotators == ["ada"] and (found.federation.extra["votes"] == expected(range(1, 31), 1)).all()


def test_verified_samples_and_predictions_follow_the_same_rule(tmp_path):
    digits = fnlkit.datasets.load("digits")
    rows = [f"{i + 5},{i},{digits.y_train[i]}" for i in range(20)]
    (tmp_path / "gold.csv").write_text("\n".join(["id,sample,label", *rows]))
    refuse("fnlkit partition --gold gold.csv -o fed.npz", tmp_path, "'id'", "'sample'", "--sample-column")
    succeed("fnlkit partition --gold gold.csv --sample-column sample -o fed.npz", tmp_path)
    federation = fnlkit.load(tmp_path / "fed.npz")
    gold = federation.extra["gold_label"]
    assert (gold[:20] == digits.y_train[:20]).all() and (gold[20:] == -1).all()
    frame = pandas.DataFrame(np.full((1438, 10), 0.1), columns=list(map(str, range(10))))
    frame.to_csv(tmp_path / "p.csv")
    pandas.read_csv(tmp_path / "p.csv").to_csv(tmp_path / "p.csv")  # its columns "Unnamed: 0" are no class and no sample
    for source in (frame.assign(sample=np.arange(1438)), tmp_path / "p.csv"):
        assert np.isfinite(read_inputs(federation, probabilities=source).probabilities).all()
    with pytest.raises(InputError, match="several columns name different samples: 'sample' .*'id'"):
        wrong = frame.assign(sample=np.arange(1438), id=np.arange(1438)[::-1])
        np.asarray(read_inputs(federation, probabilities=wrong).probabilities)


def test_votes_of_label_studio_count_once_per_annotator(tmp_path):
    """Canceled, unlabeled and predicted answers are no votes; of two annotations of a person, the last update counts."""
    federation = federation_of(IDS)
    tasks = tasks_of(range(1, 11), sample_id=lambda i: f"p-{i}")
    tasks[0]["annotations"].append(annotation(1, 0, {"kind": "emu"}, updated_at="2026-03-10T08:00:00Z"))
    tasks[1]["annotations"].insert(0, annotation(2, 1, {"kind": "emu"}, updated_at="2026-03-01T08:00:00Z"))
    for label, day in (("emu", 8), ("dog", 9)):  # the newest label, of March 10, is also that of March 8
        tasks[0]["annotations"].append(annotation(1, 0, {"kind": label}, updated_at=f"2026-03-0{day}T08:00:00Z"))
    tasks[2]["annotations"][1]["was_cancelled"] = True
    tasks[3]["annotations"][0]["result"] = []
    tasks[4]["annotations"] = []
    tasks[5]["predictions"] = [{"model_version": "m", "result": annotation(3, 0, {"kind": "emu"})["result"], "score": 0.9}]
    notes = []
    found = fnlkit.consensus(federation, write("json", tasks, tmp_path), say=notes.append)
    wanted = expected(range(1, 11), 2)
    wanted[0, 0], wanted[2, 1], wanted[3, 0], wanted[4] = 2, -1, -1, -1
    assert found.annotators == ["a@x.org", "b@x.org"] and (found.federation.extra["votes"] == wanted).all()
    assert len(notes) == 3 and all(note.startswith("1 ") for note in notes)
    votes, _ = read_votes(write("json-min", [task for task in tasks if task["annotations"]], tmp_path), federation)
    assert (votes == wanted).all()
    del tasks[0]["annotations"][3:]
    tasks[0]["annotations"][2].pop("updated_at")
    refuse_call("task 1: a@x.org has a vote on 'p-1'", read_votes, write("json", tasks, tmp_path), federation)
    tasks[0]["annotations"] = [annotation(1, 0, {"kind": "emu"}) | {"completed_by": None}]
    refuse_call("task 1: no annotator", read_votes, write("json", tasks, tmp_path), federation)


@pytest.mark.parametrize("kind", ["csv", "json", "json-min"])
def test_the_question_whose_answers_are_classes_is_used(kind, tmp_path):
    federation = federation_of(IDS)
    federation.write(tmp_path / "fed.npz")
    tasks = tasks_of(range(1, 31), sample_id=lambda i: f"p-{i}")
    for task in tasks:
        for made in task["annotations"]:
            made["result"] += annotation(0, 0, {"certainty": "sure"})["result"]
    votes, _ = read_votes(write(kind, tasks, tmp_path), federation)
    assert (votes == expected(range(1, 31), 2)).all()
    for task in tasks:
        for made in task["annotations"]:
            made["result"] += annotation(0, 0, {"second": "emu"})["result"]
    path = write(kind, tasks, tmp_path)
    refuse(f"fnlkit consensus fed.npz {path.name} -o a.npz", tmp_path, "'kind', 'second'", "--control NAME")
    succeed(f"fnlkit consensus fed.npz {path.name} --control second -o a.npz", tmp_path)
    found = Federation.read(str(tmp_path / "a.npz")).extra["votes"]
    assert set(found[:30].ravel().tolist()) == {2} and (found[30:] == -1).all()
    refuse_call("no control 'third'", read_votes, path, federation, control="third")


def test_several_choices_are_no_vote(tmp_path):
    tasks = tasks_of(range(1, 4), sample_id=lambda i: f"p-{i}")
    tasks[1]["annotations"][0]["result"][0]["value"]["choices"] = ["cat", "dog"]
    for kind in ("csv", "json", "json-min"):
        refuse_call("several choices of 'kind'", read_votes, write(kind, tasks, tmp_path), federation_of(IDS), control="kind")


def test_repeated_equal_votes_count_once_and_ids_are_no_answers(tmp_path):
    """Ids 0 to 2 are classes, too; the answers are in the column without a usual name of ids."""
    (tmp_path / "v.csv").write_text("id,annotator,choice\n0,a,1\n1,a,2\n1,a,2\n2,b,0\n")
    federation = Federation("d", 3, np.array([0, 3]), np.arange(3), np.zeros(3, np.int64))
    votes, names = read_votes(tmp_path / "v.csv", federation)
    assert names == ["a", "b"] and votes.tolist() == [[1, -1], [2, -1], [-1, 0]]
    assert fnlkit.consensus(federation, np.ma.masked_less(votes, 0)).federation.extra["votes"].tolist() == votes.tolist()


def test_columns_of_arrays_are_refused(tmp_path):
    federation = federation_of(IDS)
    np.savez(tmp_path / "v.npz", votes=np.zeros((48, 2), int))
    federation.write(tmp_path / "fed.npz")
    refuse("fnlkit consensus fed.npz v.npz --control kind -o a.npz", tmp_path, "--control", "these votes have none")
    for votes in (None, np.zeros((48, 2), int)):
        refuse_call("these votes have none", fnlkit.consensus, federation, votes, sample_column="id")
    refuse("fnlkit partition --sample-column id -o b.npz", tmp_path, "--sample-column", "--gold")


# ---- no consensus depends on the order of rows and annotators, or on the names of annotators
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
