"""Write the data sets of the recipe `league` that do not come with fnlkit.

    python -m benchmarks.worlds -o league
    python -m benchmarks.worlds --data DIR --images cifar10-10k.npz -o league
    fnlkit reproduce league -o league

The first command draws small tables of several sites.  DIR contains labelme/ (Rodrigues 2018) and yoruba/ (Hedderich 2020) as
their authors publish them.  Next to DIR is fsdd.npz, the
Free Spoken Digit Dataset with arrays audio, offsets, label, take and sample_rate.  A world without its files is left out.

The fourth part also reads jira/jira.npz (Yatish 2019, data of the R package Rnalytica: arrays x, given, true,
project and release), cifar-10-100n/ of github.com/UCSC-REAL with features of CIFAR-10 training images 10,000 to 19,999, and the
folder `classification` of github.com/renatopp/arff-datasets at commit c59f172 as arff/:

    python -m benchmarks.worlds --data DIR --people-images cifar10-next.npz -o league
"""

import argparse
import csv
import io
import re
import tomllib
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.size import ROOT
from benchmarks.small_tables import read_name, small_table
from fnlkit import datasets
from fnlkit.artifacts import files, saving
from fnlkit.datasets.votes import by_vote
from fnlkit.encoders.features import with_backbone
from fnlkit.kernels.streams import stream
from fnlkit.models.spectrograms import log_mel

TEST_IMAGES, FRAMES, SIZE, WIDTH = 4_000, 16, 128, 1024
BACKBONE = "efficientnet-lite0(size=128)"  # encodes images
# Images with labels of people: the training images from number 10,000 on, of which the first 8,000 are training samples.
FIRST_IMAGE, TRAINED = 10_000, 8_000
# Test files of a project of JIRA with, and as many without a bug.
TEST_FILES = 40
# Tables of the fourth part by file in arff/.  Only numeric columns are features: those of vowel that are not name the speaker.
TABLES = {
    "column": "column3C", "glass": "glass", "ionosphere": "ionosphere", "letter": "letter", "segment": "segment",
    "sonar": "sonar", "spambase": "spambase", "vehicle": "vehicle", "vowel": "vowel",
}  # fmt: skip
MOST_ROWS = 5_000  # only letter has more


def images(options):
    """Return principal components of image features: all training images, and the first 4,000 test images."""
    data = with_backbone(datasets.load(options.images), BACKBONE)
    train, test = components(np.asarray(data.x_train), np.asarray(data.x_test), SIZE)
    return {"x_train": train, "y_train": data.y_train, "x_test": test[:TEST_IMAGES], "y_test": data.y_test[:TEST_IMAGES],
            "y_train_true": data.y_train}  # fmt: skip


def components(train, test, size):
    """Return (train (n, size), test (m, size)) float32: centered principal components.

    The components are computed from every second training vector.
    """
    middle = train.mean(0)
    variances, basis = np.linalg.eigh(np.cov((train[::2] - middle).T.astype(np.float32)))
    scale = np.sqrt(variances[::-1][:size].mean()).astype(np.float32)
    basis = basis[:, ::-1][:, :size].astype(np.float32)
    return tuple(((x - middle) @ basis / scale).astype(np.float32) for x in (train, test))


def read_titles(path):
    """Return [(title, label)] of a file of the Yoruba news."""
    with open(path, newline="", encoding="utf-8") as file:
        return [(row["news_title"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def grams(text):
    """Return hashed counts (WIDTH,) of words and of two to five characters, scaled to length 1."""
    out, text = np.zeros(WIDTH, np.float32), f" {' '.join(text.lower().split())} "
    pieces = [(text[i : i + n], 1) for n in range(2, 6) for i in range(len(text) - n + 1)]
    for piece, weight in [*pieces, *((f"word {word}", 2) for word in text.split())]:
        code = zlib.crc32(piece.encode())
        out[code % WIDTH] += weight * (1 - 2 * ((code >> 20) & 1))
    return out / np.linalg.norm(out)


def titles(options, name):
    """Return Yoruba titles as hashed n-grams; test and development titles are the test samples."""
    rows = {part: read_titles(options.data / "yoruba" / f"{part}.tsv") for part in (name, "train_clean", "test", "dev")}
    names, true = sorted({label for _, label in rows["train_clean"]}), dict(rows["train_clean"])
    test = rows["test"] + rows["dev"]
    vectors = {"train": _grams(rows[name]), "test": _grams(test)}
    return {
        "x_train": vectors["train"], "y_train": _codes([label for _, label in rows[name]], names),
        "y_train_true": _codes([true[text] for text, _ in rows[name]], names),
        "x_test": vectors["test"], "y_test": _codes([label for _, label in test], names),
    }  # fmt: skip


def _grams(rows):
    """Return hashed counts with a mean square of 1: vectors of length 1 are too small for the learning rates of images."""
    return np.stack([grams(text) for text, _ in rows]) * np.sqrt(WIDTH)


def _codes(labels, names):
    return np.array([names.index(label) for label in labels], np.int64)


def speech(options):
    """Return principal components of log-Mel spectrograms with 16 frames; takes 0 to 4 are the test samples."""
    pack = dict(np.load(options.data.parent / "fsdd.npz"))
    offsets, rate = pack["offsets"], int(pack["sample_rate"])
    waves = np.zeros((len(offsets) - 1, rate), np.float32)
    for i, (a, b) in enumerate(zip(offsets[:-1], offsets[1:], strict=True)):
        clip = pack["audio"][a:b][:rate]
        waves[i, : len(clip)] = clip / 32768
    bands = log_mel(waves, rate, bins=40)
    frames = bands[..., : bands.shape[-1] // FRAMES * FRAMES]
    vectors = frames.reshape(*frames.shape[:-1], FRAMES, -1).mean(-1).reshape(len(waves), -1)
    test, label = pack["take"] < 5, pack["label"].astype(np.int64)
    x_train, x_test = components(vectors[~test].astype(np.float32), vectors[test].astype(np.float32), SIZE)
    return {"x_train": x_train, "y_train": label[~test], "y_train_true": label[~test], "x_test": x_test, "y_test": label[test]}


def annotators(options):
    """Return LabelMe's images as VGG features with the votes of its annotators."""
    folder = options.data / "labelme"
    true = {part: np.loadtxt(folder / f"LabelMe_Z_{part}.txt", dtype=np.int64) for part in ("train", "test")}
    x = {part: np.load(folder / f"LabelMe_VGG_avg_{part}.npy").astype(np.float32) for part in true}
    votes = np.loadtxt(folder / "answers.txt", dtype=np.int64)
    return {"x_train": x["train"], "votes_train": votes, "y_train_true": true["train"], "x_test": x["test"],
            "y_test": true["test"]}  # fmt: skip


def scans(options):
    """Return the brain scans of `mriqc` with a row per rating; the published rating counts as true."""
    data = datasets.load("mriqc")
    data.y_train_true = data.y_train
    data = by_vote(data)
    return {"x_train": np.asarray(data.x_train), "y_train": data.y_train, "y_train_true": data.y_train_true,
            "site_train": data.fields["site"], "x_test": np.asarray(data.x_test), "y_test": data.y_test}  # fmt: skip


def jira(options, by, files):
    """Return files of nine software projects with the heuristic labels, and test files of the last releases with true labels.

    Half of the training files of a site and half of the test files truly have a bug.  Only 10 % of all files have one, so that
    always "no bug" would be right for most.

    Parameters
    ----------
    options : argparse.Namespace
    by : str
        Sites: "project" or "release".
    files : int
        Training files of a site.
    """
    z = dict(np.load(options.data / "jira" / "jira.npz"))
    train, test = jira_rows(z["project"], z["release"], z["true"], by, files)
    x = np.sign(z["x"]) * np.log1p(np.abs(z["x"]))
    middle, spread = x[train].mean(0), np.maximum(x[train].std(0), 1e-9)
    x_train, x_test = (((x[rows] - middle) / spread).astype(np.float32) for rows in (train, test))
    given, true = z["given"].astype(np.int64), z["true"].astype(np.int64)
    return {"x_train": x_train, "y_train": given[train], "y_train_true": true[train], "site_train": z[by][train],
            "x_test": x_test, "y_test": true[test], "class_names": np.array(["no bug", "bug"])}  # fmt: skip


def jira_rows(project, release, true, by, files):
    """Return the rows of training files, and of test files: those of the last release of each project."""
    last = [max(np.unique(release[project == name]), key=_version) for name in np.unique(project)]
    tested, rng = np.isin(release, last), stream(0, f"jira {by}")
    train = _balanced(rng, np.where(tested, "", project if by == "project" else release), true, files // 2)
    return train, _balanced(rng, np.where(tested, project, ""), true, TEST_FILES)


def _version(release):
    """Return the numbers in the name of a release."""
    return [int(number) for number in re.findall(r"\d+", release)]


def _balanced(rng, group, label, count):
    """Return random rows, `count` of each label in each group but ""."""
    return np.concatenate(
        [
            rng.permutation(np.flatnonzero((group == name) & (label == value)))[:count]
            for name in np.unique(group[group != ""])
            for value in (0, 1)
        ]
    )


def people_images(options, column):
    """Return principal components of image features with labels of people (CIFAR-10N), the last 2,000 images for testing."""
    path = options.data / "cifar-10-100n/data/CIFAR-10_human.pt"
    path.stat()  # raises FileNotFoundError
    data = with_backbone(datasets.load(options.people_images), BACKBONE)
    rows = slice(FIRST_IMAGE, FIRST_IMAGE + len(data.y_train))
    labels = files.read_arrays(path, max_bytes=2**28)
    given, true = (labels[name][rows].astype(np.int64) for name in (column, "clean_label"))
    if not np.array_equal(true, data.y_train):
        raise SystemExit(f"{options.people_images}: expected the training images of CIFAR-10 from number {FIRST_IMAGE:,} on")
    x = np.asarray(data.x_train)
    x_train, x_test = components(x[:TRAINED], x[TRAINED:], SIZE)
    return {"x_train": x_train, "y_train": given[:TRAINED], "y_train_true": true[:TRAINED], "x_test": x_test,
            "y_test": true[TRAINED:]}  # fmt: skip


def table_text(path):
    """Return an ARFF file as CSV text: numeric columns, and the last column as `label`."""
    from scipy.io import arff

    path.stat()  # raises FileNotFoundError
    rows, about = arff.loadarff(path)
    numeric = [name for name, kind in zip(about.names(), about.types(), strict=True) if kind == "numeric"]
    label = [value.decode() for value in rows[about.names()[-1]]]
    lines = zip(*([f"{value:.10g}" for value in rows[name]] for name in numeric), label, strict=True)
    return "\n".join(",".join(line) for line in [(*numeric, "label"), *list(lines)[:MOST_ROWS]]) + "\n"


WORLDS: dict[str, Callable[[argparse.Namespace], dict[str, np.ndarray]]] = {
    "images": images,
    "text": lambda options: titles(options, "train_clean"),
    "weak": lambda options: titles(options, "train_clean_noisy_labels"),
    "speech": speech,
    "annotators": annotators,
    "scans": scans,
    "jira": partial(jira, by="project", files=150),
    "jira-releases": partial(jira, by="release", files=50),
    **{f"cifar10n-{name}": partial(people_images, column=column)
       for name, column in (("aggregate", "aggre_label"), ("random", "random_label1"))},
}  # fmt: skip
# Options without which a world is left out.
NEEDED = {"images": "images", **{name: "people_images" for name in WORLDS if name.startswith("cifar10n")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(), help="folder with labelme/ and yoruba/, next to fsdd.npz")
    parser.add_argument("--images", help="CIFAR-10 as npz, first 10,000 training images")
    parser.add_argument("--people-images", help="CIFAR-10 as npz, training images 10,000 to 19,999")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs of the recipe")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name, make in WORLDS.items():
        write(options.output / f"{name}.npz", name, options, partial(arrays_bytes, make))
    for name, file in TABLES.items():
        place = options.data / "arff" / f"{file}.arff"
        write(options.output / f"{name}.csv", name, options, lambda _, place=place: table_text(place).encode())
    for name in sorted(list_small_tables()):
        write(options.output / name, name, options, partial(arrays_bytes, partial(draw_small_table, name)))


def list_small_tables():
    """Return the names of the small tables in the recipe."""
    recipe = tomllib.loads((ROOT / "data/recipes/league.toml").read_text(encoding="utf-8"))
    return {name for regime in recipe["regime"] if read_name(name := regime.get("dataset", ""))}


def draw_small_table(name, options):
    """Return the arrays of a small table of the recipe; some are drawn from a table that is written before."""
    source, parameters = read_name(name)
    if source in TABLES:
        source = options.output / f"{source}.csv"
        source.stat()  # raises FileNotFoundError
    return small_table(source, **parameters)


def write(target, name, options, make):
    """Write a world to a file that does not exist yet, and print its size or why it is left out."""
    if target.exists():
        return
    if not getattr(options, need := NEEDED.get(name, "data")):
        print(f"{name}: left out, give --{need.replace('_', '-')}")
        return
    try:
        content = make(options)
    except FileNotFoundError as error:
        print(f"{name}: left out, {error.filename} is missing")
        return
    saving.write_bytes([content], str(target))
    data = datasets.load(target)
    print(f"{target}: {len(data.y_train):,} training and {len(data.y_test):,} test samples")


def arrays_bytes(make, options):
    """Return the arrays of a world as an npz."""
    made = io.BytesIO()
    np.savez(made, **make(options))
    return made.getbuffer()


if __name__ == "__main__":
    main()
