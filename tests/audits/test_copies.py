"""Copies that were planted are found, exact and recompressed and noisy ones, within a site and across sites; else none are."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from fnlkit import datasets
from fnlkit.audits import cells, copies
from fnlkit.client.inputs import Inputs
from fnlkit.errors import InputError
from fnlkit.kernels import nearby

SITES = 4
SALT = {"salt": torch.tensor([3, 5]), "samples": torch.tensor(0)}


def recompressed(picture):
    file = io.BytesIO()
    Image.fromarray(picture[..., 0]).save(file, "JPEG", quality=90)
    return np.asarray(Image.open(file))[..., None]


def noisy(picture, rng):
    return np.clip(np.rint(picture + rng.normal(size=picture.shape) * 2), 0, 255).astype(np.uint8)


def found(parts, embeddings=None):
    """Return (replies of each site, exact copies across, near copies across), as the audit asks for them."""
    salt = {"salt": torch.tensor([3, 5]), "samples": torch.tensor(sum(map(len, parts)))}
    people = [Held(*both) for both in zip(parts, embeddings or [None] * len(parts), strict=True)]
    said = [copies.find_copies(one, None, salt, neighbors=5) for one in people]
    near, typical = (np.stack([one[name].numpy() for one in said]) for name in ("near_distance", "typical_distance"))
    spaces = slice(None if embeddings else 1)
    widths, projections = map(torch.from_numpy, cells.cells_of(near[:, spaces], typical[:, spaces], int(salt["samples"])))
    told = salt | {"width": widths, "projections": projections}
    hashes = [cells.reply_cells(one, None, told)["cells"].numpy() for one in people]
    prints = [one["fingerprints"].numpy() for one in said]
    return said, copies.count_copies(prints), cells.count_near_copies(hashes, prints)


class Held:
    """A client's samples, and an embedding of them where there is one."""

    def __init__(self, pictures, embedding=None):
        self.x = torch.from_numpy(np.ascontiguousarray(pictures))
        self.inputs = Inputs(True, (0.0,), (1.0,)) if self.x.ndim > 2 else Inputs(False, (0.0,), (1.0,))
        self.rows = {} if embedding is None else {"input/embedding": torch.from_numpy(embedding.astype(np.float32))}

    def __len__(self):
        return len(self.x)


@pytest.fixture(scope="module")
def parts():
    pictures = datasets.load("digits").x_train
    return np.split(pictures[np.random.default_rng(0).permutation(len(pictures))[:1000]], SITES)


def test_where_nothing_was_planted_nothing_is_found(parts):
    said, exact, near = found(parts)
    assert exact == near == [{}] * SITES
    assert all(int(one["copies"]) == int(one["near_copies"]) == 0 for one in said)
    assert all(0 < float(one["near_distance"][0]) for one in said)


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_exact_and_near_copies_across_sites_are_counted(parts, how):
    rng = np.random.default_rng(1)
    changed = [recompressed(p) if how == "recompressed" else noisy(p, rng) for p in parts[0][:20]]
    assert not any((a == b).all() for a, b in zip(changed, parts[0], strict=False))
    planted = [parts[0], np.concatenate([parts[1], changed]), np.concatenate([parts[2], parts[0][30:34]]), parts[3]]
    said, exact, near = found(planted)
    assert exact == [{2: 4}, {}, {0: 4}, {}]
    assert near[0].keys() == {1} and near[1].keys() == {0} and not near[2] and not near[3]
    assert near[0][1] >= 17 and near[1][0] >= 17
    assert all(int(one["copies"]) == int(one["near_copies"]) == 0 for one in said)


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_copies_within_a_site_are_counted_once(parts, how):
    rng = np.random.default_rng(2)
    changed = [recompressed(p) if how == "recompressed" else noisy(p, rng) for p in parts[0][:10]]
    one = Held(np.concatenate([parts[0], changed, parts[0][50:53]]))
    said = copies.find_copies(one, None, SALT, neighbors=5)
    assert int(said["copies"]) == 3 and int(said["near_copies"]) == 10
    assert one.rows["audit/copy_of"].tolist() == [-1] * 250 + list(range(10)) + [50, 51, 52]


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
        said, exact, near = found(parts, embeddings)
        assert exact == near == [{}] * SITES and not any(int(one["near_copies"]) for one in said)


def test_copies_found_by_an_embedding_are_verified_on_the_samples(parts):
    """Pictures with nothing in common are no copies although their embeddings are equal; neither are blank ones."""
    embeddings = crowded(parts)
    embeddings[3][:5] = embeddings[0][:5]
    embeddings[1][1] = embeddings[1][0]
    blank = [part.copy() for part in parts]
    for i, level in enumerate((0, 128, 255)):
        blank[0][20 + i], embeddings[0][20 + i] = level, embeddings[0][20]
        blank[2][20 + i], embeddings[2][20 + i] = level + (level == 0), embeddings[0][20]
    said, exact, near = found(blank, embeddings)
    assert near == [{}] * SITES and not any(int(one["near_copies"]) for one in said)
    assert exact[0] == {2: 2} == {2: exact[2][0]}


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_planted_copies_are_found_by_an_embedding(parts, how):
    rng = np.random.default_rng(5)
    changed = np.stack([recompressed(p) if how == "recompressed" else noisy(p, rng) for p in parts[0][:20]])
    planted = [parts[0], np.concatenate([parts[1], changed]), np.concatenate([parts[2], changed[:3], parts[2][:3]]), parts[3]]
    planted[3] = np.concatenate([parts[3], [noisy(p, rng) for p in parts[3][:10]]])
    said, exact, near = found(planted, [cone(part) for part in planted])
    assert near[0][1] >= 17 and near[1][0] >= 17 and not near[3]
    assert [int(one["near_copies"]) for one in said] == [0, 0, 0, 10] and [int(one["copies"]) for one in said] == [0, 0, 3, 0]


def test_large_images_are_compared_at_a_small_size():
    """Averaged to at most 64 pixels a side, thin images too; what was planted is found."""
    rng = np.random.default_rng(6)
    for shape in ((200, 130, 3), (300, 1, 1), (65, 64, 1)):
        small = rng.integers(0, 255, (30, *(-(-side // 10) for side in shape[:2]), shape[2]))
        pictures = np.kron(small, np.ones((1, 10, 10, 1)))[:, : shape[0], : shape[1]].astype(np.uint8)
        pictures[29] = noisy(pictures[3], rng)
        one = Held(pictures)
        (values,) = copies.spaces_of(one)
        assert values.shape[0] == 30 and values.shape[1] <= 64 * 64 * shape[2]
        copies.find_copies(one, None, SALT, neighbors=5)
        assert np.flatnonzero(one.rows["audit/copy_of"].numpy() >= 0).tolist() == [29]
        square = -(-max(shape[:2]) // 64)
        assert values[0, 0] == pytest.approx(pictures[0, :square, :square, 0].mean(), rel=1e-6)


def test_the_distance_of_near_copies_leaves_a_small_chance_of_one():
    """Of data without copies few sets have a near pair, in few dimensions and in many; of too little nobody can say."""
    from sklearn.neighbors import NearestNeighbors

    for dimensions in (2, 8, 32):
        found = 0
        for seed in range(40):
            points = np.random.default_rng(seed).random((200, dimensions))
            away = NearestNeighbors(n_neighbors=1).fit(points).kneighbors()[0][:, 0]
            found += away.min() < nearby.near_and_typical(away)[0]
        assert found <= 5, dimensions
    for unknown in (np.arange(7.0), np.ones(50), np.zeros(50)):
        assert nearby.near_and_typical(unknown) == (0, 0)
    assert not cells.cells_of(np.zeros((3, 2)), np.zeros((3, 2)), 30)[0].any()


def test_hashes_reveal_nothing_without_the_salt(parts):
    """Hashes of one sample under two salts share nothing, and a sample's values are not among them."""
    one, told = Held(parts[0]), {"width": torch.tensor([100.0]), "projections": torch.tensor([16])}
    first, other = (cells.reply_cells(one, None, told | {"salt": torch.tensor([3, salt])})["cells"].numpy() for salt in (5, 6))
    assert first.shape == (250, cells.HASHES) and not np.isin(first, other).any()
    assert not np.isin(first, parts[0]).any()


@pytest.mark.parametrize("columns", [8, pytest.param(64, marks=pytest.mark.slow), 512])
def test_many_samples_are_not_near_copies_of_each_other(columns):
    """However many samples other sites hold, chance makes no copies of them, and planted ones are found."""
    rng = np.random.default_rng(7)
    parts = list(rng.normal(size=(SITES, 1000, columns)).astype(np.float32))
    said, exact, near = found(parts)
    assert exact == near == [{}] * SITES
    step = rng.normal(size=(40, columns)) * float(said[0]["near_distance"][0]) / 8 / columns**0.5
    parts[1] = np.concatenate([parts[1], parts[0][:40] + step.astype(np.float32)])
    said, exact, near = found(parts)
    assert near == [{1: 40}, {0: 40}, {}, {}]


def test_a_large_site_is_searched_in_lists(monkeypatch):
    """The results of the search in lists equal those of the exact search: copies, near copies, far samples and distances."""
    rng = np.random.default_rng(8)
    points = rng.normal(size=(nearby.EXACT + 500, 20)).astype(np.float32)
    points[-40:-10] = points[:30] + 0.01 * rng.normal(size=(30, 20)).astype(np.float32)
    points[-10:-5], points[-5:] = points[100:105], points[200:205] + 30
    replies, kept = [], []
    for limit in (nearby.EXACT, 2 * nearby.EXACT):
        monkeypatch.setattr(nearby, "EXACT", limit)
        one = Held(points)
        replies.append(copies.find_copies(one, None, SALT, neighbors=2))
        kept.append(one.rows)
    for name in ("copies", "near_copies", "far"):
        assert replies[0][name] == replies[1][name]
    assert int(replies[0]["copies"]) == 5 and int(replies[0]["near_copies"]) == 30
    for name in ("audit/copy_of", "audit/far"):
        assert torch.equal(kept[0][name], kept[1][name])
    assert torch.allclose(replies[0]["near_distance"], replies[1]["near_distance"], rtol=0.1)


def test_pairs_of_equal_hashes_match_a_naive_search():
    rng = np.random.default_rng(9)
    for sizes, values in (([5, 4, 0, 6], 5), ([3], 2), ([0, 0], 1), ([40, 40], 1), ([2, 1, 1], 50)):
        owner = np.repeat(np.arange(len(sizes)), sizes)
        column, wanted = rng.integers(0, values, len(owner)), set()
        for a in range(len(owner)):
            for site in set(owner.tolist()) - {owner[a]}:
                same = np.flatnonzero((owner == site) & (column == column[a]))
                wanted |= {(min(a, b), max(a, b)) for b in same[:1].tolist()}
        found = cells._pairs(column, owner).tolist()
        assert found == sorted(a * len(owner) + b for a, b in wanted)


def test_cells_that_no_server_sends_are_refused(parts):
    one = Held(parts[0])
    for width, projections in ((0.0, 16), (float("nan"), 16), (float("inf"), 16), (1.0, 0), (1.0, 10**9)):
        message = SALT | {"width": torch.tensor([width]), "projections": torch.tensor([projections])}
        with pytest.raises(InputError, match="refuses"):
            cells.reply_cells(one, None, message)


def test_impossible_distances_of_a_site_are_ignored():
    honest, typical = [[1.0], [1.1], [1.2]], [[2.0], [2.0], [2.0]]
    lies = [[5.0], [np.inf], [1e300], [0.0], [1.0]], [[0.0], [np.inf], [1.0], [2.0], [np.inf]]
    alone = cells.cells_of(np.array(honest), np.array(typical), 100)
    mixed = cells.cells_of(np.array(honest + lies[0]), np.array(typical + lies[1]), 100)
    assert [a.tolist() for a in alone] == [b.tolist() for b in mixed]
    assert not cells.cells_of(np.array(lies[0]), np.array(lies[1]), 100)[0].any()
