"""Read samples from individual files: images, sounds and arrays.

All files are checked once before work begins and decoded on access.
"""

import hashlib
import io
import os
import pathlib
import re
import sys
import wave
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fnlkit.artifacts import files, large
from fnlkit.artifacts.paths import display_path, must_be_regular
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, SampleError, list_names
from fnlkit.datasets import dicom
from fnlkit.kernels.threads import core_count

if TYPE_CHECKING:
    from PIL.Image import Image

Value = TypeVar("Value")
Item = TypeVar("Item")


IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".gif", ".dcm", ".dicom")
SOUNDS = (".wav",)
_LARGEST_SIDE = 10_000
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF", "GIF")
_SINGLE = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".dcm", ".dicom")  # endings of files with one page


class Decoded(Rows):
    """Array (n, ...) with one row per file, decoded on access by one thread per core.

    Parameters
    ----------
    paths : list of pathlib.Path
    one : callable (path) -> array
        A module-level function, or a partial of such a function.
    shape : tuple of int
        Shape of a sample.  A gray image among color images gets three equal channels.
    dtype : numpy.dtype
    """

    slow = True

    def __init__(self, paths, read, shape, dtype):
        self.folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        self.names, self.read = [os.path.relpath(path, self.folder) for path in paths], read
        self.shape, self.dtype = (len(paths), *shape), np.dtype(dtype)
        self._threads = None

    def __getstate__(self):
        return self.__dict__ | {"_threads": None}  # another process starts threads of its own

    def _at(self, position):
        path = pathlib.Path(self.folder, self.names[position])
        try:
            sample = self.read(path)
            if not _fits(sample.shape, sample.dtype, self.shape[1:], self.dtype):
                actual = _describe(self.read, sample.shape, sample.dtype)
                wanted = _describe(self.read, self.shape[1:], self.dtype)
                raise InputError(f"{display_path(path)}: {actual}; the other files have {wanted}")
        except InputError as error:
            raise SampleError(str(error)) from error
        return np.broadcast_to(sample, self.shape[1:])

    def _read(self, positions):
        decoded = np.empty((len(positions), *self.shape[1:]), self.dtype)
        positions = np.asarray(positions).tolist()
        if len(positions) < 8:
            samples = map(self._at, positions)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(core_count(), thread_name_prefix="fnlkit-decode")
            samples = self._threads.map(self._at, positions)
        for place, sample in zip(decoded, samples, strict=True):
            place[:] = sample
        return decoded


def kind_of(path: pathlib.Path) -> str | None:
    """Kind of a sample file, "image" or "wave", otherwise None.

    The file extension decides; if it is unknown, the content decides.  Hidden files and the directory file of a DICOM medium
    return None.

    Parameters
    ----------
    path : pathlib.Path
    """
    ending = path.suffix.lower()
    if path.name.startswith("."):
        return None
    if ending in IMAGES or ending in SOUNDS:
        return "image" if ending in IMAGES else "wave"
    if path.name.upper() == "DICOMDIR" or not path.is_file():
        return None
    try:
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        return None
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        return "wave"
    return "image" if dicom.is_dicom(path) else _read_header(path, lambda picture: "image", None)


def reader(
    paths: Sequence[pathlib.Path],
    *,
    size: int = 0,
    crop: bool = False,
    window: str = "",
    pixels: str = "",
    seconds: float = 0.0,
) -> tuple[str, Callable[[pathlib.Path], np.ndarray]]:
    """Choose (kind, function) to read files of the same kind as the first one.

    The kind is "image", "wave" or "array".  The function maps a path to an array.

    Parameters
    ----------
    paths : list of pathlib.Path
    size, crop, window, pixels
        Of images, as in `image`.
    seconds : float
        Length in seconds to which all sounds are cut or padded.  Default: 0, if all have the same length.
    """
    if paths[0].suffix.lower() == ".npy":
        return "array", numbers
    if kind_of(paths[0]) == "wave":
        rate = sample_rate(paths)
        return "wave", partial(sound, rate=rate, samples=round(seconds * rate))
    return "image", partial(image, size=size, crop=crop, window=window, pixels=pixels)


def must_be_used(kind: str | None, *, size: int, seconds: float, **others: Any) -> None:
    """Raise InputError if an option for reading is out of range, or is for files of another kind."""
    if not 0 <= size <= _LARGEST_SIDE:
        raise InputError(f"is {size:,}; write the side of the images in pixels, 1 to {_LARGEST_SIDE:,}", parameter="size")
    if seconds < 0:
        raise InputError(f"is {seconds:g}; write the length of the sounds in seconds, above 0", parameter="seconds")
    given = {"size": size, **others} if kind == "wave" else {"seconds": seconds} | ({} if size else {"crop": others["crop"]})
    name = next((name for name, value in given.items() if value), None)
    if name is not None:
        wanted = "is for images, and the files are sounds" if kind == "wave" else "is for sounds, and the files are none"
        if name == "crop" and kind != "wave":
            raise InputError("needs the side of the images; write `size`, or remove it", parameter="crop")
        raise InputError(f"{wanted}; remove it", parameter=name)


def first_of(paths: Iterable[pathlib.Path], read: Callable[[pathlib.Path], Value]) -> Value:
    """Call a function on the first readable file and return the result.

    If no file is readable, the InputError of the first file is raised.
    """
    error: InputError | None = None
    for path in paths:
        try:
            return read(path)
        except InputError as found:
            error = error or found
    assert error is not None  # there is at least one path
    raise error


def sample_rate(paths: Iterable[pathlib.Path]) -> int:
    """Read the sample rate in Hz of the first readable wav file."""
    return first_of(paths, read_wav)[1]


def decode_files(
    parts: Sequence[Sequence[pathlib.Path]],
    read: Callable[[pathlib.Path], np.ndarray],
    *,
    shape: tuple[int, ...] | None = None,
    remember: Callable[[str, Callable[[], Any]], Any] | None = None,
) -> Sequence[np.ndarray | Rows]:
    """Decode an array of samples (n, ...) for each list of files.

    All samples have the same shape and type.  Arrays above 64 MiB are decoded on access.  Every file is read once to check it,
    unless `remember` has a cached result.

    Parameters
    ----------
    parts : list of lists of pathlib.Path
    read : callable (path) -> array
        As `reader` returns it.
    shape : tuple of int, optional
        Shape of a sample.  Default: the most frequent shape of these files, in color if any file is in color.
    remember : callable, optional
        ``remember(name, compute)``, as in `fnlkit.datasets.dataset.Dataset`.

    Raises
    ------
    InputError
        One line that names up to five files that cannot be read or that differ from the other files.
    """
    everything = [path for part in parts for path in part]
    small: list[Any] = []

    def survey() -> list[Any]:
        sample_shape, dtype = _survey(everything, read, small, shape)
        return [list(sample_shape), np.dtype(dtype).str]

    form, dtype = survey() if remember is None else remember("form", survey)
    ends = np.cumsum([len(part) for part in parts])
    if small:
        x = np.stack([np.broadcast_to(sample, form) for sample in small])
        return np.split(x, ends[:-1])
    return [load_small(Decoded(part, read, form, dtype)) if part else np.empty((0, *form), dtype) for part in parts]


def load_small(rows: np.ndarray | Rows) -> np.ndarray | Rows:
    """Read rows into memory if they need at most 64 MiB, otherwise return them unread."""
    if rows.nbytes > large.SMALL:
        return rows
    loaded = np.empty(rows.shape, rows.dtype)
    for start in range(0, len(rows), 512):
        loaded[start : start + 512] = rows[start : start + 512]
    return loaded


def _survey(every, read, small, shape):
    """Find the common (shape, dtype) of the samples.

    Afterwards, `small` contains all samples, or is empty if they need more than 64 MiB.
    """
    forms, reasons, total = {}, {}, 0

    many = core_count()
    with ThreadPoolExecutor(many, thread_name_prefix="fnlkit-decode") as threads:
        found = (
            each
            for i in range(0, len(every), 4 * many)
            for each in threads.map(partial(_attempt, read), every[i : i + 4 * many])
        )
        for path, (sample, reason) in zip(progress(every), found, strict=True):
            if sample is None:
                reasons.setdefault(reason, []).append(path)
                continue
            forms.setdefault((sample.shape, sample.dtype.str), []).append(path)
            total += sample.nbytes
            if total <= large.SMALL and not reasons:
                small.append(sample)
    if len(small) < len(every):
        small.clear()
    usual, dtype = _usual(forms)
    form = shape or usual, dtype
    odd = [each for each in forms if not _fits(*each, *form)]
    if odd:
        found, wanted = (_describe(read, *each) for each in (odd[0], form))
        others = f" and {len(odd) - 1:,} other kinds" if len(odd) > 1 else ""
        wanted = f"{'expected' if shape else 'the other files have'} {wanted}"
        reason = f"{found}{others}; {wanted}; {_remedy(read, shape, dtype, odd[0][0])}"
        reasons[reason] = [path for each in odd for path in forms[each]]
    if reasons:
        raise InputError(_list_reasons(reasons, len(every)))
    return form


def _attempt(read, path):
    """Try to read a file: (sample, None), or (None, the reason why it cannot be read)."""
    try:
        return read(path), None
    except InputError as error:
        return None, str(error).removeprefix(f"{display_path(path)}: ")


def _usual(forms):
    """Find the most frequent (shape, dtype), in color if any; two None without files."""
    shape, dtype = max(forms, key=lambda form: len(forms[form]), default=(None, None))
    colored = shape is not None and len(shape) == 3 and shape[2] == 1 and ((*shape[:2], 3), dtype) in forms
    return ((*shape[:2], 3) if colored else shape), dtype


def _fits(shape, dtype, wanted, wanted_dtype):
    """Whether a sample has a shape, or is a gray image that fits color images."""
    gray = len(wanted) == len(shape) == 3 and tuple(shape) == (*wanted[:2], 1) and wanted[2] == 3
    return np.dtype(dtype) == wanted_dtype and (tuple(shape) == tuple(wanted) or gray)


_MOST = 3  # reasons in a message


def _list_reasons(reasons, total):
    """Write a message with the reasons, some of the files, and the number of the others."""
    bad = [path for alike in reasons.values() for path in alike]
    if len(bad) == 1:
        return f"{display_path(bad[0])}: {next(iter(reasons))}"
    home, lines = os.path.commonpath([os.path.dirname(path) for path in bad]), []
    shown = 2 if len(reasons) == 1 else 1
    for reason, alike in [*reasons.items()][:_MOST]:
        names = [display_path(os.path.relpath(path, home)) for path in alike[:shown]]
        names += [f"{len(alike) - shown:,} more"] if len(alike) > shown else []
        lines.append(f"{', '.join(names)}: {reason}")
    lines += [f"{len(reasons) - _MOST:,} more reasons"] if len(reasons) > _MOST else []
    return f"{len(bad):,} of {total:,} files cannot be used; in {display_path(home or '.')}: {'; '.join(lines)}"


def _describe(read, shape, dtype):
    function = getattr(read, "func", read)
    if function is image:
        return f"{shape[1]} x {shape[0]} pixels of {_bits(dtype)} bits, {'gray' if shape[2] == 1 else 'in color'}"
    return f"{shape[0]:,} samples" if function is sound else f"{np.dtype(dtype)} {tuple(shape)}"


def _bits(dtype):
    return 8 if np.dtype(dtype) == np.uint8 else "16 or 32"


def _remedy(read, shape, dtype, odd):
    function = getattr(read, "func", read)
    if function is image and shape and tuple(odd[:2]) == tuple(shape[:2]):
        return f"convert them to {'gray' if shape[2] == 1 else 'color'} images of {_bits(dtype)} bits"
    if function is image and shape:
        size = f"{shape[1]} x {shape[0]}"
        return f"resize them to {size}, or train with 'folder(path=\"...\", size=64)', which resizes new images, too"
    if function is image:
        return "convert all to one kind, or resize all: 'folder(path=\"...\", size=64)'"
    return "write seconds=1.0 in the data set's spec to cut or pad all to one length" if function is sound else "convert all"


def find_damaged(every: Sequence[pathlib.Path], **reading: Any) -> dict[str, str]:
    """Find the reason of each file that cannot be read, by path; `reading` as for `reader`."""
    if not every:
        return {}
    _, read = reader(every, **reading)
    with ThreadPoolExecutor(core_count(), thread_name_prefix="fnlkit-decode") as threads:
        outcomes = zip(every, threads.map(lambda path: _attempt(read, path)[1], every), strict=True)
        return {str(path): text for path, text in outcomes if text}


def note_damaged(damaged: dict[str, str]) -> list[str]:
    """Note the names of the files that are left out, as returned by `find_damaged`."""
    if not damaged:
        return []
    names = list_names(f"{display_path(path)} ({reason[:60]})" for path, reason in damaged.items())
    return [f"{len(damaged):,} damaged files are left out: {names}"]


def progress(items: Collection[Item]) -> Iterable[Item]:
    """Yield the items, with a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty() or len(items) < 1000:
        return iter(items)
    from rich.console import Console
    from rich.progress import track

    return track(items, "reading", console=Console(stderr=True), transient=True)


def pixel_range(pixels: str) -> tuple[float, float]:
    """Read (low, high) of a range ``low/high`` such as 0/4095; (0, 1) for "".

    Raises
    ------
    InputError
    """
    try:
        low, high = (float(part) for part in str(pixels or "0/1").split("/"))
        if not -np.inf < low < high < np.inf:
            raise ValueError
    except ValueError:
        raise InputError(f'pixels is {pixels!r}; write low/high, for example pixels="0/4095"') from None
    return low, high


def note_pages(every: Sequence[pathlib.Path]) -> list[str]:
    """Note the images with several pages, of which `image` reads the first, in one sentence; else [].

    Parameters
    ----------
    every : list of pathlib.Path
    """
    several = [path for path in every if path.suffix.lower() not in _SINGLE]
    counts = {path: _read_header(path, lambda picture: getattr(picture, "n_frames", 1), 1) for path in several}
    counts = {path: count for path, count in counts.items() if count > 1}
    if not counts:
        return []
    home = os.path.commonpath([os.path.dirname(path) for path in every])
    names = list_names(display_path(os.path.relpath(path, home)) for path in counts)
    return [
        f"{len(counts):,} of {len(every):,} images have several pages, of which the first is read and "
        f"{sum(counts.values()) - len(counts):,} are not: {names}; save pages that are samples as single images"
    ]


def _read_header(source, read, default):
    """Run `read(picture)` on an image that is opened, but not decoded; the default for other files."""
    try:
        with _pillow().Image.open(source, formats=_FORMATS) as picture:
            return read(picture)
    except Exception:  # Pillow raises many kinds of errors for files that are damaged or no images
        return default


def form_of(path: pathlib.Path) -> str:
    """Read the format and size of an image file, such as ``JPEG 640 480``; "" of another file."""
    return _read_header(path, lambda picture: f"{picture.format} {picture.width} {picture.height}", "")


def image(path: pathlib.Path, *, size: int = 0, crop: bool = False, window: str = "", pixels: str = "") -> np.ndarray:
    """Read an image (H, W, 3 or 1): uint8, or float32 in [0, 1] if it has 16 or 32 bits.

    Of a file with several pages, this is the first page (`note_pages`).

    Parameters
    ----------
    path : pathlib.Path
    size : int
        Side in pixels after resizing.  Default: 0, which keeps the size.
    crop : bool
        Resize the shorter side to 8/7 of `size` (to `size` below 64) and cut off what is outside the center.
    window : str
        Of DICOM images; see fnlkit.datasets.dicom.
    pixels : str
        Of TIFF images with 32 bits per pixel, ``low/high``: the values that become 0 and 1.  Default: 0/1.  The range is that
        of the data set, not of a file, so that equal values stay equal.

    Raises
    ------
    InputError
        If the file cannot be read, or if an image of 32 bits has NaN, infinity or values outside `pixels`.
    """
    pillow = _pillow()
    try:
        with _open(path, window) as picture:
            if picture.width * picture.height > pillow.Image.MAX_IMAGE_PIXELS:
                raise InputError(f"{display_path(path)}: {picture.width} x {picture.height} pixels; expected a photograph")
            wide = picture.format == "TIFF" and picture.mode in ("I", "F")
            picture = upright(picture)
            if wide:
                picture = pillow.Image.fromarray(_scale(np.asarray(picture, np.float64), pixels, path) * np.float32(65535))
            deep = picture.mode.startswith(("I", "F"))  # 16 bits per pixel (X-rays, microscopes): 8 bits would saturate
            gray = deep or picture.mode in ("1", "L")
            picture = _resize(picture.convert("F" if deep else "L" if gray else "RGB"), size, crop)
            values = np.clip(np.asarray(picture, np.float32) / 65535, 0, 1) if deep else np.asarray(picture, np.uint8)
    except InputError:
        raise
    except pillow.UnidentifiedImageError as error:
        raise InputError(f"{display_path(path)}: cannot be read as an image: the content has no known format") from error
    except Exception as error:
        raise InputError(f"{display_path(path)}: cannot be read as an image: {' '.join(str(error).split())[:100]}") from error
    return values[..., None] if values.ndim == 2 else values


def upright(picture: "Image") -> "Image":
    """Turn a Pillow image as viewers show it: mirrored and rotated by its EXIF orientation."""
    picture.load()  # Pillow turns TIFF images itself when it loads them, and then removes the orientation
    if picture.getexif().get(_ORIENTATION, 1) == 1:
        return picture
    return _pillow().ImageOps.exif_transpose(picture)


_ORIENTATION = 0x0112  # EXIF: 1 is upright, 2 to 8 are mirrored or rotated
_MAY_BE_TURNED = re.compile(rb"(?i:exif)|tiff:Orientation")


def digest_of(path: pathlib.Path) -> bytes:
    """Identify a file by the SHA-256 of its content, and a photo that is stored mirrored or rotated also by its orientation."""
    raw = path.read_bytes()
    total = hashlib.sha256(raw)
    if (_MAY_BE_TURNED.search(raw) or raw[:4] in (b"II*\0", b"MM\0*")) and (turn := _orientation_of(raw)) != 1:
        total.update(f"orientation {turn}".encode())
    return total.digest()


def _orientation_of(raw):
    """Read the EXIF orientation of the bytes of an image; 1 of other files, which `image` names."""
    return _read_header(io.BytesIO(raw), lambda picture: picture.getexif().get(_ORIENTATION, 1), 1)


def _pillow():
    """Import Pillow, which only files with images need."""
    import PIL
    import PIL.Image
    import PIL.ImageOps

    return PIL


def _open(path, window):
    """Open a Pillow image; with more than 8 bits, values are 0 to 65535."""
    pillow = _pillow()
    if dicom.is_dicom(path):
        values = dicom.intensities(path, window)
        return pillow.Image.fromarray(values if values.dtype == np.uint8 else values * np.float32(65535))
    picture = pillow.Image.open(path, formats=_FORMATS)
    if picture.format == "TIFF":  # Pillow 13 maps files into memory, and scrambles the pixels if the image is stored rotated
        picture.close()
        picture = pillow.Image.open(io.BytesIO(path.read_bytes()), formats=_FORMATS)
    return picture


def _scale(values, pixels, path):
    """Scale the values of an image of 32 bits from the range `pixels` to [0, 1], as float32."""
    low, high = pixel_range(pixels)
    if odd := np.count_nonzero(~np.isfinite(values)):
        raise InputError(f"{display_path(path)}: {odd:,} pixels are NaN or infinite; replace them by numbers")
    if values.min() < low or values.max() > high:
        raise InputError(
            f"{display_path(path)}: pixels of 32 bits from {values.min():g} to {values.max():g}, outside {low:g} to "
            f'{high:g}; write the range of all images in the data set\'s spec, for example pixels="0/4095"'
        )
    return ((values - low) / (high - low)).astype(np.float32)


def _resize(picture, size, crop):
    """Resize an image to `size` pixels per side, or center-crop it; 0 keeps it."""
    bilinear = _pillow().Image.Resampling.BILINEAR
    if not size or not crop:
        return picture.resize((size, size), bilinear) if size else picture
    scale = size * 8 / 7 / min(picture.size) if size >= 64 else size / min(picture.size)
    wide = [max(size, round(side * scale)) for side in picture.size]
    left, top = (wide[0] - size) // 2, (wide[1] - size) // 2
    return picture.resize(wide, bilinear).crop((left, top, left + size, top + size))


def sound(path: pathlib.Path, *, rate: int, samples: int) -> np.ndarray:
    """Read samples (T,) float32 in [-1, 1] of a PCM wav file, the mean of channels.

    Parameters
    ----------
    rate : int
        Required sample rate in Hz.
    samples : int
        T: longer files are cut, and shorter files are padded with zeros.  Default: 0, which keeps the length.
    """
    wave_samples, file_rate = read_wav(path)
    if file_rate != rate:
        raise InputError(f"{display_path(path)}: {file_rate:,} Hz, the first sound has {rate:,} Hz; resample all to one rate")
    if samples:
        padded = np.zeros(samples, np.float32)
        padded[: len(wave_samples)] = wave_samples[:samples]
        return padded
    return wave_samples


def read_wav(path: pathlib.Path) -> tuple[np.ndarray, int]:
    """Read (samples (T,) float32 in [-1, 1], rate in Hz) of a PCM wav file.

    Files with 8, 16, 24 and 32 bits per sample can be read.
    """
    must_be_regular(path)
    size = os.path.getsize(path)
    try:
        with wave.open(str(path), "rb") as clip:
            channels, width, rate = clip.getnchannels(), clip.getsampwidth(), clip.getframerate()
            if clip.getnframes() * channels * width > min(size, large.SMALL):
                raise wave.Error(f"{size:,} bytes with a header for {clip.getnframes():,} samples; at most 64 MiB")
            raw = np.frombuffer(clip.readframes(clip.getnframes()), np.uint8)
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(f"{display_path(path)}: cannot be read as wav: {error or 'truncated'}; save it as PCM") from error
    raw = raw[: len(raw) // (width * channels) * width * channels]
    if width == 1:
        values = raw.astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(raw) // width, 4), np.uint8)
        wide[:, 4 - width :] = raw.reshape(-1, width)  # use the upper bytes to preserve the sign
        values = wide.view("<i4")[:, 0].astype(np.float64) / 2**31
    if not len(values):
        raise InputError(f"{display_path(path)}: contains no samples")
    return values.reshape(-1, channels).mean(1).astype(np.float32), rate


def numbers(path: pathlib.Path) -> np.ndarray:
    """Read the numeric array (d,), (H, W) or (H, W, channels) of an npy file."""
    values = files.read_arrays(path)
    values = files.pick(values, "", path)
    if values.dtype.kind not in "iuf" or values.ndim not in (1, 2, 3):
        raise InputError(
            f"{display_path(path)}: {values.dtype} {values.shape}; expected numbers (d,), (H, W) or (H, W, channels)"
        )
    return values
