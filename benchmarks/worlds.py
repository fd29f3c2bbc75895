"""Write the data sets of the recipe `league2` that do not come with fnlkit.

    fnlkit embed --dataset cifar10-20k.npz --backbone 'efficientnet-lite0(size=128)' -o emb.npz
    python -m benchmarks.worlds --data DIR --images cifar10-20k.npz --features emb.npz -o league2
    fnlkit reproduce league2 -o league2

DIR contains labelme/ (Rodrigues 2018) and yoruba/ (Hedderich 2020) as their authors publish them.  Next to DIR is fsdd.npz, the
Free Spoken Digit Dataset with arrays audio, offsets, label, take and sample_rate.  A world without its files is left out.
"""

import argparse
import io
from pathlib import Path

import numpy as np

from benchmarks import people
from benchmarks.features import components
from fnlkit import datasets
from fnlkit.artifacts import saving
from fnlkit.datasets.features import with_features
from fnlkit.models.spectrograms import log_mel

TEST_IMAGES, FRAMES, SIZE = 4_000, 16, 128


def images(options):
    """Return principal components of image features: all training images, and the first 4,000 test images."""
    data = with_features(datasets.load(options.images), options.features)
    train, test = components(np.asarray(data.x_train), np.asarray(data.x_test), SIZE)
    return {"x_train": train, "y_train": data.y_train, "x_test": test[:TEST_IMAGES], "y_test": data.y_test[:TEST_IMAGES],
            "y_train_true": data.y_train}  # fmt: skip


def titles(options, name):
    """Return Yoruba titles as hashed n-grams; test and development titles are the test samples."""
    rows = {part: people.titles(options.data / "yoruba" / f"{part}.tsv") for part in (name, "train_clean", "test", "dev")}
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
    return np.stack([people.grams(text) for text, _ in rows]) * np.sqrt(people.WIDTH)


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
    data, _, _ = people.mriqc(options.data, 0)
    return {"x_train": np.asarray(data.x_train), "y_train": data.y_train, "y_train_true": data.y_train_true,
            "site_train": data.fields["site"], "x_test": np.asarray(data.x_test), "y_test": data.y_test}  # fmt: skip


WORLDS = {
    "images": images,
    "text": lambda options: titles(options, "train_clean"),
    "weak": lambda options: titles(options, "train_clean_noisy_labels"),
    "speech": speech,
    "annotators": annotators,
    "scans": scans,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with labelme/ and yoruba/, next to fsdd.npz")
    parser.add_argument("--images", help="CIFAR-10 as npz, first 20,000 training images")
    parser.add_argument("--features", help="features of --images by `fnlkit embed`")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the runs of `league2`")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name, make in WORLDS.items():
        target = options.output / f"{name}.npz"
        if target.exists():
            continue
        try:
            arrays = make(options) if name != "images" or options.features else None
        except FileNotFoundError as error:
            print(f"{name}: left out, {error.filename} is missing")
            continue
        if arrays is None:
            print("images: left out, give --images and --features")
            continue
        made = io.BytesIO()
        np.savez(made, **arrays)
        saving.write_bytes([made.getbuffer()], str(target))
        print(f"{target}: {len(arrays['x_train']):,} training and {len(arrays['x_test']):,} test samples")


if __name__ == "__main__":
    main()
