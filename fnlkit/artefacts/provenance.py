"""Who made a file: the record that each step of a pipe leaves in it."""


def provenance(command, seed=None, **parameters):
    """Return the record of one step for a file's provenance list: command, parameters that are not None, seed, versions."""
    import platform
    from importlib.metadata import version

    return {
        "command": command,
        "parameters": {key: value for key, value in parameters.items() if value is not None},
        "seed": seed,
        "versions": {"fnlkit": version("fnlkit"), "python": platform.python_version(), "numpy": version("numpy")},
    }


def with_record(meta, record):
    """Return a copy of a file's meta with one more record of provenance."""
    return {**meta, "provenance": [*meta.get("provenance", []), record]}
