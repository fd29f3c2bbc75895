"""Equal values in different spellings are one value, in all roles and all forms of data."""

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.datasets.dataset import must_be
from fnlkit.datasets.identifiers import Samples
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.spelling import merge_spellings, order_levels, order_texts, spell, spell_all
from tests.commands import refuse_call, shell

SIZE = 60


def mixed(values):
    """Whole numbers as texts; every third with a decimal point, as pandas writes a column with an empty cell."""
    return [f"{value}.0" if i % 3 == 0 else str(value) for i, value in enumerate(values)]


def write_table(path, columns):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(SIZE) % 7 / 3, **columns})
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip({".parquet": "pyarrow", ".xlsx": "openpyxl", ".dta": "pandas"}[path.suffix])
        write = {".parquet": frame.to_parquet, ".xlsx": frame.to_excel, ".dta": frame.to_stata}[path.suffix]
        write(path, **({"write_index": False} if path.suffix == ".dta" else {"index": False}))
    return str(path)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "1.0", "+1", "1.", "1e0", "10e-1"], {"1"}),
        (["-0", "0.0", "0"], {"0"}),
        (["007", "7", "07"], {"007", "7", "07"}),  # leading zeros are codes
        (["10", "1e1", "1E+01"], {"10"}),
        (["12345678901234567890", "12345678901234567891"], {"12345678901234567890", "12345678901234567891"}),
        (["1.10", "1.1"], {"1.1"}),
        (["u\u0308ber", "\u00fcber "], {"\u00fcber"}),  # composed and decomposed letters
        (["1e5", "1f5"], {"1e5", "1f5"}),  # hexadecimal codes
        (["1e999999999", "nan", "inf", "1_000", "0x10"], {"1e999999999", "nan", "inf", "1_000", "0x10"}),
    ],
)
def test_numbers_of_equal_value_are_equal_and_codes_are_not(texts, expected):
    assert set(spell_all(texts)) == expected
    assert all(spell(spell(text)) == spell(text) for text in texts)


def test_case_is_merged_with_a_note_to_the_usual_spelling():
    (first, second), notes = merge_spellings(["Cat", "cat", "cat", "dog"], ["CAT ", "Dog", "dog"], what="sites")
    assert first == ["cat"] * 3 + ["dog"] and second == ["cat", "dog", "dog"]
    assert len(notes) == 1 and "sites" in notes[0] and "'cat' = 'CAT' = 'Cat'" in notes[0]
    assert merge_spellings(["1", "1.0", "b"]) == ([["1", "1", "b"]], [])


@pytest.mark.parametrize("ending", ["csv", "parquet", "xlsx", "dta"])
def test_one_value_in_two_spellings_is_one_group_category_rank_and_site(tmp_path, ending):
    i = np.arange(SIZE)
    columns = {"label": np.array(["p", "q"])[i // 3 % 2], "site": mixed(i % 2 + 1), "patient_id": mixed(i // 3 + 100),
               "ward": mixed(i % 3 + 9), "stage": mixed(i % 3 + 9)}  # fmt: skip
    path = write_table(tmp_path / f"t.{ending}", columns)
    data = datasets.load(f'manifest(file="{path}", categorical=[ward], ordinal=[stage])')
    assert data.columns == ["a", "ward: 9", "ward: 10", "ward: 11", "stage"]
    np.testing.assert_array_equal(np.asarray(data.x_train)[:, 4], i % 3)
    assert set(data.fields["site"]) == {"1", "2"}
    federation = fnlkit.partition(f'manifest(file="{path}", site="-")', clients=3, say=None)
    held = np.flatnonzero(federation.extra["holdout_client"] >= 0)
    patients = i // 3
    assert len(held) and not set(patients[held]) & set(patients[federation.client_indices])
    assert list(fnlkit.partition(path, "sites", say=None).names) == ["1", "2"]


def test_case_of_labels_groups_and_sites_is_merged_in_tables_and_arrays(tmp_path):
    i = np.arange(SIZE)
    case = lambda texts: [text.upper() if place % 5 == 0 else text for place, text in enumerate(texts)]  # noqa: E731
    label, site = case(np.array(["p", "q"])[i // 3 % 2].tolist()), case(np.array(["bern", "ulm"])[i % 2].tolist())
    group = case([f"p{g}" for g in i // 3])
    path = write_table(tmp_path / "t.csv", {"label": label, "site": site, "patient": group})
    np.savez(tmp_path / "t.npz", x_train=np.random.default_rng(0).normal(size=(SIZE, 2)), y_train=np.array(label),
             site_train=np.array(site), groups_train=np.array(group))  # fmt: skip
    for source in (path, str(tmp_path / "t.npz")):
        data = datasets.load(source)
        assert data.class_names == ["p", "q"] and set(data.fields["site"]) == {"bern", "ulm"}
        assert len(np.unique(data.groups)) == SIZE * 2 // 3  # a patient at two sites is two groups
        assert sum("only in case" in note for note in data.notes) == 3
        np.testing.assert_array_equal(data.y_train, i // 3 % 2)


def test_a_column_with_leading_zeros_is_categories_with_a_note(tmp_path):
    i = np.arange(SIZE)
    path = write_table(tmp_path / "t.csv", {"label": np.array(["p", "q"])[i % 2], "ward": np.array(["007", "7"])[i % 2]})
    data = datasets.load(path)
    assert data.columns == ["a", "ward: 007", "ward: 7"] and any("leading zeros" in note for note in data.notes)
    assert datasets.load(f'manifest(file="{path}", numbers=[ward])').columns == ["a", "ward"]


def test_ids_votes_decisions_and_predictions_are_found_by_value():
    samples = Samples([["7", "8.0", "009", "x1"]])
    assert samples.match(["7.0", "8", "009", "9", "+7", "X1"]).tolist() == [0, 1, 2, -1, 0, -1]
    find = class_finder(["1.0", "2", "007", "Cat"])
    assert [find(text) for text in ("1", "2.0", "7", "007", "cat", "CAT ")] == [0, 1, None, 2, 3, 3]
    find = class_finder(["crane", "crane", "Ox"])  # a decision "crane" was one for the second class
    assert [find(text) for text in ("crane", "Crane", "ox")] == [None, None, 2]


@pytest.mark.parametrize(
    ("levels", "given"),
    [
        (["1", "01", "1.5", "2", "10"], None),
        (["T1", "T2", "T10"], None),
        (["b", "a"], ["a", "b"]),
    ],
)
def test_the_order_of_texts_does_not_depend_on_their_first_order(levels, given):
    expected = order_texts(levels)
    assert expected == order_texts(levels[::-1]) == order_texts(sorted(levels))
    assert given is None or expected == given


@pytest.mark.parametrize(
    "levels",
    [
        ["low", "medium", "high"],
        ["none", "Mild", "Moderate", "Severe"],
        ["5-9", "10-14", "15-19"],
        ["<10", "10-20", ">20"],
        ["< 18 years", "18 to 64 years", "65+ years"],
        ["T1", "T2", "T10"],
        ["-5", "-1", "3"],
        ["I", "II", "IV", "IX"],
        ["1", "1.5", "10"],
    ],
)
def test_levels_have_their_natural_order(levels):
    assert order_levels(sorted(levels)) == order_levels(levels[::-1]) == levels


def test_levels_have_the_order_of_the_user_or_of_the_file(tmp_path):
    pandas = pytest.importorskip("pandas")
    grades, i = ["wenig", "mehr", "viel"], np.arange(SIZE) % 3
    columns = {"grade": np.array(grades)[i], "label": np.array(["p", "q"])[np.arange(SIZE) % 2]}
    path = write_table(tmp_path / "t.csv", columns)
    data = datasets.load(f'manifest(file="{path}", ordinal={{grade: [wenig, mehr, viel]}})')
    np.testing.assert_array_equal(np.asarray(data.x_train)[:, 1], i)
    assert any("wenig < mehr < viel" in note for note in data.notes)
    np.testing.assert_array_equal(np.asarray(datasets.load(data.name).x_train), np.asarray(data.x_train))
    refuse_call("row 4.*'viel'", datasets.load, f'manifest(file="{path}", ordinal={{grade: [wenig, mehr]}})')
    for ending in ("parquet", "dta"):
        stored = pandas.Categorical(columns["grade"], grades, ordered=True)
        path = write_table(tmp_path / f"t.{ending}", {**columns, "grade": stored})
        x = np.asarray(datasets.load(f'manifest(file="{path}", ordinal=[grade])').x_train)
        np.testing.assert_array_equal(x[:, 1], i)


@pytest.mark.slow  # eight processes
def test_commands_write_the_same_bytes_under_all_hash_seeds(tmp_path):
    rows = [f"0.{i},{label}" for i in range(20) for label in ("1", "01", "2", "10", "1e1", "T2", "T10")]
    (tmp_path / "t.csv").write_text("\n".join(["a,label", *rows]) + "\n")
    for seed in (1, 2):
        partition = f"export PYTHONHASHSEED={seed}; fnlkit partition --dataset t.csv --clients 2 -q"
        line = f"{partition} | fnlkit inject-noise -q -o {seed}.npz && fnlkit audit {seed}.npz -q -o a{seed}.npz"
        assert shell(line, tmp_path).returncode == 0
    for name in ("1.npz", "a1.npz"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("1", "2")).read_bytes()


# ---- classes have one order in all kinds of data
NAMES = [str(c) for c in range(12)]


def write(folder, route):
    for c in NAMES:
        for part in ("train", "test") if route == "split" else ("A", "B"):
            home = folder / (c if route == "class" else f"{part}/{c}")
            home.mkdir(parents=True, exist_ok=True)
            for i in range(3):
                image = np.random.default_rng(100 * int(c) + 10 * (part == "B") + i).integers(0, 256, (6, 6))
                Image.fromarray(image.astype(np.uint8)).save(home / f"{part}{i}.png")
    if route == "files":
        rows = [(str(p.relative_to(folder)), p.parent.name, p.parent.parent.name) for p in sorted(folder.rglob("*.png"))]
        pd.DataFrame(rows, columns=["path", "label", "site"]).to_csv(folder / "t.csv", index=False)
        return str(folder / "t.csv")
    return f'folder(path="{folder}", label={2 if route == "site" else 1})' if route in ("class", "site") else str(folder)


@pytest.mark.parametrize("route", ["class", "site", "split", "files"])
def test_numbers_are_ordered_by_value_and_a_matrix_hits_the_named_class(route, tmp_path):
    fed = fnlkit.partition(write(tmp_path, route), clients=2, holdout=0, say=None)
    data = datasets.load(fed.dataset)
    assert data.class_names == fed.meta["class_names"] == NAMES
    assert [path.split("/")[-2] for path in data.paths] == [NAMES[label] for label in data.y_train]
    matrix = np.eye(12)
    matrix[2, 2:4] = 0, 1
    np.savetxt(tmp_path / "T.csv", matrix, delimiter=",")
    noisy = fnlkit.inject_noise(fed, f'matrix(path="{tmp_path / "T.csv"}")', say=None)
    assert (noisy.true != noisy.given).any() and set(noisy.true[noisy.true != noisy.given]) == {2}
    assert set(noisy.given[noisy.true != noisy.given]) == {3}
    np.save(tmp_path / "labels.npy", np.array([int(path.split("/")[-2]) for path in data.paths]))
    assert (fnlkit.inject_noise(fed, f'labels(path="{tmp_path / "labels.npy"}")', say=None).given == fed.given).all()


@pytest.mark.parametrize("route", ["class", "files"])
def test_files_of_earlier_versions_keep_their_order_of_classes(route, tmp_path):
    """Earlier versions ordered class folders as texts; their federations and runs store this order and a checksum of it."""
    name = write(tmp_path, route)
    fed, before = fnlkit.partition(name, clients=2, say=None), datasets.load(name)
    before.order_classes(sorted(NAMES))
    number = np.array([sorted(NAMES).index(c) for c in NAMES])
    fed.given = number[fed.given]
    fed.meta |= {"class_names": sorted(NAMES), "dataset_checksum": before.checksum}
    again = datasets.load(name)
    assert before.checksum != again.checksum
    assert must_be(again, fed.meta, len(fed.given), what="the federation") is None
    assert again.class_names == sorted(NAMES) and (again.y_train == fed.given).all()
    run = fnlkit.train(fed, rounds=1, fraction=1.0, model="mlp", backbone="none", say=None)
    assert run.meta["samples"]["class_names"] == sorted(NAMES)
    must_be(datasets.load(name), run.meta, len(fed.given), what="the run")
