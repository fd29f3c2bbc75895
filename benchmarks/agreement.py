"""Coverage of the accuracy that is estimated from agreement with wrong labels, on simulated data.

    python -m benchmarks.agreement --repetitions 100

Simulates five sites of 60 held-out samples in ten classes.  Two sites have wrong labels, with a level that is estimated from
240 other samples.  In some settings the model repeats a share of the wrong labels, as models do if the labels are wrong
because of the appearance of a sample.
"""

import argparse

import numpy as np

from fnlkit.results.corrected import correct_scores


def matrix(level, classes):
    """Return T (C, C) with equal probabilities for all wrong labels."""
    return (1 - level) * np.eye(classes) + level / (classes - 1) * (1 - np.eye(classes))


def simulated(rng, repeats, level, accuracy, sites=5, samples=60, classes=10):
    """Return the arguments of `corrected` and the model's accuracy on the same samples."""
    counts, T, levels, low, high, right = np.zeros((sites, classes, classes)), [], [], [], [], 0
    for k in range(sites):
        true = rng.integers(0, classes, samples)
        given, predicted = true.copy(), true.copy()
        wrong, errs = rng.random(samples) < level * (k % 2), rng.random(samples) > accuracy
        given[wrong] = (true[wrong] + rng.integers(1, classes, wrong.sum())) % classes
        predicted[errs] = (true[errs] + rng.integers(1, classes, errs.sum())) % classes
        copied = wrong & (rng.random(samples) < repeats)
        predicted[copied] = given[copied]
        np.add.at(counts[k], (given, predicted), 1)
        right += (predicted == true).sum()
        seen = rng.binomial(240, level * (k % 2)) / 240
        half = 1.96 * np.sqrt(max(seen * (1 - seen), 1e-4) / 240)
        for values, value in ((levels, seen), (low, max(0, seen - half)), (high, seen + half), (T, matrix(seen, classes))):
            values.append(value)
    return (counts, np.array(T), levels, low, high), right / (sites * samples)


def coverage(repeats, level, accuracy, repetitions, seed=0):
    """Return how often the interval contains the accuracy, its mean width, and the mean error."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(repetitions):
        evidence, truth = simulated(rng, repeats, level, accuracy)
        value, low, high = correct_scores(*evidence)["share"]
        found.append((low <= truth <= high, high - low, value - truth))
    return np.mean(found, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=100)
    repetitions = parser.parse_args().repetitions
    print(f"{repetitions} repetitions, five sites of 60 held-out samples, two of them noisy")
    print("wrong labels repeated  level  accuracy  contains accuracy  width  estimate minus truth")
    for repeats in (0, 0.2, 0.5):
        for level, accuracy in ((0.1, 0.95), (0.3, 0.9), (0.4, 0.7)):
            inside, width, error = coverage(repeats, level, accuracy, repetitions)
            print(f"{repeats:21.1f} {level:6.1f} {accuracy:9.2f} {inside:18.2f} {100 * width:6.1f} {100 * error:21.1f}")


if __name__ == "__main__":
    main()
