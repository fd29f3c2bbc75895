"""Every kernel once more, as slowly and plainly as it can be said: what the compiled ones must equal."""

import math
from pathlib import Path

import numpy as np


def golden(name):
    """Return {name: array} of recorded results of the authors' own functions (tests/golden)."""
    with np.load(Path(__file__).parent / f"golden/{name}.npz", allow_pickle=False) as file:
        return dict(file)


def class_thresholds(probs, labels):
    """Mean probability of each class over the samples with that label; 2 where there are none."""
    classes = probs.shape[1]
    out = np.full(classes, 2.0)
    for c in range(classes):
        own = [float(p[c]) for p, y in zip(probs, labels, strict=True) if y == c]
        if own:
            out[c] = max(sum(own) / len(own), 2e-6)
    return out


def count_matrix(probs, labels, thresholds, least_diagonal=1):
    """counts[true, given] by the three cases: one confident class, several, none."""
    classes = probs.shape[1]
    counts = np.zeros((classes, classes), int)
    for p, y in zip(probs, labels, strict=True):
        confident = [c for c in range(classes) if float(p[c]) >= thresholds[c] - 1e-6]
        if len(confident) == 1:
            counts[confident[0], y] += 1
        elif confident:
            counts[int(np.argmax(p)), y] += 1
    for c in range(classes):
        counts[c, c] = max(counts[c, c], least_diagonal if len(labels) else 0)
    return counts


def count_matrix_of_largest(probs, labels, thresholds, least_diagonal=1):
    """counts[true, given] where the first largest probability reaches its threshold."""
    classes = probs.shape[1]
    counts = np.zeros((classes, classes), int)
    for p, y in zip(probs, labels, strict=True):
        largest = max(range(classes), key=lambda c: float(p[c]))
        if float(p[largest]) >= thresholds[largest] - 1e-6:
            counts[largest, y] += 1
    for c in range(classes):
        counts[c, c] = max(counts[c, c], least_diagonal if len(labels) else 0)
    return counts


def distances(points, i):
    """Distances from point i to the others, in the order of the points."""
    return [math.dist(points[i], other) for j, other in enumerate(points) if j != i]


def lid(points, k):
    """Maximum likelihood by its formula, with the documented answers where it has none."""
    out = []
    for i in range(len(points)):
        near = sorted(distances(points, i))[:k]
        if len(near) < 2 or near[0] == 0:
            out.append(0.0)
            continue
        mean = sum(math.log(r / near[-1]) for r in near) / len(near)
        out.append(1e6 if mean == 0 else min(-1 / mean, 1e6))
    return np.array(out)


def lid_fedcorr(points, k):
    """The same with the two small numbers of the public code."""
    out = []
    for i in range(len(points)):
        near = sorted(distances(points, i))[:k]
        if not near or near[0] == 0:
            out.append(0.0)
            continue
        out.append(-k / (sum(math.log(r / (near[-1] + 1e-6)) for r in near) + 1e-6))
    return np.array(out)


def knn(points, labels, classes, k, include_self, draws, groups=None):
    """Votes and shares; equal distances in the order of the points, equal votes by the draw, if negative the lowest."""
    groups = range(len(points)) if groups is None else groups
    votes, shares = [], []
    for i in range(len(points)):
        others = [j for j in range(len(points)) if (include_self and j == i) or groups[j] != groups[i]]
        near = sorted(others, key=lambda j: sum((points[i] - points[j]) ** 2))[:k]
        if not near:
            votes.append(labels[i])
            shares.append(0.0)
            continue
        tally = [sum(labels[j] == c for j in near) for c in range(classes)]
        best = [c for c in range(classes) if tally[c] == max(tally)]
        votes.append(best[int(draws[i] * len(best))] if draws[i] >= 0 else best[0])
        shares.append(1 - tally[labels[i]] / len(near))
    return np.array(votes, int), np.array(shares, float)


def project(v):
    """Duchi et al. 2008: sort, find the last entry above its threshold, cut."""
    ordered, total, threshold = sorted(v, reverse=True), 0.0, 0.0
    for j, value in enumerate(ordered, 1):
        total += value
        if value - (total - 1) / j > 0:
            threshold = (total - 1) / j
    return np.maximum(v - threshold, 0)


def flip(labels, matrix, uniforms):
    """First class at which the running sum of the row exceeds the draw."""
    out = []
    for y, u in zip(labels, uniforms, strict=True):
        row, total = matrix[y], 0.0
        for c, p in enumerate(row):
            total += p
            if u < total or not any(row[c + 1 :]):
                out.append(c)
                break
    return np.array(out, int)


def respond(labels, keep, uniforms, classes):
    """Keep, or take one of the others."""
    out = []
    for y, (first, second) in zip(labels, uniforms, strict=True):
        others = [c for c in range(classes) if c != y]
        out.append(y if first < keep else others[int(second * len(others))])
    return np.array(out, int)


def dawid_skene(votes, classes, rounds, prior, strength):
    """Expectation maximization by its formulas (Dawid and Skene 1979), from the shares of votes."""
    m, people = votes.shape
    cast = [[(a, int(votes[i, a])) for a in range(people) if votes[i, a] >= 0] for i in range(m)]
    q = np.array([[sum(label == t for _, label in row) / len(row) for t in range(classes)] for row in cast])
    for _ in range(rounds):
        counts = np.zeros((people, classes, classes))
        for i, row in enumerate(cast):
            for a, label in row:
                counts[a, :, label] += q[i]
        common = counts.sum(0) + prior * np.eye(classes)
        common /= common.sum(1, keepdims=True)
        counts += strength * common
        total = counts.sum(2, keepdims=True)
        error = np.where(total > 0, counts / np.where(total > 0, total, 1), 1 / classes)
        share = q.mean(0)
        before, q = q, np.empty_like(q)
        for i, row in enumerate(cast):
            likely = [share[t] * math.prod(error[a, t, label] for a, label in row) for t in range(classes)]
            q[i] = np.array(likely) / sum(likely)
        if np.abs(q - before).max() < 1e-6:
            break
    return q, error, share


def annotator(p, labels, common, strength, steps, counts=0.0):
    """Return (q, matrix, counts in the matrix, counts of q) of expectation maximization of one annotator, sample by sample."""
    classes = len(common)
    counts = counts + np.zeros((classes, classes))
    for _ in range(steps + 1):
        before = counts
        matrix = before + strength * common
        matrix = matrix / matrix.sum(1, keepdims=True)
        q = np.array([[p[i, z] * matrix[z, y] for z in range(classes)] for i, y in enumerate(labels)]).reshape(-1, classes)
        q /= q.sum(1, keepdims=True)
        counts = np.zeros((classes, classes))
        for i, y in enumerate(labels):
            counts[:, y] += q[i]
    return q, matrix, before, counts
