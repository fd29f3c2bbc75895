"""Copies that were planted are found, exact and recompressed and noisy ones within a site; else none are."""

import io

import numpy as np
import pytest
from PIL import Image

import fnlkit
from fnlkit import datasets
from fnlkit.audits.site import copies
from fnlkit.audits.site.samples import Samples
from fnlkit.kernels import nearby

SITES = 4


def recompressed(picture):
    file = io.BytesIO()
    Image.fromarray(picture[..., 0]).save(file, "JPEG", quality=90)
    return np.asarray(Image.open(file))[..., None]


def noisy(picture, rng):
    return np.clip(np.rint(picture + rng.normal(size=picture.shape) * 2), 0, 255).astype(np.uint8)


def held(pictures, embedding=None):
    """Return the samples of a site, and an embedding of them where there is one."""
    x = np.ascontiguousarray(pictures)
    features = None if embedding is None else embedding.astype(np.float32)
    return Samples(x, np.zeros(len(x), int), 2, x.ndim > 2, embedding=features)


def found(parts, embeddings=None):
    """Return the counts of copies, near copies and far samples of each site."""
    pairs = zip(parts, embeddings or [None] * len(parts), strict=True)
    return [copies.find_copies(held(*both)).counts for both in pairs]


@pytest.fixture(scope="module")
def parts():
    pictures = datasets.load("digits").x_train
    return np.split(pictures[np.random.default_rng(0).permutation(len(pictures))[:1000]], SITES)


def test_where_nothing_was_planted_nothing_is_found(parts):
    assert all(one["copies"] == one["near_copies"] == 0 for one in found(parts))


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_copies_within_a_site_are_counted_once(parts, how):
    rng = np.random.default_rng(2)
    changed = [recompressed(p) if how == "recompressed" else noisy(p, rng) for p in parts[0][:10]]
    said = copies.find_copies(held(np.concatenate([parts[0], changed, parts[0][50:53]])))
    assert said.counts["copies"] == 3 and said.counts["near_copies"] == 10
    assert said.copy_of.tolist() == [-1] * 250 + list(range(10)) + [50, 51, 52]


def cone(pictures, seed=4, width=256):
    """Return embeddings of length 1 in a narrow cone, as of a backbone: projections of the pixels beside a common vector."""
    rng = np.random.default_rng(seed)
    flat = pictures.reshape(len(pictures), -1) / 255
    out = flat @ rng.normal(size=(flat.shape[1], width)) + 30 * rng.normal(size=width)
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def crowded(parts):
    """Return embeddings (n, 512) of length 1 in five tight clusters, in which all samples have nearly equal distances."""
    rng = np.random.default_rng(3)
    centers = 5 * rng.normal(size=(5, 512))
    out = [centers[rng.integers(0, 5, len(part))] + rng.normal(size=(len(part), 512)) for part in parts]
    return [part / np.linalg.norm(part, axis=1, keepdims=True) for part in out]


def test_a_backbone_that_puts_all_samples_close_together_makes_no_copies(parts):
    for embeddings in (crowded(parts), [cone(part) for part in parts]):
        assert not any(one["copies"] + one["near_copies"] for one in found(parts, embeddings))


def test_copies_found_by_an_embedding_are_verified_on_the_samples(parts):
    """Pictures with nothing in common are no copies although their embeddings are equal; neither are blank ones."""
    embeddings = crowded(parts)
    embeddings[1][1] = embeddings[1][0]
    blank = [part.copy() for part in parts]
    for i, level in enumerate((0, 128, 255)):
        blank[0][20 + i], embeddings[0][20 + i] = level, embeddings[0][20]
    assert not any(one["copies"] + one["near_copies"] for one in found(blank, embeddings))


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_planted_copies_are_found_by_an_embedding(parts, how):
    rng = np.random.default_rng(5)
    changed = np.stack([recompressed(p) if how == "recompressed" else noisy(p, rng) for p in parts[0][:10]])
    planted = [np.concatenate([parts[0], changed]), np.concatenate([parts[1], parts[1][:3]])]
    counts = found(planted, [cone(part) for part in planted])
    assert [(one["copies"], one["near_copies"]) for one in counts] == [(0, 10), (3, 0)]


def test_large_images_are_compared_at_a_small_size():
    """Averaged to at most 64 pixels a side, thin images too; what was planted is found."""
    rng = np.random.default_rng(6)
    for shape in ((200, 130, 3), (300, 1, 1), (65, 64, 1)):
        small = rng.integers(0, 255, (30, *(-(-side // 10) for side in shape[:2]), shape[2]))
        pictures = np.kron(small, np.ones((1, 10, 10, 1)))[:, : shape[0], : shape[1]].astype(np.uint8)
        pictures[29] = noisy(pictures[3], rng)
        one = held(pictures)
        (values,) = copies.spaces_of(one)
        assert values.shape[0] == 30 and values.shape[1] <= 64 * 64 * shape[2]
        assert np.flatnonzero(copies.find_copies(one).copy_of >= 0).tolist() == [29]
        square = -(-max(shape[:2]) // 64)
        assert values[0, 0] == pytest.approx(pictures[0, :square, :square, 0].mean(), rel=1e-6)


def test_a_large_site_is_searched_in_lists(monkeypatch):
    """The results of the search in lists equal those of the exact search: copies, near copies, far samples and distances."""
    rng = np.random.default_rng(8)
    points = rng.normal(size=(nearby.EXACT + 500, 20)).astype(np.float32)
    points[-40:-10] = points[:30] + 0.01 * rng.normal(size=(30, 20)).astype(np.float32)
    points[-10:-5], points[-5:] = points[100:105], points[200:205] + 30
    results = []
    for limit in (nearby.EXACT, 2 * nearby.EXACT):
        monkeypatch.setattr(nearby, "EXACT", limit)
        results.append(copies.find_copies(held(points), neighbors=2))
    first, second = results
    assert first.counts == second.counts and first.counts["copies"] == 5 and first.counts["near_copies"] == 30
    assert np.array_equal(first.copy_of, second.copy_of) and np.array_equal(first.far, second.far)


@pytest.mark.parametrize(("size", "k"), [(30, 3), (300, 12), (9, 8)])
def test_a_search_by_products_is_exact(size, k):
    points = np.random.default_rng(size).normal(size=(size, 5)).astype(np.float32) + 1000
    points[3] = points[5]
    away, near = nearby.exact(points, np.arange(size), k)
    naive = np.sqrt(((points[:, None].astype(float) - points[None]) ** 2).sum(2))
    np.fill_diagonal(naive, np.inf)
    np.testing.assert_allclose(away, np.sort(naive, 1)[:, :k], atol=1e-9)
    assert all(len(set(row)) == k and i not in row for i, row in enumerate(near.tolist()))


def test_a_very_large_site_counts_exact_copies_only(monkeypatch):
    points = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    points[7] = points[3]
    points[9] = points[5] + 1e-6
    assert copies.find_copies(held(points)).counts["near_copies"] == 1
    monkeypatch.setattr(copies, "MOST_SEARCHED", 30)
    assert copies.find_copies(held(points)).counts == {"copies": 1, "near_copies": 0, "far": 0}


def test_copies_at_other_sites_are_named(few_trees, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).round(4)
    site, label = np.repeat(["north", "east", "south"], 100), np.where(x[:, 0] > 0, "ill", "well")
    x[150], label[150] = x[3], label[3]  # one patient of the east is also in the north
    rows = [f"{','.join(map(str, values))},{where},{what}" for values, where, what in zip(x, site, label, strict=True)]
    (tmp_path / "cases.csv").write_text("a,b,c,d,e,site,label\n" + "\n".join(rows) + "\n")
    fed = fnlkit.partition(str(tmp_path / "cases.csv"), scheme="sites", duplicates="allow", holdout=0, say=None)
    facts = fnlkit.audit(fed, say=None).facts
    assert len(facts["shared"]) == 1 and "east and north 1" in facts["shared"][0]
    assert fnlkit.audit(fnlkit.partition("digits", clients=3, labels="observed"), say=None).facts["shared"] == []
