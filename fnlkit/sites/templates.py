"""Texts of the files of a deployment: start commands, units, containers, and the parts of a Flower project."""

import re
import tomllib
from functools import cache
from importlib import resources


@cache
def _texts():
    return tomllib.loads(resources.files("fnlkit.data").joinpath("deployment.toml").read_text(encoding="utf-8"))


def render(text: str, /, **values: object) -> bytes:
    """Fill a text of data/deployment.toml, selected by its name; the values replace ``@name@``."""
    return re.sub(r"@(\w+)@", lambda match: str(values[match[1]]), _texts()[text]).encode()
