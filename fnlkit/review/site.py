"""What an audit computes where the data lies: client steps, whose replies are all that leaves a site."""

import hashlib

import numpy as np
import torch

from fnlkit.estimators import em
from fnlkit.methods.sends import Sent
from fnlkit.streams import stream

SENDS = {
    "class_counts": Sent("how many of its samples carry each given label", "once", ("C",), "int64"),
    "log_likelihoods": Sent("how likely its labels are under each tempering of the model", "once", (len(em.TEMPERS),)),
    "level": Sent("its estimated share of wrong labels", "once"),
    "low": Sent("lower end of the level's interval", "once"),
    "high": Sent("upper end of the level's interval", "once"),
    "deviation": Sent("standard deviation of the level", "once"),
    "counts": Sent("expected numbers of samples by true and given class", "once", ("C", "C")),
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


def keep_scores(client, model, received):
    """Keep the received model's log-probabilities of each sample as rows; reply nothing."""
    client.rows["audit/scores"] = torch.log_softmax(model(client.x).double().cpu(), -1)


def reply_likelihoods(client, model, received, *, prior):
    """Reply the log-likelihood of the labels under each tempering (fnlkit.estimators.em.log_likelihoods)."""
    scores, labels = client.rows["audit/scores"].numpy(), client.y.numpy()
    return {"log_likelihoods": torch.from_numpy(em.log_likelihoods(scores, labels, prior=prior))}


def judge_labels(client, model, received, *, prior, seed):
    """Reply the noise level and the expected counts; keep issue score and suggested label of each sample as rows."""
    scores, labels = client.rows["audit/scores"].numpy(), client.y.numpy()
    rng = stream(seed, "em", client=client.id)
    found = em.fit(scores, labels, float(received["temper"]), prior=prior, rng=rng)
    posterior = found["posterior"]
    client.rows["audit/issue"] = torch.from_numpy(1 - posterior[np.arange(len(labels)), labels])
    client.rows["audit/suggested"] = torch.from_numpy(posterior.argmax(1))
    reply = {name: torch.tensor(float(found[name]), dtype=torch.float64) for name in ("level", "low", "high")}
    reply["deviation"] = torch.tensor(float(found["draws"].std()), dtype=torch.float64)
    return reply | {"counts": torch.from_numpy(found["counts"])}


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
