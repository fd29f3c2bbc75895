"""What an audit computes where the data lies: client steps, whose replies are all that leaves a site."""

import hashlib

import numpy as np
import torch

from fnlkit.estimators import em
from fnlkit.methods.sends import Sent

SENDS = {
    "class_counts": Sent("how many of its samples carry each given label", "once", ("C",), "int64"),
    **em.JUDGED,
    "fingerprints": Sent("a salted hash of each sample, to find copies", "once", ("n",), "int64"),
    "copies": Sent("how many of its samples are exact copies within the site", "once", (), "int64"),
    "near_copies": Sent("how many more are nearly copies", "once", (), "int64"),
    "far": Sent("how many of its samples lie far from all others", "once", (), "int64"),
}
# A sample whose nearest neighbour is this much nearer than usual is nearly a copy of it.
NEAR = 0.02


def describe(client, model, received):
    """Reply how many samples carry each given label (C,)."""
    return {"class_counts": torch.bincount(client.y, minlength=client.classes)}


def find_copies(client, model, received, *, neighbours):
    """Reply salted fingerprints, numbers of copies and of samples far from everything; keep which they are as rows.

    A copy equals an earlier sample of the site byte by byte.  Nearly copies have a nearest neighbour at under 2 % of the
    usual distance.  Far is a distance to the k-th neighbour above the third quartile by three times the quartiles'
    distance (Tukey's far out).
    """
    from sklearn.neighbors import NearestNeighbors

    salt = received["salt"].numpy().tobytes()
    raw = np.ascontiguousarray(client.x.numpy())
    digests = [hashlib.blake2b(sample.tobytes(), digest_size=8, key=salt).digest() for sample in raw]
    prints = np.frombuffer(b"".join(digests), "<i8").astype(np.int64)
    _, first, inverse = np.unique(prints, return_index=True, return_inverse=True)
    copy = first[inverse] != np.arange(len(prints))
    points = raw if client.inputs.image else client.inputs.plain(client.x).cpu().numpy()  # features of one scale
    points = client.rows["input/embedding"].numpy() if "input/embedding" in client.rows else points.reshape(len(raw), -1)
    near, far = np.zeros(len(raw), bool), np.zeros(len(raw), bool)
    k = min(neighbours, len(raw) - 1)
    if k >= 1:
        distance, _ = NearestNeighbors(n_neighbors=k).fit(points.astype(np.float32)).kneighbors()
        near = (distance[:, 0] < NEAR * np.median(distance[:, 0])) & (distance[:, 0] > 0)
        low, high = np.percentile(distance[:, -1], [25, 75])
        far = distance[:, -1] > high + 3 * (high - low)
    for name, mask in (("copy", copy), ("near_copy", near), ("far", far)):
        client.rows[f"audit/{name}"] = torch.from_numpy(mask)
    numbers = {"copies": copy, "near_copies": near, "far": far}
    return {"fingerprints": torch.from_numpy(prints)} | {name: torch.tensor(int(mask.sum())) for name, mask in numbers.items()}
