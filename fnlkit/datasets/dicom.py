"""Read DICOM images on one intensity scale that is the same for all files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.places import cache_json


def is_dicom(path: Path) -> bool:
    """Whether a file is DICOM.

    The content decides, because many DICOM files have no file extension or a different one.
    """
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def span(window: str) -> tuple[float, float] | None:
    """Read (low, high) of a window ``center/width`` such as 40/400; None for "".

    Raises
    ------
    InputError
    """
    if not window:
        return None
    try:
        center, width = (float(part) for part in str(window).split("/"))
        if not (np.isfinite(center) and 0 < width < np.inf):
            raise ValueError
    except ValueError:
        raise InputError(f'window is {window!r}; write center/width, for example window="40/400"') from None
    return center - width / 2, center + width / 2


def pixels(path: Path, window: str = "") -> np.ndarray:
    """Read a DICOM image.

    Gray images are (H, W) float32: physical values (Hounsfield units in a CT), or, with `window`, intensities in [0, 1].  Color
    images are (H, W, 3) uint8, and gray images of 8 bits without slope and intercept (H, W) uint8 if there is no window.

    The modality transformation of the file, a slope and an intercept or a table, gives the physical values.  The window in the
    header is ignored: it differs between files, and a network would learn this difference.

    Parameters
    ----------
    path : pathlib.Path
    window : str
        ``center/width`` in physical units; values outside are clipped, and MONOCHROME1 is inverted.

    Raises
    ------
    InputError
        If pydicom (extra `dicom`) is not installed, the file has several frames, or pydicom cannot read the pixels.
    """
    header, values = _read(path)
    if values.ndim == 3 or (_is_bytes(header) and not window):
        return values
    return _scale(header, values, window) if window else np.asarray(_physical(values, header), np.float32)


def intensities(path: Path, window: str = "") -> np.ndarray:
    """Read a DICOM image as `pixels`, gray images as intensities: without a window, of the range that the header allows."""
    header, values = _read(path)
    if values.ndim == 3:
        return values
    scaled = _scale(header, values, window)
    return np.rint(scaled * 255).astype(np.uint8) if _is_bytes(header) and not window else scaled


def _scale(header, values, window):
    low, high = span(window) or _range(header)
    intensity = np.clip((np.asarray(_physical(values, header), np.float64) - low) / (high - low), 0, 1)
    return (1 - intensity if header.PhotometricInterpretation == "MONOCHROME1" else intensity).astype(np.float32)


def _read(path):
    """Read the header and the stored pixels of a file with one frame."""
    pydicom = _pydicom(path)
    header = pydicom.dcmread(path)
    if int(header.get("NumberOfFrames", 1) or 1) > 1:
        raise InputError(f"{display_path(path)}: has {header.NumberOfFrames} frames; save single images")
    values = header.pixel_array  # YBR is converted to RGB
    if not (values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8):
        colors = str(header.PhotometricInterpretation)
        if values.ndim != 2 or not colors.startswith("MONOCHROME"):
            raise InputError(f"{display_path(path)}: {colors} of {values.dtype} {values.shape}; expected gray or 8-bit RGB")
    return header, values


def _pydicom(path):
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{display_path(path)}: DICOM needs pydicom; run: pip install 'fnlkit[dicom]'") from None
    # pydicom's warnings about invalid headers would quote patient data.
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    return pydicom


def _physical(values, header):
    from pydicom.pixels import apply_modality_lut

    return apply_modality_lut(values, header)


def _is_identity(header):
    slope, intercept = header.get("RescaleSlope"), header.get("RescaleIntercept")
    return not header.get("ModalityLUTSequence") and float(slope or 1) == 1 and float(intercept or 0) == 0


def _is_bytes(header):
    """Whether the physical values are bytes."""
    return int(header.BitsStored) <= 8 and not int(header.get("PixelRepresentation", 0)) and _is_identity(header)


def _range(header):
    """Smallest and largest physical value that a file with this header can have."""
    bits, signed = int(header.BitsStored), int(header.get("PixelRepresentation", 0))
    ends = [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1]
    stored = np.arange(ends[0], ends[1] + 1) if header.get("ModalityLUTSequence") else np.array(ends)
    physical = np.asarray(_physical(stored, header), np.float64)
    return float(physical.min()), float(physical.max())


def _unit(header):
    """Unit of the physical values, or "" if the file states none."""
    sequence = header.get("ModalityLUTSequence")
    unit = str((sequence[0].get("ModalityLUTType") if sequence else header.get("RescaleType")) or header.get("Units") or "")
    return "" if unit == "US" else unit  # US: unspecified


_HEADER = ["BitsStored", "PixelRepresentation", "RescaleSlope", "RescaleIntercept", "RescaleType", "Units",
           "ModalityLUTSequence", "PhotometricInterpretation", "SamplesPerPixel"]  # fmt: skip
_OTHERS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff", ".gif", ".wav", ".npy")


def common_window(files: Sequence[Path], window: str = "") -> dict[str, Any]:
    """Find the window over the physical values of all gray DICOM files, from their headers.

    Parameters
    ----------
    files : list of pathlib.Path
        Other files are ignored.
    window : str
        A given window, with which files of several units are allowed.

    Returns
    -------
    dict
        ``window``: ``center/width``, or "" if there is no such file, or if all have bytes.  ``uniform``: whether all files have
        this range.  ``stored``: whether the physical values of all files are the stored numbers.

    Raises
    ------
    InputError
        If files have different units.
    """
    ranges, stored, byte = set(), True, True
    units: dict[str, Any] = {}
    for file in files:
        if file.suffix.lower() in _OTHERS or not is_dicom(file):
            continue
        pydicom = _pydicom(file)
        try:
            header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=_HEADER)
            if int(header.get("SamplesPerPixel", 1)) > 1:
                continue
            ranges.add(_range(header))
            stored, byte = stored and _is_identity(header), byte and _is_bytes(header)
            units.setdefault(_unit(header), []).append(file)
        except Exception:  # a damaged file is named when its pixels are read
            continue
    units.pop("", None)
    if len(units) > 1 and not window:
        usual = max(units, key=lambda unit: len(units[unit]))
        odd = list_names(display_path(file) for unit in units if unit != usual for file in units[unit])
        raise InputError(
            f"DICOM files in several units cannot be compared: {', '.join(sorted(units))}; most have {usual}, but not {odd}; "
            'remove these files, or write window="center/width" if their values are comparable'
        )
    low, high = min((low for low, _ in ranges), default=0), max((high for _, high in ranges), default=0)
    text = "" if byte or low == high else f"{(low + high) / 2!r}/{high - low!r}"
    return {"window": text, "uniform": len(ranges) < 2, "stored": stored}


def choose_window(files: Sequence[Path], window: str, name: str, cache: Path, of_site: bool) -> tuple[str, str, list[str]]:
    """Choose (window of the images, window in the checksum, notes).

    Parameters
    ----------
    files : list of pathlib.Path
    window : str
        As given, or "".
    name : str
        Of the data set, for messages.
    cache : pathlib.Path
        The cache folder.
    of_site : bool
        Whether the files are those of a site of a deployment, which does not know the files of the other sites.

    Raises
    ------
    InputError
        If files have different units, or a site's files values on a scale that can differ at another site.
    """
    ranges = cache_json("dicom", lambda: common_window(files, window), files=files, cache=cache, reading=f"{bool(window)}")
    full = ranges["window"]
    if not full or window:
        return window, "" if window == full and ranges["uniform"] else window, []
    if of_site and not (ranges["uniform"] and ranges["stored"]):
        raise InputError(f'{name}: DICOM with slope or intercept; write window="center/width", the same at all sites')
    note = f'DICOM files have different ranges; physical values are read with window="{full}", which contains all'
    return full, "" if ranges["uniform"] else full, [] if ranges["uniform"] else [note]
