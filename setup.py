"""Packages and their folders; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

# cli/ and data/ lie beside fnlkit/, everything else within it.
DATA = ["fnlkit.data", "fnlkit.data.recipes", "fnlkit.data.templates"]

setup(
    packages=[*find_packages(include=["fnlkit", "fnlkit.*"]), "fnlkit.cli", *DATA],
    package_dir={"fnlkit": "fnlkit", "fnlkit.cli": "cli", "fnlkit.data": "data"},
    package_data={
        "fnlkit": ["py.typed"],
        "fnlkit.data": ["*.npz", "published.csv", "*.md", "*.toml", "*.html", "*.mplstyle"],
        "fnlkit.data.recipes": ["*.toml"],
    },
)
