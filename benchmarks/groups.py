"""Agreement on held-out samples and its range, with and without groups, against the true value.

    python -m benchmarks.groups

Simulates patients with 1 to 20 samples each at four sites.  Samples of a patient are similar, and all labels of a patient are
right or wrong together.  A model is trained with a fifth held out, first without `group`, so that patients are divided, then
with it.  The true agreement is that of the trained model with the given labels of 2,000 new patients.  The second table has the
range of the share of wrong labels by `em`, given the probabilities of the simulation, against the share among all patients.

The settings were chosen on the seeds from 1,000 on; the results are those of the seeds from 0 on.
"""

import argparse
from dataclasses import replace

import numpy as np

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.datasets.local import from_arrays
from fnlkit.estimators import run_estimator
from fnlkit.experiment.network import load_trained
from fnlkit.results.measured import measure_run

CLASSES, FEATURES, SITES, PATIENTS, NEW, LEVELS = 3, 20, 4, 160, 2000, (0.0, 0.1, 0.2, 0.3)
# Distance of the classes, and standard deviations between the patients of a class and between the samples of a patient.
APART, BETWEEN, WITHIN = 1.0, 1.0, 0.25
TRAINING = {"rounds": 10, "fraction": 1.0, "epochs": 5, "batch_size": 16, "lr": 0.1, "model": "mlp(hidden=64)"}


def draw_patients(rng, patients, level):
    """Return (x (n, d), true (n,), given (n,), patient (n,)) of simulated patients."""
    sizes, true = rng.integers(1, 21, patients), rng.integers(0, CLASSES, patients)
    wrong = rng.random(patients) < level
    given = np.where(wrong, (true + rng.integers(1, CLASSES, patients)) % CLASSES, true)
    centers = APART * np.eye(CLASSES, FEATURES)[true] + BETWEEN * rng.normal(size=(patients, FEATURES)) / 2
    patient = np.repeat(np.arange(patients), sizes)
    x = centers[patient] + WITHIN * rng.normal(size=(len(patient), FEATURES))
    return x.astype(np.float32), true[patient], given[patient], patient


def measure(seed, level):
    """Return {grouped: (agreement, low, high, true agreement)} of models trained without and with groups."""
    rng = np.random.default_rng([seed, round(100 * level)])
    x, _, given, patient = draw_patients(rng, PATIENTS, level)
    new, _, new_given, _ = draw_patients(rng, NEW, level)
    out = {}
    for grouped in (False, True):
        groups = {"groups_train": patient} if grouped else {}
        data = from_arrays("patients", {"x_train": x, "y_train": given, **groups})
        fed = fnlkit.partition(data, clients=SITES, holdout=0.2, seed=seed, say=None)
        run = fnlkit.train(fed, dataset=data, say=None, seed=seed, **TRAINING)
        found = measure_run(run, data)["held_out"]
        predicted = load_trained(run, data).logits(new).argmax(-1).numpy()
        out[grouped] = found["share"], found["low"], found["high"], float((predicted == new_given).mean())
    return out


def measure_levels(seed, level):
    """Return {grouped: (level (N,), low (N,), high (N,))} of sites by `em`, given probabilities of the true class."""
    rng = np.random.default_rng([seed, round(100 * level), 1])
    parts = [draw_patients(rng, PATIENTS // SITES, level)[1:] for _ in range(SITES)]
    true, given = (np.concatenate([part[i] for part in parts]) for i in range(2))
    patient = np.concatenate([part[2] + k * PATIENTS for k, part in enumerate(parts)])
    p = np.exp(3 * np.eye(CLASSES)[true] + rng.normal(size=(len(true), CLASSES)))
    ends = np.cumsum([0, *(len(part[0]) for part in parts)])
    federation = Federation("patients", CLASSES, ends, np.arange(len(true)), given)
    out = {}
    for grouped in (False, True):
        judged = replace(federation, extra={"group": patient} if grouped else {})
        arrays, _ = run_estimator(judged, None, "em", probabilities=p / p.sum(1, keepdims=True), seed=seed)
        out[grouped] = tuple(arrays[f"estimate_client_level{end}"] for end in ("", "_low", "_high"))
    return out


def run(seeds):
    """Yield the lines of the output for some seeds."""
    yield f"{SITES} sites, {PATIENTS} patients of 1 to 20 samples, {len(seeds)} seeds; percent"
    yield "Agreement on held-out samples (fnlkit evaluate)"
    yield "wrong labels  group    agreement  true value  difference  range contains it  width"
    inside = {False: [], True: []}
    for level in LEVELS:
        rows = [measure(seed, level) for seed in seeds]
        for grouped in (False, True):
            share, low, high, truth = (100 * np.array(values) for values in zip(*(row[grouped] for row in rows), strict=True))
            covered = (low <= truth) & (truth <= high)
            inside[grouped] += covered.tolist()
            yield (
                f"{100 * level:12.0f}  {'with' if grouped else 'without':7s} {share.mean():10.1f} {truth.mean():11.1f} "
                f"{(share - truth).mean():+11.1f} {100 * covered.mean():18.1f} {(high - low).mean():6.1f}"
            )
    yield from (f"all levels, {'with' if k else 'without'} group: {100 * np.mean(v):.1f}" for k, v in inside.items())
    yield f"Share of wrong labels of a site with {PATIENTS // SITES} patients (fnlkit estimate-noise --estimator em)"
    yield "wrong labels  group     estimate  range contains it  width"
    inside = {False: [], True: []}
    for level in LEVELS:
        rows = [measure_levels(seed, level) for seed in seeds]
        for grouped in (False, True):
            value, low, high = (np.concatenate(values) for values in zip(*(row[grouped] for row in rows), strict=True))
            covered = (low <= level) & (level <= high)
            inside[grouped] += covered.tolist()
            yield (
                f"{100 * level:12.0f}  {'with' if grouped else 'without':7s} {100 * value.mean():10.1f} "
                f"{100 * covered.mean():18.1f} {100 * (high - low).mean():6.1f}"
            )
    yield from (f"all levels, {'with' if k else 'without'} group: {100 * np.mean(v):.1f}" for k, v in inside.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=100, help="Number of seeds.")
    parser.add_argument("--first", type=int, default=0, help="First seed; those from 1,000 on served for the settings.")
    options = parser.parse_args()
    for line in run(range(options.first, options.first + options.seeds)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
