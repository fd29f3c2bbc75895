"""Files of one sample each: images, sounds, arrays; decoded when they are asked for."""

import os
import pathlib
import wave
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from fnlkit.artefacts import files, large, paths
from fnlkit.artefacts.stored import Rows
from fnlkit.errors import InputError, SampleError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".dcm", ".dicom")
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP", "TIFF")


class Decoded(Rows):
    """Files as an array (n, ...), a row a file, decoded when they are asked for, by a thread for each core.

    Parameters
    ----------
    paths : list of pathlib.Path
    one : callable (path, shape, dtype) -> array
        At the top of a module, or a partial of such a function.  For the first file shape and dtype are None; it decides
        about those of all.
    """

    slow = True

    def __init__(self, paths, one):
        self.folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        self.names, self.one = [os.path.relpath(path, self.folder) for path in paths], one
        first = one(pathlib.Path(paths[0]), None, None)
        self.shape, self.dtype = (len(paths), *first.shape), first.dtype
        self._threads = None

    def __reduce__(self):
        return _again, (self.folder, self.names, self.one, self.shape, self.dtype)

    def _at(self, position):
        try:
            return self.one(pathlib.Path(self.folder, self.names[position]), self.shape[1:], self.dtype)
        except InputError as error:
            raise SampleError(str(error)) from error

    def _read(self, positions):
        out = np.empty((len(positions), *self.shape[1:]), self.dtype)
        positions = np.asarray(positions).tolist()
        if len(positions) < 8:
            found = map(self._at, positions)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="fnlkit-decode")
            found = self._threads.map(self._at, positions)
        for place, sample in zip(out, found, strict=True):
            place[:] = sample
        return out


def _again(folder, names, one, shape, dtype):
    """Return Decoded in another process, which need not look at the first file again."""
    out = Decoded.__new__(Decoded)
    out.folder, out.names, out.one, out.shape, out.dtype, out._threads = folder, names, one, shape, dtype, None
    return out


def pictures(paths, size=0, window=""):
    """Return images (n, H, W, 3 or 1) uint8, or float32 from 0 to 1 where they hold more than 8 bits a pixel.

    Parameters
    ----------
    paths : list of pathlib.Path
    size : int
        Side in pixels that every image is resized and centre-cropped to; 0 when all have one size already.
    window : str
        Of DICOM images; see fnlkit.datasets.dicom.
    """
    return held(Decoded(paths, partial(image, size=size, window=window)))


def held(rows):
    """Return rows of files as they are, or read where they take at most 64 MiB."""
    if rows.nbytes > large.SMALL:
        return rows
    out = np.empty(rows.shape, rows.dtype)
    for start in range(0, len(rows), 512):
        out[start : start + 512] = rows[start : start + 512]
    return out


def image(path, shape, dtype, *, size=0, window=""):
    """Return an image (H, W, 3 or 1): uint8, or float32 from 0 to 1 where it holds 16 bits; as the first one is, if given."""
    from PIL import Image

    try:
        with _opened(path, window) as picture:
            if picture.width * picture.height > Image.MAX_IMAGE_PIXELS:
                raise InputError(f"{paths.shown(path)}: {picture.width} x {picture.height} pixels; expected a photograph")
            deep = picture.mode.startswith(("I", "F"))  # 16 bits a pixel: X-rays, microscopes; 8 bits would saturate
            if dtype is not None and deep != (dtype == np.float32):
                raise InputError(f"{paths.shown(path)}: has {16 if deep else 8} bits a pixel, the first image not; convert all")
            plain = deep or picture.mode in ("1", "L")
            grey = plain if shape is None else shape[2] == 1
            if grey and not plain:
                raise InputError(f"{paths.shown(path)}: is in colour, the first image is grey; convert all to one")
            picture = _sized(picture.convert("F" if deep else "L" if grey else "RGB"), size)
            out = np.clip(np.asarray(picture, np.float32) / 65535, 0, 1) if deep else np.asarray(picture, np.uint8)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{paths.shown(path)}: cannot be read as an image: {' '.join(str(error).split())[:100]}") from error
    out = out[..., None] if out.ndim == 2 else out
    if shape is not None and out.shape != shape:
        raise InputError(
            f"{paths.shown(path)}: {out.shape[1]} x {out.shape[0]} pixels, the first image {shape[1]} x {shape[0]}; "
            "write --dataset 'folder(path=\"...\", size=64)', or size in a manifest's spec, to resize all"
        )
    return out


def _opened(path, window):
    """Return a picture of Pillow's; one of more than 8 bits has values from 0 to 65535."""
    from PIL import Image

    from fnlkit.datasets import dicom

    if dicom.is_dicom(path):
        values = dicom.pixels(path, window)
        return Image.fromarray(values if values.dtype == np.uint8 else values * np.float32(65535))
    picture = Image.open(path, formats=_FORMATS)
    if picture.format == "TIFF" and (getattr(picture, "n_frames", 1) > 1 or picture.mode in ("I", "F")):
        found = f"{picture.n_frames} pages" if picture.n_frames > 1 else "32 bits a pixel"
        picture.close()
        raise InputError(f"{paths.shown(path)}: has {found}; save single images of 8 or 16 bits")
    return picture


def _sized(picture, size):
    """Return a picture resized and centre-cropped to `size` pixels a side; as it is for 0."""
    from PIL import Image

    if not size:
        return picture
    scale = size * 8 / 7 / min(picture.size) if size >= 64 else size / min(picture.size)
    wide = [max(size, round(side * scale)) for side in picture.size]
    picture = picture.resize(wide, Image.Resampling.BILINEAR)
    left, top = (wide[0] - size) // 2, (wide[1] - size) // 2
    return picture.crop((left, top, left + size, top + size))


def sound(path, shape, dtype, *, rate, samples):
    """Return the samples (T,) of a PCM wav file as float32 from -1 to 1; several channels become their mean.

    Parameters
    ----------
    rate : int
        Hz that the file must have.
    samples : int
        T: longer files are cut, shorter ones filled with zeros; 0 when all have the length of the first.
    """
    found, own = read_wav(path)
    if own != rate:
        raise InputError(f"{paths.shown(path)}: {own:,} Hz, the first sound {rate:,}; resample all to one")
    if samples:
        out = np.zeros(samples, np.float32)
        out[: len(found)] = found[:samples]
        return out
    if shape is not None and found.shape != shape:
        raise InputError(
            f"{paths.shown(path)}: {len(found):,} samples, the first sound {shape[0]:,}; write seconds=1.0 in the data set's "
            "spec to cut or fill all to one length"
        )
    return found


def read_wav(path):
    """Return (samples float32 (T,) from -1 to 1, rate in Hz) of a PCM wav file of 8, 16, 24 or 32 bits."""
    paths.must_be_regular(path)
    size = os.path.getsize(path)
    try:
        with wave.open(str(path), "rb") as clip:
            channels, width, rate = clip.getnchannels(), clip.getsampwidth(), clip.getframerate()
            if clip.getnframes() * channels * width > min(size, large.SMALL):
                raise wave.Error(f"{size:,} bytes that announce {clip.getnframes():,} samples; at most 64 MiB")
            raw = np.frombuffer(clip.readframes(clip.getnframes()), np.uint8)
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(f"{paths.shown(path)}: cannot be read as wav: {error or 'cut off'}; save it as PCM") from error
    raw = raw[: len(raw) // (width * channels) * width * channels]
    if width == 1:
        values = raw.astype(np.float32) / 128 - 1
    else:
        wide = np.zeros((len(raw) // width, 4), np.uint8)
        wide[:, 4 - width :] = raw.reshape(-1, width)  # in the upper bytes, so that the sign is right
        values = wide.view("<i4")[:, 0].astype(np.float64) / 2**31
    if not len(values):
        raise InputError(f"{paths.shown(path)}: holds no sound")
    return values.reshape(-1, channels).mean(1).astype(np.float32), rate


def numbers(path, shape, dtype):
    """Return the array in an npy file, as the first one is, if given."""
    out = files.read_arrays(path)
    out = files.pick(out, "", path)
    if out.dtype.kind not in "iuf" or out.ndim not in (1, 2, 3):
        raise InputError(f"{paths.shown(path)}: {out.dtype} {out.shape}; expected numbers (d,), (H, W) or (H, W, channels)")
    if shape is not None and (out.shape != tuple(shape) or out.dtype != dtype):
        raise InputError(f"{paths.shown(path)}: {out.dtype} {out.shape}, the first array {dtype} {tuple(shape)}; convert all")
    return out
