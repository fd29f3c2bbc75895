"""Write small data in each form that fnlkit reads, from the digits that come with it: python your_data.py FOLDER.

folders/SITE/CLASS/*.png, some in _unlabeled; cases.csv with paths of scans/*.png; patients.csv with numbers and categories;
npz/SITE.npz; sounds.csv with paths of sounds/*.wav; and patients.parquet if pyarrow is installed.
"""

import csv
import sys
import wave
from pathlib import Path

import numpy as np
from PIL import Image

from fnlkit.datasets import load

SITES = ("Aix", "Bonn", "Cork", "Delft", "Örebro")
WORDS = ("zero", "one", "two", "three", "four")


def write(path, rows, delimiter=","):
    """Write a table with one row per dict."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, rows[0], delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)


def images(folder, x, y):
    """Write folders/, and scans/ with cases.csv; a tenth of the labels of the last site is missing."""
    rows = []
    for i, (image, label) in enumerate(zip(x[..., 0], y.tolist(), strict=True)):
        site, bare = SITES[i % 5], i % 50 == 4
        one = folder / "folders" / site / ("_unlabeled" if bare else WORDS[label]) / f"{i}.png"
        two = folder / "scans" / f"{i}.png"
        for path in (one, two):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image * 15).save(path)
        rows.append(
            {"path": f"scans/{i}.png", "diagnosis": "" if bare else WORDS[label], "hospital": site, "case": f"P-{i:04d}"}
        )
    write(folder / "cases.csv", rows)


def patients(folder, rng, count=400):
    """Write patients.csv with decimal commas, as spreadsheets of some countries do, and patients.parquet."""
    rows = []
    for i in range(count):
        ill = rng.random() < 0.4
        rows.append({
            "age": round(55 + 12 * ill + 10 * rng.normal(), 1),
            "crp": None if i % 11 == 0 else round(4 + 3 * ill + 2 * rng.normal(), 2),
            "stage": int(rng.integers(1, 4)),
            "ward": str(rng.choice(["north", "south"])),
            "label": "ill" if ill else "well",
            "site": SITES[i % 5],
            "split": "test" if i % 4 == 0 else "train",
        })  # fmt: skip
    shown = [
        {k: "" if v is None else str(v).replace(".", ",") if k in ("age", "crp") else v for k, v in r.items()} for r in rows
    ]
    write(folder / "patients.csv", shown, ";")
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        return
    parquet.write_table(pa.Table.from_pylist(rows), folder / "patients.parquet")


def arrays(folder, x, y):
    """Write an npz for each site; a label of -1 is missing."""
    (folder / "npz").mkdir()
    for k, site in enumerate(SITES):
        labels = np.where(np.arange(len(y[k::5])) % 20 == 0, -1, y[k::5])
        np.savez(folder / "npz" / f"{site}.npz", x=x[k::5], y=labels, class_names=np.array(WORDS))


def sounds(folder, rng, count=40):
    """Write tones of two pitches and sounds.csv."""
    (folder / "sounds").mkdir()
    rows = []
    for i in range(count):
        high = i % 2
        values = np.sin(np.arange(8000) * (0.1 + 0.1 * high) + rng.random()) + 0.1 * rng.normal(size=8000)
        with wave.open(str(folder / "sounds" / f"{i}.wav"), "wb") as clip:
            clip.setnchannels(1)
            clip.setsampwidth(2)
            clip.setframerate(8000)
            clip.writeframes((values * 16_000).astype("<i2").tobytes())
        rows.append({"file": f"sounds/{i}.wav", "label": ("low", "high")[high], "site": SITES[i % 5]})
    write(folder / "sounds.csv", rows)


def main(folder):
    """Write all data into a folder, which is created."""
    digits, rng = load("digits"), np.random.default_rng(0)
    few = np.flatnonzero(digits.y_train < len(WORDS))
    folder.mkdir(parents=True, exist_ok=True)
    images(folder, digits.x_train[few], digits.y_train[few])
    patients(folder, rng)
    arrays(folder, digits.x_train[few], digits.y_train[few])
    sounds(folder, rng)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
