"""Version of the package; fnlkit/__init__.py and pyproject.toml read it."""

__version__ = "0.3.0"
