"""Ranges of wrong predictions: they contain the true number, and no range or group is small."""

import numpy as np
import pytest
import torch

from fnlkit.federated.client import private_counts


@pytest.mark.parametrize("size", range(private_counts.FEWEST, 60))
def test_ranges_contain_the_number_and_at_least_five_numbers(size):
    wrong = np.arange(size + 1)
    tested = np.full(size + 1, size)
    low = private_counts.lower_end(tested, wrong)
    found = private_counts.ranges(tested, low)
    assert ((found.fewest <= wrong) & (wrong <= found.most)).all() and (found.most <= size).all()
    assert np.unique(low, return_counts=True)[1].min() >= private_counts.RANGE
    assert all(set(wrong[low == each]) == set(range(each, found.most[each] + 1)) for each in np.unique(low))


def test_small_classes_are_merged_and_small_rests_are_left_out():
    counts = np.diag([40, 12, 9, 1])
    counts[0, 3] += 5  # 6 samples of class 3, 5 of them predicted as class 0
    assert [part.tolist() for part in private_counts.in_groups(counts)] == [[40, 0, 0, 0, 27], [0, 0, 0, 0, 5]]
    for few in (np.diag([40, 12, 7]), np.diag([10, 9])):  # 19 samples remain
        tested, wrong = private_counts.in_groups(few)
        assert tested.tolist() == [value if value >= 20 else 0 for value in few.diagonal()] + [0] and not wrong.any()


@pytest.mark.parametrize(
    ("tested", "wrong"), [([19, 0], [0, 0]), ([20, 0], [3, 0]), ([20, 0], [20, 0]), ([20, 0], [0, 5]), ([30, 0], [-5, 0])]
)
def test_replies_that_no_client_computes_are_named(tested, wrong):
    reply = {"tested": torch.tensor(tested), "wrong": torch.tensor(wrong)}
    right = {"tested": torch.tensor([20, 24]), "wrong": torch.tensor([15, 20])}
    assert list(private_counts.implausible({"a": reply, "b": right})) == ["a"]


def test_a_model_that_isolates_a_sample_gets_the_reply_of_another_model():
    """Models that mark the one, two or four largest values of a feature cannot be told from one that marks none."""
    x = torch.linspace(0, 1, 24, dtype=torch.float64)[:, None]

    class Client:
        classes, y = 2, torch.zeros(24, dtype=torch.int64)

    Client.x = x
    replies = []
    for marked in (0, 1, 2, 4, 5):
        model = lambda values, n=marked: torch.cat([torch.full_like(values, 0.5), (values > x[23 - n]).double()], 1)  # noqa: E731
        replies.append(private_counts.reply_tested(Client, model, {})["wrong"].tolist())
    assert replies == [[0, 0, 0]] * 4 + [[5, 0, 0]]
