"""Labels and columns that are not what a classifier needs: refused, or doubted in one line that names the remedy."""

import numpy as np
import pytest
from PIL import Image

from fnlkit import datasets
from fnlkit.datasets.labels import doubts
from fnlkit.errors import InputError


def table(path, labels, column=None):
    rows = [f"{i + 0.5},{column[i] if column else i % 7},{label}" for i, label in enumerate(labels)]
    path.write_text("\n".join(["age,other,label", *rows]) + "\n", encoding="utf-8")
    return path


def test_numbers_to_predict_are_no_classes(tmp_path):
    rng = np.random.default_rng(0)
    target = np.round(rng.normal(100, 20, 300), 1)
    assert len(set(target)) > 200
    with pytest.raises(InputError, match="different numbers.*cleanlab"):
        datasets.load(table(tmp_path / "t.csv", target))
    with pytest.raises(InputError, match="join several labels.*cleanlab"):
        datasets.load(table(tmp_path / "s.csv", ["Edema|Effusion", "Edema"] * 20))
    with pytest.raises(InputError, match="t.csv: column 'label'"):
        datasets.load(f'manifest(file="{table(tmp_path / "t.csv", target)}", task=classification)')
    x, y = rng.normal(size=(300, 4)), np.arange(300) // 2
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y * 2 % 151, x_test=x, y_test=y)
    with pytest.raises(InputError, match="d.npz: 15. different labels"):
        datasets.load(tmp_path / "d.npz")
    (tmp_path / "sites").mkdir()
    np.savez(tmp_path / "sites" / "a.npz", x=x, y=np.arange(300) % 200)
    with pytest.raises(InputError, match="200 different labels on 300 samples"):
        datasets.load(tmp_path / "sites")


@pytest.mark.parametrize(
    ("names", "samples", "doubted"),
    [
        (["0", "1", "2"], 9, False),
        (["0.5", "1", "1.5"], 900, True),  # a decimal number is an amount
        ([str(i) for i in range(20, 90)], 300, True),  # ages
        ([str(i) for i in range(100)], 5000, False),
        (["1", "2", "other"], 30, False),
    ],
)
def test_numbers_that_may_be_amounts_are_doubted(names, samples, doubted):
    assert any("ranges" in text for text in doubts(names, np.arange(samples) % len(names))) == doubted


@pytest.mark.parametrize(
    ("names", "doubted"),
    [
        (["Edema", "Edema|Effusion"], True),
        (["Edema", "Effusion", "Edema; effusion"], True),
        (["a,b", "b,c", "a,c"], True),
        (["T-shirt/top", "Trouser", "Bag"], False),  # Fashion-MNIST
        (["Smith, Ann", "Smith, Bob"], False),
        (["+", "-"], False),
        (["|", "a"], False),
    ],
)
def test_several_labels_in_one_are_doubted(names, doubted):
    assert any("join" in text for text in doubts(names, np.arange(len(names)))) == doubted


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        ({"benign": 40, "malignant": 30, "malignat": 1}, "malignat"),
        ({"Pneumonia": 40, "clear": 30, "pnuemonia": 2}, "pnuemonia"),
        ({"benign": 40, "malignant": 30, "malignat": 9}, None),  # not rare
        ({"grade 1": 40, "grade 2": 30, "grade 3": 1}, None),
        ({"male": 40, "female": 1, "cat": 30, "cap": 1}, None),
        ({"sample a": 2, "sample b": 2}, None),  # all classes are rare
    ],
)
def test_a_rare_class_that_is_spelled_like_another_is_named(classes, named):
    labels = np.repeat(np.arange(len(classes)), list(classes.values()))
    found = [text for text in doubts(list(classes), labels) if "spelled" in text]
    assert len(found) == (named is not None) and all(repr(named) in text for text in found)


def test_free_text_columns_are_not_categories(tmp_path):
    labels = ["ab"[i % 2] for i in range(200)]
    own = [f"note {i}" for i in range(20)]
    said = [f"the patient said number {i % 20} today" for i in range(200)]
    for column, rows in ((own, 20), (said, 200)):
        path = table(tmp_path / "t.csv", labels[:rows], column)
        with pytest.raises(InputError, match="t.csv: column 'other' has 20 different texts"):
            datasets.load(path)
        assert len(datasets.load(f'manifest(file="{path}", categorical=other)').columns) == 21
        assert datasets.load(f'manifest(file="{path}", drop=[other])').columns == ["age"]
    wards = [f"ward {i % 20}" for i in range(200)]
    assert len(datasets.load(table(tmp_path / "t.csv", labels, wards)).columns) == 21


def test_folders_are_doubted_as_tables_are(tmp_path):
    for name in ("d1", "D1", "unknown"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.new("L", (4, 4)).save(tmp_path / name / f"{i}.png")
    notes = datasets.load(tmp_path).notes
    assert any("'D1', 'd1'" in note for note in notes) and any("'unknown'" in note for note in notes)
