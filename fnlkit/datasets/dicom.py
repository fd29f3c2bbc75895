"""Read DICOM images on one intensity scale that is the same for all files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fnlkit.artifacts import paths
from fnlkit.errors import InputError


def is_dicom(path: Path) -> bool:
    """Return whether a file is DICOM.

    The content decides, because many DICOM files have no file extension or a different one.
    """
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def span(window: str) -> tuple[float, float] | None:
    """Return (low, high) of a window ``center/width`` such as 40/400; None for "".

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
    """Return a DICOM image.

    Gray images are (H, W), float32 in [0, 1] or uint8 if they have 8 bits; color images are (H, W, 3) uint8.

    Values are rescaled by slope and intercept (Hounsfield units in a CT), and MONOCHROME1 is inverted.  Then `window`, or the
    full range of the stored bits without it, is mapped to [0, 1].  The window in the header is ignored: it differs between
    files, and a network would learn this difference.

    Parameters
    ----------
    path : pathlib.Path
    window : str
        ``center/width`` in rescaled units; values outside are clipped.

    Raises
    ------
    InputError
        If pydicom (extra `dicom`) is not installed, the file has several frames, or pydicom cannot read the pixels.
    """
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{paths.display_path(path)}: DICOM needs pydicom; run: pip install 'fnlkit[dicom]'") from None
    # pydicom's warnings about invalid headers would quote patient data.
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    header = pydicom.dcmread(path)
    if int(header.get("NumberOfFrames", 1) or 1) > 1:
        raise InputError(f"{paths.display_path(path)}: has {header.NumberOfFrames} frames; save single images")
    colors = str(header.PhotometricInterpretation)
    values = header.pixel_array  # YBR is converted to RGB
    if values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8:
        return values
    if values.ndim != 2 or not colors.startswith("MONOCHROME"):
        raise InputError(
            f"{paths.display_path(path)}: {colors} of {values.dtype} {values.shape}; expected gray, or RGB of 8 bits"
        )
    slope, intercept = (float(header.get(name, usual)) for name, usual in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    bits, signed = int(header.BitsStored), int(header.get("PixelRepresentation", 0))
    ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1]) * slope + intercept
    low, high = span(window) or (ends.min(), ends.max())
    intensity = np.clip((values * np.float64(slope) + intercept - low) / (high - low), 0, 1)
    intensity = 1 - intensity if colors == "MONOCHROME1" else intensity
    return np.rint(intensity * 255).astype(np.uint8) if bits <= 8 and not window else intensity.astype(np.float32)
