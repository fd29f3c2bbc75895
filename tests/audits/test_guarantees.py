"""The share of right labels in a guaranteed list is bounded for every world: all draws of small reviews are enumerated."""

from itertools import combinations

import numpy as np
import pytest

from fnlkit.audits.guarantees import draw_reviews, find_guaranteed_list, right_with_confidence, shortest_list, update_scores
from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import stream


def draws(candidates, reviews):
    """Yield the masks of all possible reviews."""
    for members in combinations(range(candidates), reviews):
        mask = np.zeros(candidates, bool)
        mask[list(members)] = True
        yield mask


def false_share(found, wrong):
    return (~wrong[found.listed]).mean() if found.listed.any() else 0.0


def worlds(number):
    """Yield (scores, wrong, groups, reviews, q): noise that depends on the score, on the group, on both, or on nothing."""
    for k in range(number):
        rng = stream(k, "world")
        size = int(rng.integers(5, 9))
        scores, groups = rng.random(size), rng.integers(0, 3, size)
        chance = [rng.random(size), (scores > 0.5) * rng.random(), (groups == 0) * 0.9, (scores < 0.5) * 1.0, 0 * scores][k % 5]
        yield scores, rng.random(size) < chance, groups, int(rng.integers(2, size - 1)), float(rng.uniform(0.3, 0.9))


def worst_excess(number):
    """Return the largest mean false share minus q over random worlds, exactly, and the longest list."""
    excess, longest = -1.0, 0
    for k, (scores, wrong, groups, reviews, q) in enumerate(worlds(number)):
        lists = [
            find_guaranteed_list(scores, mask, wrong, q=q, groups=groups if k % 2 else None)
            for mask in draws(len(scores), reviews)
        ]
        excess = max(excess, np.mean([false_share(found, wrong) for found in lists]) - q)
        longest = max(longest, *(int(found.listed.sum()) for found in lists))
    return excess, longest


def test_the_mean_false_share_is_at_most_q_in_every_world():
    excess, longest = worst_excess(40)
    assert excess <= 1e-12 and longest >= 3


def test_the_bound_is_attained():
    """Only right labels, two reviews of four, q = 2/3: a prefix needs at least 1 + c unreviewed labels.

    Of the six pairs of reviewed labels, 1 2 and 1 3 give an empty list; the four others list at least one label.
    """
    wrong = np.zeros(4, bool)
    shares = [false_share(find_guaranteed_list([4, 3, 2, 1], mask, wrong, q=2 / 3), wrong) for mask in draws(4, 2)]
    assert shares == [0, 0, 1, 1, 1, 1]


def test_a_reviewer_with_random_errors():
    """Right labels are called wrong with probability 0.3; the stated rate keeps the bound, rate 0 exceeds it."""
    wrong, scores, q = np.arange(60) < 6, np.arange(60, 0, -1), 0.5
    rng, stated, ignored = stream(1, "reviewer"), [], []
    for _ in range(600):
        mask = draw_reviews(60, 30, rng)
        called = wrong | (rng.random(60) < 0.3)
        stated.append(false_share(find_guaranteed_list(scores, mask, called, q=q, errors=0.3), wrong))
        ignored.append(false_share(find_guaranteed_list(scores, mask, called, q=q), wrong))
    assert np.mean(stated) < q + 0.02 and np.mean(ignored) > np.mean(stated) + 0.05


def test_the_probability_of_an_excess_is_at_most_the_error():
    """All labels are right: the number of unreviewed ones of any prefix exceeds its bound in at most 10 % of all 924 draws."""
    bound, excess = right_with_confidence(12, 6, 0.1), 0
    for mask in draws(12, 6):
        excess += (np.cumsum(~mask) > bound[np.cumsum(mask)]).any()
    assert 0.02 < excess / 924 <= 0.1
    assert (np.diff(bound) >= 0).all() and bound[-1] == 6


def test_the_updated_order_does_not_depend_on_which_right_labels_were_reviewed():
    rng = stream(2, "order")
    scores, groups, wrong = rng.random(50), rng.integers(0, 2, 50), np.zeros(50, bool)
    wrong[groups == 1] = True
    found = draw_reviews(50, 25, rng) & wrong
    updated = update_scores(scores, found, groups)
    assert updated[groups == 1].mean() > updated[groups == 0].mean() + 0.5
    inside = groups == 1
    assert (np.argsort(updated[inside]) == np.argsort(scores[inside])).all()
    assert (update_scores(scores, found, None) == scores).all()


def test_degenerate_reviews():
    ones = np.ones(5, bool)
    assert find_guaranteed_list(np.arange(5), ones, ones, q=0.1).listed.sum() == 0  # everything is reviewed
    assert find_guaranteed_list(np.arange(5), ~ones, ones, q=0.9).listed.sum() == 0  # nothing is reviewed
    assert find_guaranteed_list([0.5], ~ones[:1], ones[:1], groups=np.zeros(1)).listed.sum() == 0
    for options in ({"q": 0.0}, {"q": 1.0}, {"errors": 1.0}, {"confidence": 1.5}, {"confidence": 0.9, "errors": 0.1}):
        with pytest.raises(InputError, match="expected"):
            find_guaranteed_list(np.arange(5), ones, ones, **options)


@pytest.mark.parametrize("confidence", [None, 0.9])
@pytest.mark.parametrize(("candidates", "reviews", "q"), [(200, 100, 0.2), (300, 60, 0.2), (60, 20, 0.1), (40, 30, 0.01)])
def test_the_shortest_list_is_reached_without_a_right_label_and_no_shorter_one_exists(candidates, reviews, q, confidence):
    length = shortest_list(candidates, reviews, q, confidence=confidence)
    lengths = set()
    for seed in range(20):
        reviewed = draw_reviews(candidates, reviews, np.random.default_rng(seed))
        unreviewed = np.cumsum(~reviewed)
        for count in range(1, candidates + 1, 3):  # labels before the first right one
            wrong = np.arange(candidates) < count
            found = find_guaranteed_list(-np.arange(candidates), reviewed, wrong, q=q, confidence=confidence)
            lengths.add(int(found.listed.sum()))
            if length is not None and unreviewed[count - 1] >= length:
                assert found.listed.sum() >= length
    assert (lengths == {0}) if length is None else (min(lengths - {0}) >= length)
