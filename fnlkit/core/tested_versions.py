"""The oldest and newest versions with which all tests passed, and one note for a newer torch."""

import os
from pathlib import Path

# docs/install.md has the combinations.
PYTHON = ("3.11", "3.15")
TORCH = ("2.11", "2.15")


def is_newer(version: str) -> bool:
    """Whether a version of torch, such as "2.16.0+cpu", is newer than the tested ones."""
    try:
        return [int(part) for part in version.split(".")[:2]] > [int(part) for part in TORCH[1].split(".")]
    except ValueError:  # not a release, for example "main"
        return True


def note_once(version: str, folder: Path) -> str | None:
    """Note an untested version of torch; None if an earlier call has returned the note.

    Parameters
    ----------
    version : str
    folder : pathlib.Path
        Receives an empty file for each noted version. If it cannot be written, the note is repeated.
    """
    marker = folder / f"noted-torch-{'.'.join(version.split('.')[:2])}"
    if marker.exists():
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.close(os.open(marker, os.O_CREAT))
    except OSError:
        pass
    return f"note: tested up to torch {TORCH[1]}, this is {version}; `fnlkit doctor` compares the engines on it"
