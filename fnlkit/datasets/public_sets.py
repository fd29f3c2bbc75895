"""Read known data sets from their published files, in torchvision's folders."""

import contextlib
import functools
import math
import shlex
import shutil
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.datasets import places
from fnlkit.datasets.array_files import npz
from fnlkit.datasets.class_folders import folder
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.decoding import progress, sound
from fnlkit.kernels.matrices import CIFAR100_SUPERCLASS
from fnlkit.models.vision import torchvision

_FASHION = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
RATE = 16_000  # sample rate of Speech Commands in Hz
SPEECH_SHA256 = "af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58"
# The ten commands of the task with 12 classes (Warden 2018, Section 6).
COMMANDS = ["yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go"]
_MAX_IDX = 64 * 2**20


def digits(*, cache: Path, download: bool = False) -> Dataset:
    """Load scikit-learn's 8x8 digits, which are included in this package."""
    return _included("digits", [str(digit) for digit in range(10)])[0]


def spoken_digits(*, cache: Path, download: bool = False) -> Dataset:
    """Load recordings of the Free Spoken Digit Dataset as mel spectrograms (16, 16), which are included in this package.

    The speaker of each training recording is the field `site`.
    """
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    data, arrays = _included("spoken-digits", names)
    data.fields = {"site": arrays["site_train"].astype(np.str_)}
    return data


def _included(name, class_names):
    """Load (Dataset, arrays) of a file of this package."""
    arrays = files.read_arrays(resources.files("fnlkit.data").joinpath(f"{name}.npz").read_bytes())
    return _images(name, class_names, *(arrays[part] for part in ("x_train", "y_train", "x_test", "y_test"))), arrays


def _images(name, class_names, x_train, y_train, x_test, y_test, **more):
    y_train, y_test = (np.asarray(labels, np.int64) for labels in (y_train, y_test))
    return Dataset(name, "image", y_train, y_test, class_names, lambda: (x_train, x_test), **more)


def mnist(*, cache: Path, download: bool = False) -> Dataset:
    """Load MNIST from torchvision's files."""
    names = [str(digit) for digit in range(10)]
    return _idx("mnist", "MNIST", names, ((0.1307,), (0.3081,)), cache, download)


def fashion_mnist(*, cache: Path, download: bool = False) -> Dataset:
    """Load Fashion-MNIST from Debian's folder or torchvision's files."""
    return _idx("fashion-mnist", "FashionMNIST", _FASHION, ((0.2860,), (0.3530,)), cache, download)


def cifar10(*, cache: Path, download: bool = False) -> Dataset:
    """Load CIFAR-10 from torchvision's files."""
    return _cifar("cifar10", "CIFAR10", ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)), cache, download)


def cifar100(*, cache: Path, download: bool = False) -> Dataset:
    """Load CIFAR-100 with its 20 superclasses from torchvision's files."""
    return _cifar("cifar100", "CIFAR100", ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)), cache, download)


def eurosat(*, cache: Path, download: bool = False) -> Dataset:
    """Load EuroSAT (RGB), with 20 % of the images of each class in the test set.

    EuroSAT has no published split.  The split is drawn with a fixed seed.
    """
    target = places.first("eurosat", cache)
    remedy = f"unpack EuroSAT.zip so that {target}/AnnualCrop contains images"
    place = find_or_fetch("eurosat", cache, download, lambda: torchvision().datasets.EuroSAT(str(cache), download=True), remedy)
    data = folder(path=str(place), cache=cache)
    data.name, data.observed = "eurosat", False
    return data


def speechcommands(*, cache: Path, download: bool = False) -> Dataset:
    """Load Speech Commands v0.02 as zero-padded waves of one second.

    The speaker of each training clip is a field.
    """
    place, lists, words, clips = _speech("speechcommands", cache, download)
    return _waves("speechcommands", place, lists, clips, words, {word: i for i, word in enumerate(words)})


def speechcommands12(*, cache: Path, download: bool = False) -> Dataset:
    """Load the 12-class task of Speech Commands v0.02 (Warden 2018).

    The classes are ten commands, `unknown` for all other words, and `silence`: one-second windows, half a second apart, of the
    six files with background noise. The training set contains all clips. The test set contains all clips of the commands;
    `unknown` and `silence` each have the average number of clips per command, chosen with a fixed seed. The last fifth of each
    noise file belongs to the test set.
    """
    place, lists, words, clips = _speech("speechcommands12", cache, download)
    label = {word: i for i, word in enumerate(COMMANDS)}
    commands = sum(clip in lists["testing"] and clip.partition("/")[0] in label for clip, _ in clips)
    rng = np.random.default_rng(np.random.SeedSequence([12, 2018]))
    unknown = [clip for clip, _ in clips if clip in lists["testing"] and clip.partition("/")[0] not in label]
    dropped = set(rng.permutation(unknown)[round(commands / 10) :].tolist())
    silence, tested = [], []
    for file in sorted((place / "_background_noise_").glob("*.wav")):
        name, length = f"_background_noise_/{file.name}", len(_samples(file))
        border = int(0.8 * length)
        silence += [(name, start) for start in range(0, border - RATE + 1, RATE // 2)]
        tested += [(name, start) for start in range(border, length - RATE + 1, RATE // 2)]
    chosen = sorted(tested[i] for i in rng.permutation(len(tested))[: round(commands / 10)])
    label = {word: label.get(word, 10) for word in words} | {"_background_noise_": 11}
    clips = [clip for clip in clips if clip[0] not in dropped] + silence + chosen
    return _waves("speechcommands12", place, lists, clips, [*COMMANDS, "unknown", "silence"], label, tested=set(chosen))


def _speech(name, cache, download):
    """Find the folder of Speech Commands v0.02, {part: clips in its published list}, the words, and [(clip, 0)]."""
    target = places.first(name, cache)
    remedy = f"unpack speech_commands_v0.02.tar.gz so that {target}/testing_list.txt exists"
    place = find_or_fetch(name, cache, download, lambda: _fetch_speech(target), remedy)
    lists = {part: set((place / f"{part}_list.txt").read_text(encoding="utf-8").split()) for part in ("testing", "validation")}
    words = sorted(child.name for child in place.iterdir() if child.is_dir() and not child.name.startswith("_"))
    clips = sorted((f"{word}/{file.name}", 0) for word in words for file in (place / word).glob("*.wav"))
    return place, lists, words, clips


def _fetch_speech(place):
    """Download and unpack Speech Commands v0.02 (2.4 GB)."""
    import torch

    place.mkdir(parents=True, exist_ok=True)
    archive = place.parent / "speech_commands_v0.02.tar.gz"
    address = "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
    torch.hub.download_url_to_file(address, str(archive), hash_prefix=SPEECH_SHA256)
    with tarfile.open(archive) as members:
        members.extractall(place, filter="data")


def _waves(name, place, lists, clips, class_names, label, tested=frozenset()):
    """Load the data set of clips (path, first frame).

    `tested` contains test clips that are missing from the published lists.
    """
    test = [clip for clip in clips if clip[0] in lists["testing"] or clip in tested]
    train = [clip for clip in clips if clip[0] not in lists["testing"] | lists["validation"] and clip not in tested]
    if not train or not test:
        raise InputError(f"{place}: no training or no test clips; unpack the archive again")

    def labels(part: Iterable[tuple[str, int]]) -> np.ndarray:
        return np.array([label[clip.partition("/")[0]] for clip, _ in part], np.int64)

    def samples() -> tuple[np.ndarray, ...]:
        return tuple(np.stack([_clip(place / clip, start) for clip, start in progress(part)]) for part in (train, test))

    return Dataset(
        name=name,
        kind="wave",
        y_train=labels(train),
        y_test=labels(test),
        class_names=class_names,
        samples=samples,
        sample_rate=RATE,
        fields={"speaker": np.array([clip.partition("/")[2].partition("_nohash_")[0] for clip, _ in train])},
        content=lambda order: (f"{clip}{start or ''}\n".encode() for clip, start in (*train, ("", 0), *test)),
    )


@functools.lru_cache(1)  # a file with noise has many clips
def _samples(path):
    """Read the samples (T,) int16 of a wav file."""
    return (sound(path, rate=RATE, samples=0) * 2**15).astype(np.int16)


def _clip(path, start):
    samples = _samples(path)[start : start + RATE]
    return np.pad(samples, (0, RATE - len(samples)))


def _idx(name, torch_name, class_names, statistics, cache, download):
    """Load a data set from four idx files."""
    target = places.first(name, cache)
    remedy = f"put {', '.join(f'{file}.gz' for file in places.PLACES[name][1])} into {target}"
    fetch = lambda: getattr(torchvision().datasets, torch_name)(str(cache), download=True)  # noqa: E731
    place = find_or_fetch(name, cache, download, fetch, remedy)
    x_train, y_train, x_test, y_test = (_read_idx(places.find_file(place, name)) for name in places.IDX)
    return _images(name, class_names, x_train[..., None], y_train, x_test[..., None], y_test, statistics=statistics)


def _read_idx(path):
    """Read the uint8 array of an idx file, plain or gzipped.

    At most 64 MiB are decompressed.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            unpack = zlib.decompressobj(31)
            raw = unpack.decompress(raw, _MAX_IDX)
            if not unpack.eof:
                raise InputError(f"{path}: truncated, or larger than {_MAX_IDX:,} bytes; download it again")
    except (OSError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}; download it again") from error
    dimensions = raw[3] if len(raw) >= 16 and raw[:3] == b"\0\0\x08" else 0
    shape = tuple(int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    if dimensions not in (1, 3) or math.prod(shape) != len(raw) - 4 - 4 * dimensions:
        raise InputError(f"{path}: not an idx file of bytes; download it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()


def _cifar(name, torch_name, statistics, cache, download):
    target, archive = places.first(name, cache), f"{name.replace('cifar', 'cifar-')}-python.tar.gz"
    missing = missing_files(name, f"unpack {archive} in {cache} so that {target} contains the published files")
    if not download and not places.find_path(name, cache):
        raise missing

    def part(train: bool, fetch: bool = False) -> Any:
        # torchvision checks the MD5 of every file before it reads the file.
        return getattr(torchvision().datasets, torch_name)(str(cache), train=train, download=fetch)

    if download:
        with fetching(name, target):
            part(True, fetch=True)
    try:
        train, test = part(True), part(False)
    except RuntimeError as error:
        raise missing from error
    superclass = np.array(CIFAR100_SUPERCLASS) if name == "cifar100" else None
    return _images(
        name, train.classes, train.data, train.targets, test.data, test.targets, statistics=statistics, superclass=superclass
    )


def find_or_fetch(name: str, cache: Path, download: bool, fetch: Callable[[], object], remedy: str) -> Path:
    """Find the path of a data set's files; if they are missing, call `fetch` if `download`, else raise an InputError."""
    place = places.find_path(name, cache)
    if place is None and download:
        with fetching(name, places.first(name, cache)):
            fetch()
        place = places.find_path(name, cache)
    if place is None:
        raise missing_files(name, remedy)
    return place


def missing_files(name: str, what: str) -> InputError:
    """Make the InputError for a data set whose files are missing; `what` is an alternative to the download."""
    return InputError(f"{name} is not on this machine: run `fnlkit data get {shlex.quote(name)}`, or {what}")


@contextlib.contextmanager
def fetching(name: str, place: Path) -> Iterator[None]:
    """Suppress download output on stdout and report a failure in one line.

    If the folder did not exist before, a failed or interrupted download is removed.
    """
    before = place.exists()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except BaseException as error:
        if not before:
            _remove(place)
        if isinstance(error, InputError) or not isinstance(error, Exception):
            raise
        detail = " ".join(str(error).split())[:160]
        raise InputError(
            f"{name}: the download failed ({type(error).__name__}: {detail}); try again, or put the files into {place} yourself"
        ) from error


def _remove(place):
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


PATHMNIST_CLASSES = ["adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
           "cancer-associated stroma", "colorectal adenocarcinoma epithelium"]  # fmt: skip


def pathmnist(*, cache: Path, download: bool = False) -> Dataset:
    """Load PathMNIST at 28 pixels, without validation images.

    The file is in the cache folder, or in the folder of the package medmnist.

    Raises
    ------
    InputError
        If the file is missing and `download` is False, or if it has other images or labels than this data set.

    References
    ----------
    Yang et al. (2023), MedMNIST v2, Scientific Data 10, 41.
    """
    target = places.first("pathmnist", cache)
    remedy = f"put pathmnist.npz at {display_path(target)}"
    place = find_or_fetch("pathmnist", cache, download, lambda: _fetch_pathmnist(target), remedy)
    data = npz(place, cache=cache)
    if (
        data.kind != "image"
        or data.x_train.shape[1:3] != (28, 28)
        or data.classes > len(PATHMNIST_CLASSES)
        or not len(data.y_test)
    ):
        raise InputError(f"{display_path(place)}: is not MedMNIST's pathmnist.npz; download it again")
    data.name, data.class_names, data.observed = "pathmnist", PATHMNIST_CLASSES, False
    return data


def _fetch_pathmnist(target):
    """Download the file with the package medmnist."""
    try:
        from medmnist import PathMNIST
    except ImportError:
        raise InputError("pathmnist: package medmnist is not installed; pip install 'fnlkit[medmnist]'") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    PathMNIST(split="train", root=str(target.parent), size=28, download=True)
