"""Copies that were planted are found, exact and recompressed and noisy ones, within a site and across sites; else none are."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from fnlkit import datasets
from fnlkit.client.inputs import Inputs
from fnlkit.review import copies

SITES = 4


def recompressed(picture):
    file = io.BytesIO()
    Image.fromarray(picture[..., 0]).save(file, "JPEG", quality=90)
    return np.asarray(Image.open(file))[..., None]


def noisy(picture, rng):
    return np.clip(np.rint(picture + rng.normal(size=picture.shape) * 2), 0, 255).astype(np.uint8)


def found(parts, embeddings=None):
    """Return (replies of each site, exact copies across, near copies across), as the audit asks for them."""
    salt = {"salt": torch.tensor([3, 5])}
    people = [Held(*both) for both in zip(parts, embeddings or [None] * len(parts), strict=True)]
    said = [copies.find_copies(one, None, salt, neighbors=5) for one in people]
    widths = copies.cell_widths(np.stack([one["near_distance"].numpy() for one in said]))
    told = salt | {"width": torch.from_numpy(widths if embeddings else widths[:1])}
    cells = [copies.reply_cells(one, None, told)["cells"].numpy() for one in people]
    prints = [one["fingerprints"].numpy() for one in said]
    return said, copies.shared_copies(prints), copies.shared_near_copies(cells, prints)


class Held:
    """A client's samples, and an embedding of them where there is one."""

    def __init__(self, pictures, embedding=None):
        self.x, self.inputs = torch.from_numpy(np.ascontiguousarray(pictures)), Inputs(True, (0.0,), (1.0,))
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
    said = copies.find_copies(one, None, {"salt": torch.tensor([3, 5])}, neighbors=5)
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
        copies.find_copies(one, None, {"salt": torch.tensor([3, 5])}, neighbors=5)
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
            found += away.min() < copies.near_distance(away)
        assert found <= 5, dimensions
    assert copies.near_distance(np.arange(7.0)) == copies.near_distance(np.ones(50)) == copies.near_distance(np.zeros(50)) == 0
    assert not copies.cell_widths(np.zeros((3, 2))).any()


def test_hashes_reveal_nothing_without_the_salt(parts):
    """Hashes of one sample under two salts share nothing, and a sample's values are not among them."""
    one, width = Held(parts[0]), torch.tensor([100.0])
    first, other = (
        copies.reply_cells(one, None, {"salt": torch.tensor([3, salt]), "width": width})["cells"].numpy() for salt in (5, 6)
    )
    assert first.shape == (250, copies.HASHES) and not np.isin(first, other).any()
    assert not np.isin(first, parts[0]).any()
