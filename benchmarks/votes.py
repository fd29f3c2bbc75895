"""Consensus of votes beside crowd-kit and cleanlab, on the same votes: ``python -m benchmarks.annotators [--labelme DIR]``.

Speed: Dawid and Skene's model, 20 rounds, 200,000 samples with 5 votes of 200 annotators, each program in a process of its own;
CPU time of the call, and the peak memory of the process.  Quality: accuracy of the consensus, and calibration, the mean
difference between an annotator's printed and true share of right labels (annotators with 10 votes or more).  Worlds: 1 to 5
votes per sample with the skills of `benchmarks.annotators`, and LabelMe (folder with answers.txt, LabelMe_Z_train.txt and
LabelMe_VGG_avg_train.npy), whose labels are people's.

Programs: `fnlkit consensus`; crowd-kit's DawidSkene; cleanlab's majority vote with agreement, and CROWDLAB, which also gets
predictions of a logistic regression on features, trained on the majority vote in 5 folds.  `fnlkit consensus --method
crowdlab` calls cleanlab.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np

ROUNDS, REPEATS = 20, 3
SAMPLES, PEOPLE, CLASSES, VOTES = 200_000, 200, 10, 5
# Skills, samples, annotators, classes.
WORLDS = [("coin", 1500, 40, 10), ("hammer", 1500, 40, 10), ("confuser", 1500, 40, 10), ("mixture", 1500, 40, 10),
          ("people", 1500, 40, 8), ("coin", 3000, 20, 4), ("mixture", 3000, 60, 3), ("hammer", 1000, 30, 2)]  # fmt: skip
LEAST = 10


# ---- speed
def many_votes():
    """Return (sample, annotator, label) of about a million votes, and the true labels."""
    rng = np.random.default_rng(0)
    true, skill = rng.integers(0, CLASSES, SAMPLES), rng.beta(8, 3, PEOPLE)
    pairs = np.unique(np.repeat(np.arange(SAMPLES), VOTES) * PEOPLE + rng.integers(0, PEOPLE, SAMPLES * VOTES))
    sample, annotator = pairs // PEOPLE, pairs % PEOPLE
    right = rng.random(len(pairs)) < skill[annotator]
    return sample, annotator, np.where(right, true[sample], rng.integers(0, CLASSES, len(pairs))), true


def measure(program):
    """Print CPU seconds of a call (smallest of REPEATS), peak memory in GB and accuracy, as JSON."""
    sample, annotator, label, true = many_votes()
    if program == "fnlkit":
        from fnlkit.kernels.dawid_skene import dawid_skene

        sizes = {"size": SAMPLES, "people": PEOPLE, "classes": CLASSES}
        dawid_skene([0], [0], [0], size=1, people=1, classes=1)  # loads the compiled code

        def call():
            return dawid_skene(sample, annotator, label, **sizes, rounds=ROUNDS).posterior.argmax(1)

    else:
        import pandas
        from crowdkit.aggregation import DawidSkene

        table = pandas.DataFrame({"task": sample, "worker": annotator, "label": label})

        def call():
            return DawidSkene(n_iter=ROUNDS, tol=0).fit_predict(table).sort_index().to_numpy()

    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = call()
        seconds.append(time.process_time() - start)
    # ru_maxrss would include the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9
    print(json.dumps({"votes": len(label), "seconds": min(seconds), "peak": peak, "accuracy": float((found == true).mean())}))


def compare_speed():
    found = {}
    for program in ("fnlkit", "crowd-kit"):
        line = [sys.executable, "-m", "benchmarks.votes", "--measure", program]
        found[program] = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
        one = found[program]
        print(f"{program:10} {one['votes']:,} votes, {ROUNDS} rounds: {one['seconds']:.2f} CPU s, peak {one['peak']:.2f} GB, "
              f"accuracy {100 * one['accuracy']:.1f} %", flush=True)  # fmt: skip
    ours, theirs = found["fnlkit"], found["crowd-kit"]
    faster, memory = theirs["seconds"] / ours["seconds"], ours["peak"] / theirs["peak"]
    print(f"fnlkit is {faster:.1f} times as fast, with {memory:.2f} of the memory")


# ---- quality
def simulated(skills, n, people, classes, seed):
    """Return (votes (n, A), true labels, features): 1 to 5 votes per sample; a logistic regression is right in about 80 %."""
    from benchmarks.annotators import matrices

    rng = np.random.default_rng([seed, n, people, classes, len(skills)])
    true = rng.integers(0, classes, n)
    T = matrices(skills, people, classes, rng)
    T /= T.sum(2, keepdims=True)
    size = rng.lognormal(0, 0.9, people)
    votes = np.full((n, people), -1)
    for i in range(n):
        for a in rng.choice(people, rng.integers(1, 6), replace=False, p=size / size.sum()):
            votes[i, a] = rng.choice(classes, p=T[a, true[i]])
    return votes, true, np.eye(classes)[true] + rng.normal(0, 0.5, (n, classes))


def labelme(folder):
    """Return (votes, true labels, features) of the images with a vote."""
    votes = np.loadtxt(folder / "answers.txt", int)
    true = np.loadtxt(folder / "LabelMe_Z_train.txt", int)
    some, people = (votes >= 0).any(1), (votes >= 0).any(0)
    features = np.load(folder / "LabelMe_VGG_avg_train.npy").reshape(len(votes), -1)
    return votes[some][:, people], true[some], features[some]


def predictions(features, votes, classes):
    """Return out-of-sample probabilities (n, C) of a logistic regression that is trained on the majority vote."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import StandardScaler

    from fnlkit.audits.consensus import shares

    label = shares(votes, classes).argmax(1)
    found = cross_val_predict(LogisticRegression(max_iter=200), StandardScaler().fit_transform(features), label, cv=5,
                              method="predict_proba")  # fmt: skip
    out = np.zeros((len(votes), classes))
    out[:, np.unique(label)] = found
    return out


def of_fnlkit(votes, classes):
    from fnlkit.audits.consensus import expected_shares, infer

    posterior = infer(votes, classes).posterior
    return posterior.argmax(1), expected_shares(votes, posterior)


def of_crowdkit(votes, classes):
    import pandas
    from crowdkit.aggregation import DawidSkene

    sample, annotator = np.nonzero(votes >= 0)
    found = DawidSkene(n_iter=100).fit(
        pandas.DataFrame({"task": sample, "worker": annotator, "label": votes[sample, annotator]})
    )
    prior, quality = found.priors_, np.full(votes.shape[1], np.nan)
    for a, error in found.errors_.groupby("worker"):
        observed = error.droplevel("worker")
        quality[a] = sum(prior.get(c, 0) * observed.loc[c].get(c, 0) for c in observed.index)
    return found.labels_.sort_index().to_numpy(), quality


def of_cleanlab(votes, classes, probabilities=None):
    import pandas
    from cleanlab.multiannotator import get_label_quality_multiannotator

    some = (votes >= 0).any(0)
    table = pandas.DataFrame(np.where(votes >= 0, votes, np.nan)).loc[:, some]
    how = {"consensus_method": "best_quality", "quality_method": "crowdlab"}
    if probabilities is None:
        probabilities = np.full((len(votes), classes), 1 / classes)
        how = {"consensus_method": "majority_vote", "quality_method": "agreement"}
    found = get_label_quality_multiannotator(table, probabilities, verbose=False, **how)
    quality = np.full(votes.shape[1], np.nan)
    quality[found["annotator_stats"].index.to_numpy(int)] = found["annotator_stats"]["annotator_quality"]
    return found["label_quality"]["consensus_label"].to_numpy(int), quality


NAMES = ("fnlkit", "crowd-kit", "cleanlab, majority", "cleanlab, CROWDLAB")


def compare(votes, true, features, classes):
    """Return (accuracy, calibration) in points, (programs, 2)."""
    sample, annotator = np.nonzero(votes >= 0)
    number = np.bincount(annotator, minlength=votes.shape[1])
    share = np.bincount(annotator, votes[sample, annotator] == true[sample], votes.shape[1]) / np.maximum(number, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [of_fnlkit(votes, classes), of_crowdkit(votes, classes), of_cleanlab(votes, classes),
                 of_cleanlab(votes, classes, predictions(features, votes, classes))]  # fmt: skip
    many = number >= LEAST
    return np.array(
        [(100 * (label == true).mean(), 100 * np.nanmean(np.abs(quality - share)[many])) for label, quality in found]
    )


def compare_quality(folder, seeds):
    print(f"accuracy of the consensus in %, and mean error of the printed shares in points; {len(seeds)} seeds")
    print(f"{'world':24} " + " ".join(f"{name:>20}" for name in NAMES))
    rows = []
    for world in WORLDS:
        name = f"{world[0]}, {world[2]} people, C={world[3]}"
        rows.append((name, np.mean([compare(*simulated(*world, seed), world[3]) for seed in seeds], axis=0)))
        _print_row(*rows[-1])
    if folder is not None:
        rows.append(("LabelMe", compare(*labelme(folder), 8)))
        _print_row(*rows[-1])
    _print_row("mean", np.mean([values for _, values in rows], axis=0))
    gap = min(values[0, 0] - values[1:3, 0].max() for _, values in rows)
    print(f"fnlkit against the better of crowd-kit and cleanlab without a model: at least {gap:+.1f} points")


def _print_row(name, values):
    print(f"{name:24} " + " ".join(f"{accuracy:13.1f} {error:6.1f}" for accuracy, error in values), flush=True)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--labelme", type=Path, help="folder with LabelMe's votes, labels and features")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="100 for development")
    parser.add_argument("--measure", help="measure the speed of one program in this process")
    parser.add_argument("--quality", action="store_true", help="only accuracy and calibration")
    options = parser.parse_args(arguments)
    if options.measure:
        return measure(options.measure)
    if not options.quality:
        compare_speed()
    compare_quality(options.labelme, range(options.first_seed, options.first_seed + options.seeds))
    return None


if __name__ == "__main__":
    main()
