"""Every kernel equals its naive twin, on ugly input too, and says clearly what it cannot use."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import fnlkit.cleanlab
from fnlkit import kernels
from fnlkit.kernels.annotator import fit_annotator
from fnlkit.kernels.dimensionality import lid_scores
from fnlkit.kernels.learning import learn_matrix
from fnlkit.kernels.mixture import gaussians
from tests import naive
from tests.commands import refuse_call

seeds = st.integers(0, 2**32 - 1)
# Counts and inverses are mostly tested in float64, which commands pass: float32 has the same source and one test.
kinds = st.sampled_from([np.float32, np.float64])


@pytest.fixture(autouse=True)
def one_thread():
    kernels.set_threads(1)
    yield
    kernels.set_threads(None)


def clients(rng, n):
    """Offsets of up to four clients, some of them empty."""
    return np.concatenate([[0], np.sort(rng.integers(0, n + 1, rng.integers(0, 4))), [n]])


def probabilities(rng, n, classes):
    """Rows that sum to 1, half of the time on a coarse grid, so that ties and exact thresholds occur."""
    raw = rng.integers(0, 4, (n, classes)) + 0.25 if rng.random() < 0.5 else rng.random((n, classes)) ** 3
    return raw / raw.sum(1, keepdims=True)


@given(seeds, st.integers(1, 40), st.integers(0, 30))
def test_counts_equal_naive(seed, classes, n):
    rng = np.random.default_rng(seed)
    probs, labels = probabilities(rng, n, classes), rng.integers(0, rng.integers(1, classes + 1), n)
    offsets = clients(rng, n)
    got, limits = (f(probs, labels, client_offsets=offsets) for f in (kernels.count_matrix, kernels.class_thresholds))
    for k, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        expected = naive.class_thresholds(probs[a:b], labels[a:b])
        np.testing.assert_allclose(limits[k], expected, rtol=1e-12)
        np.testing.assert_array_equal(got[k], naive.count_matrix(probs[a:b], labels[a:b], limits[k]))
        alone = kernels.count_matrix(probs[a:b], labels[a:b], thresholds=limits[k], least_diagonal=0)
        np.testing.assert_array_equal(alone, naive.count_matrix(probs[a:b], labels[a:b], limits[k], 0))
    largest = kernels.count_matrix(probs, labels, client_offsets=offsets, rule="largest")
    for k, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        expected = naive.count_matrix_of_largest(probs[a:b], labels[a:b], limits[k])
        np.testing.assert_array_equal(largest[k], expected)


def test_counts_of_sure_and_of_flat_rows_equal_naive():
    """Of flat rows several classes are confident, which is judged in another way; the rows change after some blocks."""
    rng = np.random.default_rng(0)
    raw = rng.random((900, 7)) ** np.repeat([0.05, 40.0, 0.05, 40.0, 1.0], 180)[:, None]
    probs, labels = raw / raw.sum(1, keepdims=True), rng.integers(0, 7, 900)
    limits = np.full(7, 0.1)
    several = (probs >= limits - 1e-6).sum(1) > 1
    assert several[:180].mean() > 0.9 and several[180:360].mean() < 0.3
    np.testing.assert_array_equal(
        kernels.count_matrix(probs, labels, thresholds=limits), naive.count_matrix(probs, labels, limits)
    )


def test_counts_and_inverses_of_single_precision_equal_naive():
    rng = np.random.default_rng(2)
    probs, labels = probabilities(rng, 300, 5).astype(np.float32), rng.integers(0, 5, 300)
    limits = kernels.class_thresholds(probs, labels)
    np.testing.assert_allclose(limits, naive.class_thresholds(probs, labels), rtol=1e-5)
    limits = np.float32(limits)
    np.testing.assert_array_equal(
        kernels.count_matrix(probs, labels, thresholds=limits, least_diagonal=0), naive.count_matrix(probs, labels, limits, 0)
    )
    stack = transitions(rng, 7, 4).astype(np.float32)
    inverse, _ = kernels.invert_transition(stack)
    assert inverse.dtype == np.float32
    np.testing.assert_allclose(inverse, np.linalg.inv(stack), rtol=1e-3, atol=1e-3)


def test_the_two_counting_rules_differ_as_documented():
    # Thresholds 0.6 and 0.3.  (0.55, 0.45): only class 1, not the largest, reaches its own.  (0.7, 0.3): both reach, the
    # largest counts by either rule.  (0.5, 0.5) with limits (0.6, 0.3): the first largest does not reach.
    probs, labels, limits = np.array([[0.55, 0.45], [0.7, 0.3], [0.5, 0.5]]), np.array([0, 0, 1]), np.array([0.6, 0.3])
    common = {"thresholds": limits, "least_diagonal": 0}
    assert kernels.count_matrix(probs, labels, **common).tolist() == [[1, 0], [1, 1]]
    assert kernels.count_matrix(probs, labels, rule="largest", **common).tolist() == [[1, 0], [0, 0]]
    # Three classes: two reach their thresholds, the largest does not; cleanlab's rule counts the largest all the same.
    probs, limits = np.array([[0.4, 0.35, 0.25]]), np.array([0.5, 0.3, 0.2])
    common = {"thresholds": limits, "least_diagonal": 0}
    assert kernels.count_matrix(probs, [2], **common)[0, 2] == 1
    assert kernels.count_matrix(probs, [2], rule="largest", **common).sum() == 0
    refuse_call("cleanlab. or .largest", kernels.count_matrix, probs, [2], rule="both")


def test_weighting_counts_is_weighting_the_normalized_matrix():
    # FedEFC's code weights the columns-normalized matrix (true classes sum to 1); the paper weights the counts.
    rng = np.random.default_rng(2)
    probs, labels = probabilities(rng, 300, 4), rng.choice(4, 300, p=[0.6, 0.2, 0.15, 0.05])
    plain, weighted = (kernels.count_matrix(probs, labels, class_weights=w) for w in (None, "labels"))
    share = np.bincount(labels) / 300
    code = plain / plain.sum(1, keepdims=True) * share
    np.testing.assert_allclose(weighted / weighted.sum(1, keepdims=True), code / code.sum(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(kernels.count_matrix(probs, labels, class_weights=share), weighted)


@given(seeds, kinds, st.integers(1, 60), st.integers(1, 5), st.integers(1, 70), st.booleans())
def test_lid_equals_naive(seed, kind, n, d, k, grid):
    rng = np.random.default_rng(seed)
    points = (rng.integers(0, 4, (n, d)) if grid else rng.standard_normal((n, d))).astype(kind)
    offsets = clients(rng, n)
    got = {v: kernels.lid(points, k=k, client_offsets=offsets, variant=v) for v in ("paper", "fedcorr")}
    score = kernels.lid_score(points, k=k, client_offsets=offsets, copies="each")
    once = kernels.lid_score(points, k=k, client_offsets=offsets)
    for i, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        own = points[a:b].astype(np.float64)
        expected = naive.lid(own, k)
        # An estimate far above the number of dimensions hangs on the last digits of nearly equal distances.
        calm = expected < 100 if kind == np.float32 else np.full(b - a, True)
        rtol = 1e-4 if kind == np.float32 else 1e-9
        np.testing.assert_allclose(got["paper"][a:b][calm], expected[calm], rtol=rtol)
        expected = naive.lid_fedcorr(own, k)
        # Where the public formula's sum cancels, only its size means something.
        calm = np.abs(expected) < 1e4
        np.testing.assert_allclose(got["fedcorr"][a:b][calm], expected[calm], rtol=1e-7)
        assert (np.abs(got["fedcorr"][a:b][~calm]) > 1e3).all()
        np.testing.assert_allclose(score[i], got["paper"][a:b].mean() if b > a else 0, rtol=1e-12)
        distinct = kernels.lid(np.unique(points[a:b], axis=0), k=k) if b > a else np.zeros(1)
        counts = distinct[distinct < 1e6]
        if not len(counts) or counts.max() < 100:
            np.testing.assert_allclose(once[i], counts.mean() if len(counts) else 0, rtol=rtol)
    assert np.isfinite(got["paper"]).all() and np.isfinite(got["fedcorr"]).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12])
def test_lid_is_finite_and_right_at_any_scale(scale):
    points = np.random.default_rng(0).standard_normal((100, 3)) * scale
    np.testing.assert_allclose(kernels.lid(points), naive.lid(points, 20), rtol=1e-9)
    assert np.isfinite(kernels.lid(points.astype(np.float32))).all()


def test_lid_does_not_depend_on_threads_or_batching():
    points = np.random.default_rng(0).standard_normal((900, 4)).astype(np.float32)
    offsets = np.array([0, 1, 300, 300, 900])
    one, three = (kernels.lid(points, client_offsets=offsets, threads=t) for t in (1, 3))
    np.testing.assert_array_equal(one, three)
    np.testing.assert_allclose(one[1:300], kernels.lid(points[1:300]), rtol=1e-6)


def test_lid_of_many_neighbors_and_many_ties():
    rng = np.random.default_rng(3)
    for points in (rng.standard_normal((310, 3)), np.repeat(np.arange(155.0), 2)[:, None]):
        np.testing.assert_allclose(kernels.lid(points, k=290), naive.lid(points, 290), rtol=1e-9)
    np.testing.assert_array_equal(kernels.lid(np.eye(300), k=290), 1e6)  # all distances are equal


def transitions(rng, n, size):
    return 0.6 * np.eye(size) + 0.4 * rng.dirichlet(np.ones(size), (n, size))


@given(seeds, st.integers(1, 12), st.integers(0, 11), st.sampled_from("symmetric uneven general rolled".split()))
def test_inverse_equals_numpy(seed, size, n, shape):
    rng = np.random.default_rng(seed)
    stack = transitions(rng, n, size)
    if shape == "symmetric" and size > 1:
        noise = rng.uniform(0, 0.5, (n, 1, 1))
        stack = (1 - noise) * np.eye(size) + noise / (size - 1) * (1 - np.eye(size))
    elif shape == "uneven":
        stack = rng.uniform(0.5, 2, (n, 1, size)) * np.eye(size) + 0.3
    elif shape == "rolled":
        # Little on the diagonal: elimination without exchanges has to give up.
        stack = np.roll(np.eye(size), 1, 0) + 1e-9 * stack
    stack = stack / stack.sum(-1, keepdims=True)
    inverse, condition = kernels.invert_transition(stack)
    assert condition.shape == (n,)
    np.testing.assert_allclose(inverse, np.linalg.inv(stack), rtol=1e-9, atol=1e-9)
    if n:
        np.testing.assert_allclose(condition, np.linalg.cond(stack, np.inf), rtol=1e-9)
    vectors = rng.random((n, size))
    found = kernels.apply_inverse(stack, np.einsum("nt,ntg->ng", vectors, stack))
    np.testing.assert_allclose(found, vectors, rtol=2e-8, atol=2e-8)


def test_inverse_of_large_and_of_odd_shapes():
    rng = np.random.default_rng(0)
    for shape in ((40, 40), (2, 3, 5, 5), (1, 1)):
        T = transitions(rng, int(np.prod(shape[:-2])), shape[-1]).reshape(shape)
        inverse, condition = kernels.invert_transition(T)
        np.testing.assert_allclose(inverse @ T, np.broadcast_to(np.eye(shape[-1]), shape), atol=1e-12)
        assert np.shape(condition) == shape[:-2]


@pytest.mark.parametrize("size", [2, 3, 10, 40])
def test_singular_matrices_are_named_or_regularized(size):
    T = np.stack([np.eye(size), np.eye(size), np.full((size, size), 1 / size)])
    refuse_call(r"matrix 2 of `T` is singular .*1 of 3.*ridge", kernels.invert_transition, T)
    general = transitions(np.random.default_rng(0), 1, size)[0]
    general[1] = general[0]
    refuse_call("`T` is singular", kernels.invert_transition, general)
    inverse, condition = kernels.invert_transition(T, ridge=1e-9)
    np.testing.assert_allclose(inverse[0], np.eye(size), atol=1e-8)
    np.testing.assert_allclose(inverse[2], T[2], atol=1e-8)
    assert np.isfinite(condition).all()


@pytest.mark.parametrize("size", [2, 3, 10])
def test_inverse_where_the_formula_or_elimination_fails(size):
    # A diagonal entry like those off it; a permutation, whose pivots are 0; a pivot so small that growth eats all digits.
    hollow = np.full((size, size), 0.25) + np.diag(np.r_[0.0, np.full(size - 1, 0.5)])
    turned = np.roll(np.eye(size), 1, 0)
    steep = 0.5 * np.eye(size) + 0.1 * turned
    steep[:2, :2] = [[1e-9, 0.5], [0.5, 0.25]]
    stack = np.stack([hollow, turned, steep] * 7)
    stack = stack / stack.sum(-1, keepdims=True)
    inverse, condition = kernels.invert_transition(stack)
    np.testing.assert_allclose(inverse, np.linalg.inv(stack), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(condition, np.linalg.cond(stack, np.inf), rtol=1e-11)


@example(17, np.float32, 17, 1.0)  # a class on the threshold, which rounding moved in and out for ever
@example(17, np.float64, 17, 1.0)
@given(seeds, kinds, st.integers(1, 20), st.sampled_from([1e-3, 1.0, 1e3]))
def test_projection_equals_naive(seed, kind, classes, scale):
    rng = np.random.default_rng(seed)
    v = (np.round(rng.standard_normal((5, classes)), 1) * scale).astype(kind)
    got = kernels.project_to_simplex(v)
    for i in range(5):
        expected = naive.project(v[i].astype(np.float64))
        np.testing.assert_allclose(got[i], expected, atol=1e-3 if kind == np.float32 else 1e-12)
    assert (got >= 0).all()
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-3 if kind == np.float32 else 1e-12)


@given(seeds, kinds, st.integers(1, 40), st.integers(1, 4), st.integers(1, 50), st.booleans(), st.booleans(), st.integers(0, 9))
def test_votes_equal_naive(seed, kind, n, d, k, include_self, random_ties, count):
    # Whole numbers: inner products are exact, so distances tie exactly and both ways see the same ties.
    rng = np.random.default_rng(seed)
    points, labels = rng.integers(-3, 4, (n, d)).astype(kind), rng.integers(0, 3, n)
    offsets = clients(rng, n)
    ties = "random" if random_ties else "lowest"
    groups = rng.integers(0, count, n) if count else None
    how = {"classes": 4, "seed": seed, "include_self": include_self, "ties": ties, "groups": groups}
    votes, share = kernels.knn_vote(points, labels, k=k, client_offsets=offsets, **how)
    draws = np.random.default_rng(seed).random(n) if random_ties else np.full(n, -1.0)
    for a, b in zip(offsets[:-1], offsets[1:], strict=True):
        of = None if groups is None else groups[a:b]
        expected = naive.knn(points[a:b].astype(float), labels[a:b], 4, k, include_self, draws[a:b], of)
        np.testing.assert_array_equal(votes[a:b], expected[0])
        np.testing.assert_allclose(share[a:b], expected[1], atol=1e-12)


@pytest.mark.parametrize("count", [0, 3, 60])
@pytest.mark.parametrize("include_self", [False, True])
def test_votes_of_a_large_set_equal_those_of_products(monkeypatch, count, include_self):
    from fnlkit.kernels import neighbors

    rng = np.random.default_rng(0)
    points, labels = rng.standard_normal((400, 8)).astype(np.float32), rng.integers(0, 3, 400)
    offsets = np.array([0, 30, 400])
    groups = rng.integers(0, count, 400) if count else None
    how = {"k": 7, "client_offsets": offsets, "groups": groups, "include_self": include_self}
    expected = kernels.knn_vote(points, labels, **how)
    monkeypatch.setattr(neighbors, "LARGEST_PRODUCT", 100)
    monkeypatch.setattr(neighbors, "AT_ONCE", 1000)  # many blocks of samples
    for found, correct in zip(kernels.knn_vote(points, labels, **how), expected, strict=True):
        np.testing.assert_array_equal(found, correct)


def test_votes_far_from_the_origin_keep_their_digits():
    rng = np.random.default_rng(0)
    points, labels = rng.integers(-9, 9, (80, 5)).astype(np.float32), rng.integers(0, 3, 80)
    near, far = (kernels.knn_vote(points + shift, labels, k=9, ties="lowest") for shift in (0, 1e5))
    np.testing.assert_array_equal(near, far)


@given(seeds, st.integers(1, 12), st.integers(0, 30))
def test_flipping_equals_naive(seed, classes, n):
    rng = np.random.default_rng(seed)
    T = rng.dirichlet(np.full(classes, 0.3), classes)
    T[rng.random(T.shape) < 0.3] = 0
    T += np.where(T.sum(-1, keepdims=True) == 0, np.eye(classes), 0)
    T /= T.sum(-1, keepdims=True)
    labels, uniforms = rng.integers(0, classes, n), rng.random(n)
    np.testing.assert_array_equal(kernels.flip_labels(labels, T, uniforms), naive.flip(labels, T, uniforms))


def test_flipping_by_the_identity_changes_nothing_and_never_draws_the_impossible():
    labels = np.arange(5, dtype=np.uint8)
    for u in (0.0, 0.5, np.nextafter(1, 0)):
        flipped = kernels.flip_labels(labels, np.eye(5), np.full(5, u))
        np.testing.assert_array_equal(flipped, labels)
        assert flipped.dtype == np.uint8
    # A row that sums to a little less than 1.
    T = np.array([[0.3, 0.7 - 1e-9, 0.0]] * 3)
    assert kernels.flip_labels([0], T, [1 - 1e-12])[0] == 1


@given(seeds, st.integers(2, 9), st.floats(0, 1))
def test_randomized_response_equals_naive(seed, classes, keep):
    rng = np.random.default_rng(seed)
    labels, uniforms = rng.integers(0, classes, 20), rng.random((20, 2))
    expected = naive.respond(labels, keep, uniforms, classes)
    np.testing.assert_array_equal(kernels.randomized_response(labels, keep, uniforms, classes), expected)
    np.testing.assert_array_equal(kernels.randomized_response(labels, np.full(20, keep), uniforms, classes), expected)


@pytest.mark.parametrize("form", [np.asfortranarray, lambda a: np.repeat(a, 2, 0)[::2], lambda a: a.astype(">f8")])
def test_any_memory_layout(form):
    rng, no = np.random.default_rng(0), np.array(False)
    probs, labels = probabilities(rng, 50, 4), rng.integers(0, 4, 50)
    odd = form(probs)
    odd.flags.writeable = False
    for kind in (np.uint8, np.int8, np.int32, np.uint64):
        y = labels.astype(kind)
        y.flags.writeable = False
        np.testing.assert_array_equal(kernels.count_matrix(odd, y), kernels.count_matrix(probs, labels))
        np.testing.assert_array_equal(kernels.knn_vote(odd, y, k=3), kernels.knn_vote(probs, labels, k=3, include_self=no))
    np.testing.assert_array_equal(kernels.lid(odd, k=3), kernels.lid(probs, k=3))
    np.testing.assert_array_equal(kernels.project_to_simplex(odd), kernels.project_to_simplex(probs))


P, Y, Q = np.full((3, 2), 0.5), [0, 1, 1], np.array([[0.5, 0.5], [0.5, np.nan], [0.5, 0.5]])
E, U = np.eye(2), np.full(3, 0.5)


@pytest.mark.parametrize("classes", [1, 3, 8, 16, 17, 40])
def test_one_nan_anywhere_is_found(classes):
    rng = np.random.default_rng(classes)
    probs, labels = rng.dirichlet(np.ones(classes), 3), rng.integers(0, classes, 3)
    limits = np.full(classes, 0.4 / classes)
    for column in range(classes):
        for row in range(3):
            before, probs[row, column] = probs[row, column], np.nan
            refuse_call(f"NaN, found one at row {row}, class {column}", kernels.count_matrix, probs, labels, thresholds=limits)
            probs[row, column] = before
    found = kernels.count_matrix(probs, labels, thresholds=limits)
    np.testing.assert_array_equal(found, naive.count_matrix(probs, labels, limits))


@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_nan_of_a_matrix_is_found(size, dtype):
    """One at any place, also on the diagonal of the first rows, whose row sums are followed by finite ones."""
    for T in (np.eye(size), 0.7 * np.eye(size) + 0.3 / size, np.random.default_rng(0).dirichlet(np.ones(size), size)):
        for row, column in {(0, 0), (0, size - 1), (size // 2, size // 2), (size - 1, 0), (size - 1, size - 1)}:
            broken = T.astype(dtype)
            broken[row, column] = np.nan
            for stack in (broken, np.stack([np.eye(size, dtype=dtype), broken])):
                refuse_call(rf"`T` must be finite, found nan at \({row}, {column}\)", kernels.invert_transition, stack)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_many_classes_are_counted_exactly(dtype):
    """The number of a cell, true * C + given, is beyond the whole numbers of float32 (2^24) if C > 4,096."""
    given, true, none = np.array([0, 0, 1, 4098, 4098]), np.array([4095, 4097, 4096, 4098, 0]), 4
    probs = np.full((5, 4099), 0.2 / 4098)
    probs[range(5), true] = 0.8
    probs[none, true[none]] = 0.3
    probs[none, 7] = 0.5
    counts = kernels.count_matrix(probs.astype(dtype), given, thresholds=np.full(4099, 0.6), least_diagonal=0)
    assert np.argwhere(counts).tolist() == [[4095, 0], [4096, 1], [4097, 0], [4098, 4098]]
    assert counts.sum() == 4


def test_matrices_whose_rows_are_no_probabilities_are_refused():
    """Rows of `probs`: test_every_row_must_be_a_distribution of test_mixture.py."""
    T = np.eye(3)
    kernels.invert_transition(np.stack([T, T]))
    for wrong in (2 * T, np.array([[0.5, 0.5, 0], [-0.5, 1.5, 0], [0, 0, 1]])):
        for call in (kernels.invert_transition, lambda T: kernels.invert_transition(T, ridge=1e-3),
                     lambda T: kernels.apply_inverse(T, [0.2, 0.3, 0.5])):  # fmt: skip
            refuse_call("`T`", call, np.stack([T, wrong])[1])


def test_masked_entries_are_refused():
    labels = np.ma.array([0, 1], mask=[True, False])
    for call in (
        lambda: kernels.class_thresholds(np.eye(2), labels),
        lambda: fnlkit.cleanlab.filter.find_label_issues(labels, np.eye(2)),
    ):
        refuse_call("`labels` has masked entries", call)
    assert set(dir(kernels)) >= {"class_thresholds", "lid"}


@pytest.mark.parametrize("form", [lambda t: t.requires_grad_(), lambda t: t.bfloat16()])
def test_tensors_that_numpy_cannot_read_are_named(form):
    torch = pytest.importorskip("torch")
    rows = form(torch.full((6, 2), 0.5))
    calls = {
        "probs": lambda: kernels.count_matrix(rows, [0, 1] * 3),
        "thresholds": lambda: kernels.count_matrix(np.full((6, 2), 0.5), [0, 1] * 3, thresholds=rows[0]),
        "T": lambda: kernels.invert_transition(rows[:2]),
        "vectors": lambda: kernels.apply_inverse(np.eye(2), rows),
        "v": lambda: kernels.project_to_simplex(rows),
        "uniforms": lambda: kernels.flip_labels([0], np.eye(2), rows[0, :1]),
    }
    for name, call in calls.items():
        refuse_call(f"`{name}` is a tensor", call)
    refuse_call("is a tensor", kernels.lid, rows, k=2)
    refuse_call("is a tensor", kernels.knn_vote, rows, [0, 1] * 3, k=2)


@pytest.mark.parametrize("call, message", [
    (lambda: kernels.count_matrix(P[0], Y), r"`probs` must have shape \(n, C\), found \(2,\)"),
    (lambda: kernels.count_matrix(P, Y[:2]), r"`labels` must have shape \(3,\), one a row of `probs`"),
    (lambda: kernels.count_matrix(P, [0.0, 1, 1]), "`labels` must hold integers, found float64"),
    *((lambda y=y: kernels.count_matrix(P, [0, 1, y]), rf"`labels` must lie in 0\.\.1, found {y} at position 2")
      for y in (2, -1, 2**40, -(2**40))),
    (lambda: kernels.count_matrix(Q, Y), "`probs` must not hold NaN, found one at row 1, class 1"),
    (lambda: kernels.count_matrix(P > 0, Y), "`probs` must hold real numbers, found bool"),
    (lambda: kernels.count_matrix(P, Y, thresholds=[1]), r"`thresholds` must have shape \(2,\), found \(1,\)"),
    (lambda: kernels.count_matrix(P, Y, least_diagonal=0.5), "`least_diagonal` must be an integer of at least 0"),
    (lambda: kernels.count_matrix(P, Y, class_weights=[np.inf, 1]), "`class_weights` must be finite, found inf"),
    (lambda: kernels.count_matrix(P, Y, client_offsets=[0, 2]), "`client_offsets` must rise from 0 to 3"),
    (lambda: kernels.lid(Q), r"`points` must be finite, found nan at \(1, 1\)"),
    (lambda: kernels.lid(P, k=0), "`k` must be an integer of at least 1, found 0"),
    (lambda: kernels.invert_transition(P), r"`T` must have shape \(..., C, C\), found \(3, 2\)"),
    (lambda: kernels.invert_transition(E, ridge=0), "`ridge` must be a positive number"),
    (lambda: kernels.invert_transition(E * 0 + 0.5, ridge=1e-20), "`ridge` 1e-20 vanishes .* use at least 2e-16"),
    (lambda: kernels.apply_inverse(E, [1.0, 0, 0]), "`vectors` must have 2 entries on its last axis"),
    (lambda: kernels.project_to_simplex(Q), "`v` must be finite"),
    (lambda: kernels.knn_vote(P, [0, 1, 7], classes=2), "`labels` must lie in 0..1, found 7"),
    (lambda: kernels.knn_vote(P, [0, 1, 2**24 + 3]), "`labels` have 16,777,220 classes, at most 16,777,216"),
    (lambda: kernels.knn_vote(P, Y, threads=0), "`threads` must be an integer of at least 1"),
    (lambda: kernels.knn_vote(P, Y, seed=-1), "`seed` must be an integer of at least 0"),
    (lambda: kernels.apply_inverse(np.zeros((0, 0)), np.zeros((2, 0))), r"`T` must have shape \(C, C\)"),
    (lambda: kernels.set_threads(True), "`threads` must be an integer of at least 1"),
    (lambda: kernels.flip_labels(Y, [[0.5, 0.4], [0, 1]], U), "`T` must have rows .* that sum to 1"),
    (lambda: kernels.flip_labels(Y, E, U * 2), r"`uniforms` must lie in \[0, 1\)"),
    (lambda: kernels.randomized_response(Y, 1.5, P, 2), r"`keep` must be probabilities in \[0, 1\]"),
    (lambda: kernels.randomized_response([0, 0, 0], 0.5, P, 1), "`classes` must be at least 2"),
    (lambda: kernels.randomized_response(Y, 0.5j, P, 2), "`keep` must be an array of real numbers, found complex128"),
    (lambda: kernels.count_matrix(P, Y, thresholds=["0.5", "0.5"]),
     "`thresholds` must be an array of real numbers, found <U3"),
    (lambda: kernels.count_matrix(P, Y, rule=P), "`rule` must be .cleanlab. or .largest., found ndarray of shape"),
    (lambda: kernels.count_matrix(P, Y, calibrate=P), "`calibrate` must be True or False, found ndarray of shape"),
    (lambda: kernels.count_matrix(P, Y, class_weights="none"), "must be .labels. or an array of numbers, found 'none'"),
    (lambda: kernels.lid(P, k=P), r"`k` must be an integer of at least 1, found ndarray of shape \(3, 2\)$"),
    (lambda: kernels.lid(P, k=10**30), r"`k` must be an integer of at least 1 and below 2\*\*63, found 1000"),
    (lambda: kernels.lid(P, variant=None), "`variant` must be .paper. or .fedcorr., found None"),
    (lambda: kernels.invert_transition(E, ridge=True), "`ridge` must be a positive number, found True"),
    (lambda: kernels.invert_transition(E, ridge=np.complex128(1)), "`ridge` must be a positive number, found"),
    (lambda: kernels.knn_vote(P, Y, include_self=2), "`include_self` must be True or False, found 2"),
    (lambda: kernels.knn_vote(P, Y, metric="cosine"), "`metric` must be .* for cosine similarity"),
    (lambda: kernels.knn_vote(P, Y, seed=list("ab" * 60)), r"`seed` must be .{1,130}\.\.\.$"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_mistakes_are_named(call, message):
    refuse_call(message, call)


def test_threads_come_from_the_call_then_the_process_then_the_environment(monkeypatch):
    monkeypatch.setenv("FNLKIT_THREADS", "3")
    assert kernels.get_threads() == 1
    kernels.set_threads(None)
    assert kernels.get_threads() == 3
    monkeypatch.setenv("FNLKIT_THREADS", "many")
    refuse_call("FNLKIT_THREADS", kernels.get_threads)


@pytest.mark.parametrize("offsets", [None, [0, 40, 41, 900, 2000]])
def test_counts_are_the_same_however_many_threads_share_them(offsets, monkeypatch):
    monkeypatch.setattr("fnlkit.kernels.counting._ENTRIES", 500)  # else only millions of probabilities are shared
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(4), 2000), rng.integers(0, 4, 2000)
    one, many = (kernels.count_matrix(probs, labels, client_offsets=offsets, threads=t) for t in (1, 5))
    np.testing.assert_array_equal(one, many)


def huge(points, dtype):
    """The same points times powers of two at both ends of a type, where squares are infinite or zero."""
    ends = (66, -80, 120) if dtype == np.float32 else (560, -560, 1000)
    return [np.ldexp(points.astype(dtype), e) for e in ends]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_points_with_overflowing_squares(kind):
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(300, 8)).astype(kind), rng.integers(0, 5, 300)
    lid, votes = kernels.lid(points.astype(np.float64)), kernels.knn_vote(points, labels, k=7)
    for scaled in huge(points, kind):
        np.testing.assert_allclose(kernels.lid(scaled), lid, rtol=1e-12)
        np.testing.assert_array_equal(kernels.knn_vote(scaled, labels, k=7), votes)


def test_points_with_overflowing_squares_in_a_large_set():
    from fnlkit.kernels import neighbors

    points = np.random.default_rng(0).normal(size=(200, 8))
    expected = neighbors.nearest(points.astype(np.float32), 5)
    for scaled in huge(points.astype(np.float32), np.float32) + huge(points.astype(np.float32), np.float64):
        np.testing.assert_array_equal(neighbors.nearest(scaled, 5), expected)


def test_the_published_lid_refuses_overflowing_squares():
    points = np.random.default_rng(0).normal(size=(30, 3))
    assert np.isfinite(kernels.lid((points * 1e20).astype(np.float32), k=5, variant="fedcorr")).all()
    refuse_call("whose square is no number", kernels.lid, points * 1e200, k=5, variant="fedcorr")


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_simplex_is_reached_from_the_largest_numbers(kind):
    most = np.finfo(kind).max
    v = np.array([[0, -most, -most, -0.2], [most, most, -most, 0], [most, most / 2, -most, -most]], kind)
    np.testing.assert_allclose(kernels.project_to_simplex(v), [[0.6, 0, 0, 0.4], [0.5, 0.5, 0, 0], [1, 0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize(("kind", "classes"), [(np.int8, 200), (np.uint8, 300), (np.int8, 128), (np.uint8, 256)])
def test_labels_that_a_small_type_cannot_hold_are_widened(kind, classes):
    rng = np.random.default_rng(0)
    labels, T = rng.integers(0, 100, 1000), np.full((classes, classes), 1 / classes)
    uniforms, draws = rng.random(1000), rng.random((1000, 2))
    for call in (lambda y: kernels.flip_labels(y, T, uniforms), lambda y: kernels.randomized_response(y, 0.1, draws, classes)):
        small = call(labels.astype(kind))
        np.testing.assert_array_equal(small, call(labels))
        assert small.max() > 100 and small.dtype == (np.int64 if classes - 1 > np.iinfo(kind).max else kind)


@pytest.mark.parametrize("variant", ["paper", "fedcorr"])
def test_copies_of_points_count_once_in_a_score(variant):
    """525 points, 25 of them copies of one: the mean of the formula is decided by the limits 0 and 1e6."""
    points = np.random.default_rng(2).normal(size=(500, 6))
    plain = kernels.lid_score(points, variant=variant)
    with_copies = np.concatenate([points, np.repeat(points[:1], 25, 0)])
    offsets = [0, 500, 1025, 1026]
    found = lid_scores(np.concatenate([points, with_copies, points[:1]]), client_offsets=offsets, variant=variant)
    np.testing.assert_allclose(found.score, [plain[0], plain[0], 0], rtol=1e-12)
    assert found.copies.tolist() == [0, 25, 0] and found.equidistant.tolist() == [0, 0, 0]
    each = kernels.lid_score(with_copies, variant=variant, copies="each")
    np.testing.assert_allclose(each, kernels.lid(with_copies, variant=variant).mean(), rtol=1e-12)
    assert abs(each[0] - plain[0]) > 0.1


def test_points_at_equal_distances_count_in_no_score():
    """The corners of a simplex are equally far from each other: their dimension is infinite."""
    corners = np.eye(6)
    found = lid_scores(np.concatenate([corners, corners]), k=3)
    assert found.score.tolist() == [0] and found.copies.tolist() == [6] and found.equidistant.tolist() == [6]
    mixed = np.concatenate([corners, np.random.default_rng(0).random((40, 6))])
    values = kernels.lid(mixed, k=3)
    np.testing.assert_allclose(lid_scores(mixed, k=3).score, values[values < 1e6].mean())
    refuse_call("`copies` must be", kernels.lid_score, mixed, copies="none")


def test_read_only_and_fortran_input_compiles_no_second_kernel():
    """numba compiles a function again for arrays that are marked as read-only, or in another order."""
    from fnlkit._kernels import annotator, counting, dimensionality, flipping, learning, mixture, voting

    rng = np.random.default_rng(0)
    probs, labels, points = rng.dirichlet(np.ones(3), 20), rng.integers(0, 3, 20), rng.normal(size=(20, 4))

    def call_all(change):
        p, y, x, flat, keep, draws = map(
            change, (probs, labels, points, np.full((3, 3), 1 / 3), probs[:, 0], points[:, :2] % 1)
        )
        return (
            kernels.count_matrix(p, y), kernels.knn_vote(x, y, k=3)[0], kernels.lid(x, k=3), gaussians(x)[0],
            kernels.randomized_response(y, keep, draws, 3), fit_annotator(p, y, flat, strength=1.0, steps=2).inferred,
            learn_matrix(flat, p, y, rate=0.1, steps=2, base=flat, factor=keep),
        )  # fmt: skip

    def frozen(values):
        values = np.array(values, order="F")
        values.flags.writeable = False
        return values

    first = call_all(np.array)
    compiled = [counting.count_confident, counting.label_sums, voting.vote_products, voting.midst, dimensionality.lid_rows]
    compiled += [mixture.mixture, flipping.respond, annotator.expect, learning.learn]
    before = [len(function.overloads) for function in compiled]
    for values, right in zip(call_all(frozen), first, strict=True):
        np.testing.assert_array_equal(values, right)
    assert [len(function.overloads) for function in compiled] == before
