"""Write the tables of five made-up hospitals for docs/deployment.md.

    python examples/audit_by_mail.py FOLDER
    python examples/audit_by_mail.py FOLDER 1000

The number is that of the samples of each hospital, 200 if it is left out. Cork has 30 % wrong labels. Dole reports one value in
another unit. The others are clean. all.csv has the rows of all five, public.csv those of no hospital.
"""

import csv
import sys
from pathlib import Path

import numpy as np

NAMES, NOISY, OTHER_UNIT = ("aix", "bonn", "cork", "dole", "evry"), "cork", "dole"
COLUMNS = ("age", "crp", "creatinine", "hemoglobin", "leukocytes", "pulse")
STAGES = ("a", "b", "c")


def main(folder, samples=200):
    """Write NAME.csv for each hospital, all.csv and public.csv into a folder."""
    folder.mkdir(exist_ok=True)
    rng, everything = np.random.default_rng(3), []
    centers = 2 * rng.normal(size=(len(STAGES) + 1, len(COLUMNS)))
    for name in (*NAMES, "public"):
        y = np.append(rng.integers(0, len(STAGES), samples), [len(STAGES)] * 2)  # two samples of a rare stage
        x = 40 + 4 * (centers[y] + rng.normal(size=(len(y), len(COLUMNS))))
        wrong = (rng.random(len(y)) < 0.3) & (y < len(STAGES)) & (name == NOISY)
        given = np.where(wrong, (y + 1) % len(STAGES), y)
        x[:, 2] *= 88.4 if name == OTHER_UNIT else 1  # mg/dl and umol/l
        rows = [[*np.round(values, 2).tolist(), (*STAGES, "rare")[label]] for values, label in zip(x, given, strict=True)]
        write(folder / f"{name}.csv", [*COLUMNS, "label"], rows)
        everything += [[*row, name] for row in rows if name in NAMES]
    write(folder / "all.csv", [*COLUMNS, "label", "site"], everything)


def write(path, header, rows):
    """Write a table."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
