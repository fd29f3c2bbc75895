"""Several annotators' votes to one label a sample, and how far they agree.

Dawid, Skene. Maximum likelihood estimation of observer error-rates using the EM algorithm. Applied Statistics 1979.
"""

import os
from dataclasses import replace

import numpy as np

from fnlkit.artefacts import files, paths
from fnlkit.datasets.table import read_table
from fnlkit.errors import InputError
from fnlkit.review.suspects import reviewed

METHODS = ("majority", "dawid-skene", "crowdlab")


def consensus(federation, votes, method="dawid-skene", *, annotators=None, probabilities=None, provenance=None):
    """Return (federation, facts): given labels become the annotators' consensus, site by site; votes stay in it.

    Parameters
    ----------
    federation : fnlkit.artefacts.federation.Federation
    votes : int (n, A)
        Labels by sample and annotator, -1 where there is none.  A sample without votes keeps its label, and so does one
        that a person decided in a review.
    method : str
        One of METHODS: most votes, ties to the lower class; `dawid_skene`, each site by itself; CROWDLAB (Goh 2022) by
        cleanlab, which weighs a classifier's probabilities with the votes.
    annotators : list of A str, optional
    probabilities : (n, C), optional
        For crowdlab: predicted by a model that did not train on the sample.
    provenance : dict, optional

    Returns
    -------
    federation : Federation
        With arrays ``votes`` (n, A), ``consensus_confidence`` (n,) in [0, 1] (0 without votes) and, where labels changed,
        ``received``.
    facts : list of dict
        One a site: site, samples, voted, annotators, alpha (Krippendorff's), kappa (Fleiss's, None where samples have
        unequal numbers of votes), changed, accuracies {annotator: expected share that equals the true label}, of dawid-skene.

    Raises
    ------
    InputError
    """
    if method not in METHODS:
        raise InputError(f"--method is {method!r}; write one of {', '.join(METHODS)}")
    votes, classes = np.asarray(votes), federation.classes
    if votes.ndim != 2 or len(votes) != len(federation.given) or votes.dtype.kind not in "iu" or not votes.shape[1]:
        size = len(federation.given)
        raise InputError(f"`votes` is {votes.dtype} {votes.shape}; expected whole numbers ({size:,}, A), a column an annotator")
    if votes.min() < -1 or votes.max() >= classes:
        raise InputError(f"`votes` runs from {votes.min()} to {votes.max()}; labels go from 0 to {classes - 1}, -1 is no vote")
    names = annotators or [str(a) for a in range(votes.shape[1])]
    given, confidence, facts = np.array(federation.given, np.int64), np.zeros(len(votes)), []
    for k, part in enumerate(federation.whole().clients):
        here = part[(votes[part] >= 0).any(1)]
        row = {"site": federation.names[k], "samples": len(part), "voted": len(here), "changed": 0}
        if len(here):
            posterior, quality = _decided(votes[here], classes, method, None if probabilities is None else probabilities[here])
            label = posterior.argmax(1)
            keep = reviewed(federation)[here]
            row["changed"] = int((label != given[here])[~keep].sum())
            given[here[~keep]], confidence[here] = label[~keep], posterior.max(1)
            row |= {"alpha": krippendorff(votes[here], classes), "kappa": fleiss(votes[here], classes)}
            if quality is not None:
                there = (votes[here] >= 0).any(0)
                row["accuracies"] = {name: float(q) for name, q, a in zip(names, quality, there, strict=True) if a}
        facts.append(row)
    extra = {"received": np.array(federation.given), **federation.extra}
    extra |= {"votes": votes.astype(np.int64), "consensus_confidence": confidence}
    record = {"method": method, "annotators": list(names), "changed": sum(row["changed"] for row in facts)}
    meta = {**federation.meta, "consensus": [*federation.meta.get("consensus", []), record]}
    if provenance is not None:
        meta["provenance"] = [*meta.get("provenance", []), provenance]
    # Judgements of the labels before are judgements no more.
    meta.pop("estimate", None)
    extra = {name: values for name, values in extra.items() if not name.startswith("estimate_")}
    out = replace(federation, given=given, extra=extra, meta=meta)
    out.check()
    return out, facts


def _decided(votes, classes, method, probabilities):
    """Return (posterior (m, C), each annotator's share of right labels (A,) or None)."""
    if method == "majority":
        return shares(votes, classes), None
    if method == "dawid-skene":
        posterior, error, prior = dawid_skene(votes, classes)
        return posterior, np.einsum("c,acc->a", prior, error)
    if probabilities is None:
        raise InputError("crowdlab weighs votes with a model's probabilities; write --probs FILE, or --method dawid-skene")
    return _crowdlab(votes, classes, probabilities), None


def shares(votes, classes):
    """Return the share of each class (m, C) among the votes (m, A) of a sample; each has one at least."""
    counts = (votes[:, :, None] == np.arange(classes)).sum(1)
    return counts / counts.sum(1, keepdims=True)


def dawid_skene(votes, classes, *, rounds=200, prior=0.1):
    """Return (posterior (m, C), error rates (A, C, C), class shares (C,)) by expectation maximisation.

    Annotator a gives label l to a sample of class t with probability error[a, t, l], independently of the others.  It starts
    from the shares of votes; each row of error rates is credited with `prior` right labels, so that an annotator of few
    votes is taken for a fair one.

    Parameters
    ----------
    votes : int (m, A)
        -1 where there is none; one vote a sample at least.
    classes : int
    rounds : int
        Ends earlier when nothing changes by 1e-6.
    prior : float >= 0
    """
    cast = (votes[:, :, None] == np.arange(classes)).astype(np.float64)
    posterior = shares(votes, classes)
    for _ in range(rounds):
        error = np.einsum("mt,mal->atl", posterior, cast) + prior * np.eye(classes)
        total = error.sum(2, keepdims=True)
        error = np.where(total > 0, error / np.where(total > 0, total, 1), 1 / classes)
        share = posterior.mean(0)
        log = np.log(np.maximum(share, 1e-300)) + np.einsum("mal,atl->mt", cast, np.log(np.maximum(error, 1e-300)))
        new = np.exp(log - log.max(1, keepdims=True))
        new /= new.sum(1, keepdims=True)
        moved, posterior = np.abs(new - posterior).max(), new
        if moved < 1e-6:
            break
    return posterior, error, share


def _crowdlab(votes, classes, probabilities):
    try:
        import pandas
        from cleanlab.multiannotator import get_label_quality_multiannotator
    except ImportError as error:
        raise InputError("crowdlab is cleanlab's; pip install 'fnlkit[consensus]', or --method dawid-skene") from error
    table = pandas.DataFrame(np.where(votes >= 0, votes, np.nan))
    table = table.loc[:, table.notna().any()]  # it refuses annotators who said nothing here
    found = get_label_quality_multiannotator(table, probabilities, verbose=False)["label_quality"]
    label, quality = found["consensus_label"].to_numpy(int), found["consensus_quality_score"].to_numpy(float)
    out = np.repeat((1 - quality)[:, None] / (classes - 1), classes, 1)
    # The label stays the most probable one where cleanlab doubts it.
    out[np.arange(len(out)), label] = np.maximum(quality, out.max(1) + 1e-9)
    return out / out.sum(1, keepdims=True)


def krippendorff(votes, classes):
    """Return Krippendorff's alpha for names: 1 when all agree, 0 as by chance; None where nothing can be compared.

    Source: Krippendorff 2011, Computing Krippendorff's alpha-reliability, section C.
    """
    counts = (votes[:, :, None] == np.arange(classes)).sum(1).astype(np.float64)
    counts = counts[counts.sum(1) > 1]
    many = counts.sum(1)
    total = many.sum()
    if not total:
        return None
    among = counts.sum(0)
    seen = ((counts * (many[:, None] - counts)).sum(1) / (many - 1)).sum()
    chance = (among * (total - among)).sum() / (total - 1)
    return 1.0 if not chance else float(1 - seen / chance)


def fleiss(votes, classes):
    """Return Fleiss's kappa, or None unless each sample has the same number of votes, two or more (Fleiss 1971)."""
    counts = (votes[:, :, None] == np.arange(classes)).sum(1)
    many = counts.sum(1)
    if many.min() != many.max() or many[0] < 2:
        return None
    chance = ((counts.sum(0) / counts.sum()) ** 2).sum()
    seen = ((counts * (counts - 1)).sum(1) / (many * (many - 1))).mean()
    return 1.0 if chance == 1 else float((seen - chance) / (1 - chance))


def read_votes(path, federation):
    """Return (votes (n, A), names of the annotators) of a file.

    Parameters
    ----------
    path : str
        npz or npy with an array ``votes`` (n, A) of labels, -1 for none; or a table (csv, Parquet) with a column ``id`` and a
        column an annotator, whose cells are names of classes or empty.  An id is the federation's ``sample_id``, or the
        position of the sample where it has none.
    federation : fnlkit.artefacts.federation.Federation

    Raises
    ------
    InputError
        Naming the file and the row.
    """
    if os.fspath(path).lower().endswith((".npz", ".npy")):
        votes = files.pick(files.read_arrays(path), "", path)
        return votes, [str(a) for a in range(votes.shape[1] if votes.ndim == 2 else 0)]
    table = read_table(path)
    table.must_have("id", "votes")
    names = [name for name in table.columns if name != "id"]
    if not names:
        raise InputError(f"{paths.shown(path)}: no column beside id; each annotator has one")
    ids = federation.extra.get("sample_id")
    place = {str(v): i for i, v in enumerate(range(len(federation.given)) if ids is None else ids)}
    words = federation.meta.get("class_names") or list(map(str, range(federation.classes)))
    index = {"": -1, **{str(word): c for c, word in enumerate(words)}}
    rows = table.texts("id")
    if unknown := [i for i, text in enumerate(rows) if text not in place]:
        table.fail(unknown, f"no sample {rows[unknown[0]]!r} in the federation")
    votes = np.full((len(federation.given), len(names)), -1, np.int64)
    for a, name in enumerate(names):
        cells = table.texts(name)
        if unknown := [i for i, text in enumerate(cells) if text not in index]:
            table.fail(unknown, f"{name} says {cells[unknown[0]]!r}; classes are {', '.join(map(str, words[:12]))}")
        votes[[place[text] for text in rows], a] = [index[text] for text in cells]
    return votes, names
