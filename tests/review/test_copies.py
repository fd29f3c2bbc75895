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
    said = [copies.find_copies(one, None, salt, neighbours=5) for one in people]
    width = copies.cell_width(np.array([float(one["near_distance"]) for one in said]))
    told = salt | {"width": torch.tensor(width, dtype=torch.float64)}
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
    assert all(0 < float(one["near_distance"]) for one in said)


@pytest.mark.parametrize("how", ["recompressed", "noisy"])
def test_copies_across_sites_are_counted_as_what_they_are(parts, how):
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
    said = copies.find_copies(one, None, {"salt": torch.tensor([3, 5])}, neighbours=5)
    assert int(said["copies"]) == 3 and int(said["near_copies"]) == 10
    assert one.rows["audit/copy_of"].tolist() == [-1] * 250 + list(range(10)) + [50, 51, 52]


def test_an_embedding_decides_what_is_near(parts):
    """Pictures that have nothing in common are near copies where their embeddings are."""
    rng = np.random.default_rng(3)
    embeddings = [rng.normal(size=(len(part), 16)) for part in parts]
    embeddings[3][:5] = embeddings[0][:5] + rng.normal(size=(5, 16)) * 0.02
    _, exact, near = found(parts, embeddings)
    assert exact == [{}] * SITES and near == [{3: 5}, {}, {}, {0: 5}]


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
    assert copies.cell_width(np.zeros(3)) == 0


def test_cells_say_nothing_of_a_sample_without_the_salt(parts):
    """Hashes of one sample under two salts share nothing, and a sample's values are not among them."""
    one, width = Held(parts[0]), torch.tensor(100.0)
    first, other = (
        copies.reply_cells(one, None, {"salt": torch.tensor([3, salt]), "width": width})["cells"].numpy() for salt in (5, 6)
    )
    assert first.shape == (250, copies.HASHES) and not np.isin(first, other).any()
    assert not np.isin(first, parts[0]).any()
