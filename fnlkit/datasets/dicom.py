"""DICOM images: rescaled as their headers say, bright where there is much, over one range for all files."""

import numpy as np

from fnlkit.artefacts import paths
from fnlkit.errors import InputError


def is_dicom(path):
    """Return whether a file is DICOM, by its content: many have no ending, or another."""
    try:
        with open(path, "rb") as file:
            return file.read(132)[128:] == b"DICM"
    except OSError:
        return False


def span(window):
    """Return (low, high) of a window ``centre/width`` such as 40/400, or None for an empty text.

    Raises
    ------
    InputError
    """
    if not window:
        return None
    try:
        centre, width = (float(part) for part in str(window).split("/"))
        if not (np.isfinite(centre) and 0 < width < np.inf):
            raise ValueError
    except ValueError:
        raise InputError(f'window is {window!r}; write centre/width, for example window="40/400"') from None
    return centre - width / 2, centre + width / 2


def pixels(path, window=""):
    """Return a DICOM image: grey ones (H, W) float32 from 0 to 1, or uint8 of 8 bits; colour (H, W, 3) uint8.

    Values are rescaled by slope and intercept (Hounsfield units in a CT) and MONOCHROME1 is inverted.  Then a window given,
    the same for all files, or without one the full range that the stored bits can have, is brought to 0 to 1.  The window
    in the header is not looked at: it differs from file to file, and a network would see the difference.

    Parameters
    ----------
    path : pathlib.Path
    window : str
        ``centre/width`` in rescaled units; values outside are cut.

    Raises
    ------
    InputError
        Without pydicom (extra `dicom`), for several frames, and for pixels that pydicom cannot read.
    """
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{paths.shown(path)}: DICOM needs pydicom; run: pip install 'fnlkit[dicom]'") from None
    # What a header should not say is not for us to warn of; and a warning would quote it.
    pydicom.config.settings.reading_validation_mode = pydicom.config.IGNORE
    header = pydicom.dcmread(path)
    if int(header.get("NumberOfFrames", 1) or 1) > 1:
        raise InputError(f"{paths.shown(path)}: has {header.NumberOfFrames} frames; save single images")
    colours = str(header.PhotometricInterpretation)
    values = header.pixel_array  # YBR comes as RGB
    if values.ndim == 3 and values.shape[2] == 3 and values.dtype == np.uint8:
        return values
    if values.ndim != 2 or not colours.startswith("MONOCHROME"):
        raise InputError(f"{paths.shown(path)}: {colours} of {values.dtype} {values.shape}; expected grey, or RGB of 8 bits")
    slope, intercept = (float(header.get(name, usual)) for name, usual in (("RescaleSlope", 1), ("RescaleIntercept", 0)))
    bits, signed = int(header.BitsStored), int(header.get("PixelRepresentation", 0))
    ends = np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1]) * slope + intercept
    low, high = span(window) or (ends.min(), ends.max())
    found = np.clip((values * np.float64(slope) + intercept - low) / (high - low), 0, 1)
    found = 1 - found if colours == "MONOCHROME1" else found
    return np.rint(found * 255).astype(np.uint8) if bits <= 8 and not window else found.astype(np.float32)
