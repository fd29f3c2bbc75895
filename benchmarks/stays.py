"""How often a command changes the package: the stays of `train`, `partition` and `estimate-noise`, in the order of calls.

Each function counts at its first call. Consecutive functions of one package are one stay. Files, arrays and texts (packages
`core`, `artifacts`, `kernels`, `_kernels`) are used everywhere and do not count. `train` counts up to the first round.

    python -m benchmarks.stays [--paths]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import fnlkit

ROOT = Path(fnlkit.__file__).parent
SHARED = ("core", "artifacts", "kernels", "_kernels")


def trace(command: Callable[[], object], until: str = "") -> list[tuple[str, list[str]]]:
    """Return the stays of a call: (package, functions), up to the first function of the package `until`."""
    calls: dict[Any, tuple[str, str]] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in calls and code.co_filename.startswith(f"{ROOT}/"):
            package, *path = Path(code.co_filename).relative_to(ROOT).parts
            calls[code] = (package, f"{'/'.join(path)}:{code.co_name}")

    sys.setprofile(note)
    try:
        command()
    finally:
        sys.setprofile(None)
    packages = [package for package, _ in calls.values()]
    begun = list(calls.values())[: packages.index(until) if until in packages else None]
    path = [call for call in begun if call[0] not in SHARED and ":<" not in call[1]]
    return [(package, [name for _, name in stay]) for package, stay in groupby(path, key=lambda call: call[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", action="store_true", help="print the functions of each stay")
    paths = parser.parse_args().paths
    noisy = fnlkit.inject_noise(fnlkit.partition("digits", clients=10), "symmetric(eta=0.4)")
    commands: dict[str, tuple[Callable[[], object], str]] = {
        "train": (lambda: fnlkit.train(noisy, "fedavg", rounds=1, engine="sequential", say=None), "methods"),
        "partition": (lambda: fnlkit.partition("digits", clients=10), ""),
        "estimate-noise": (lambda: fnlkit.estimate_noise(noisy, say=None), ""),
    }
    for name, (command, until) in commands.items():
        command()  # imports and compiled kernels
        stays = trace(command, until)
        print(f"{name}: {len(stays)} stays in {len({package for package, _ in stays})} packages")
        for package, functions in stays if paths else ():
            print(f"    {package:<12}{', '.join(functions)}")


if __name__ == "__main__":
    main()
