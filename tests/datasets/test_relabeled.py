"""Labels of people from a file: every format, the true labels, and files that do not fit."""

import numpy as np
import pytest
import torch

from fnlkit import pipeline
from fnlkit.datasets import load
from fnlkit.errors import InputError
from tests.commands import refuse


@pytest.fixture
def given():
    """Labels of the digits of which every tenth is the next class."""
    labels = load("digits").y_train.copy()
    labels[::10] = (labels[::10] + 1) % 10
    return labels


def write(kind, labels, folder):
    path = folder / f"people.{kind}"
    if kind == "npz":
        np.savez(path, worse_label=labels, other=np.zeros(3))
    elif kind == "pt":
        torch.save({"worse_label": labels, "clean_label": labels * 0}, path)  # as CIFAR-10N
    else:
        path.write_text("image,worse_label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(labels)), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["npz", "pt", "csv"])
def test_labels_of_a_file_are_given_and_those_of_the_data_set_true(kind, given, tmp_path):
    spec = f'relabeled(data=digits, labels="{write(kind, given, tmp_path)}", column=worse_label)'
    data, digits = load(spec), load("digits")
    assert np.array_equal(data.y_train, given) and np.array_equal(data.truth, digits.y_train)
    assert np.array_equal(data.x_train, digits.x_train) and np.array_equal(data.y_test, digits.y_test)
    federation = pipeline.partition(spec, clients=4, say=None)
    held = federation.client_indices
    wrong = given[held] != digits.y_train[held]
    assert federation.dataset == data.name and data.checksum != digits.checksum
    sizes = [len(part) for part in federation.clients]
    assert np.average(federation.wrong_share(), weights=sizes) == pytest.approx(wrong.mean())


def test_class_names_are_read(tmp_path):
    names = load("heart").class_names
    path = tmp_path / "names.csv"
    path.write_text("who\n" + "".join(f"{names[i % 2]}\n" for i in range(len(load("heart").y_train))), encoding="utf-8")
    assert load(f'relabeled(data=heart, labels="{path}", column=who)').y_train[:4].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        (lambda y: y[1:], "worse_label", "1,437 labels, digits has 1,438 training samples"),
        (lambda y: y + 1, "worse_label", "labels are 1 to 10, expected 0 to 9"),
        (lambda y: y, "worse_labels", "no column 'worse_labels'.*worse_label"),
        (lambda y: y.astype(float) + 0.5, "worse_label", "no class"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(change, column, message, given, tmp_path):
    path = write("npz", change(given), tmp_path)
    with pytest.raises(InputError, match=message):
        load(f'relabeled(data=digits, labels="{path}", column={column})')


def test_a_missing_file_ends_with_a_line_and_code_2(tmp_path):
    refuse("fnlkit partition --dataset 'relabeled(data=digits, labels=\"no.npz\", column=a)' --clients 4", tmp_path, "no.npz")
