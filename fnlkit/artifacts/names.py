"""Names of classes and clients in a file."""

from collections.abc import Mapping
from typing import Any

REAL_SITES = "real-sites"  # data set of a run over real sites, where the samples stay


def class_names(meta: Mapping[str, Any], classes: int) -> list[str]:
    """Class names (C,) in a file's metadata, or numbers if there are none.

    Parameters
    ----------
    meta : dict
        Of a Federation or a Run.
    classes : int
        C.

    Examples
    --------
    >>> class_names({"class_names": ["cat", "dog"]}, 2), class_names({}, 2)
    (['cat', 'dog'], ['0', '1'])
    """
    samples = meta.get("samples")
    names = meta.get("class_names") or (samples.get("class_names") if isinstance(samples, dict) else None)
    if isinstance(names, list) and len(names) == classes and all(isinstance(name, str) for name in names):
        return list(names)
    return [str(label) for label in range(classes)]


def client_names(meta: Mapping[str, Any], clients: int) -> list[str]:
    """Client names (N,) in a file's metadata, or numbers if there are none.

    Parameters
    ----------
    meta : dict
        Of a Federation.
    clients : int
        N.
    """
    names = meta.get("client_names")
    if isinstance(names, list) and len(names) == clients:
        return [str(name) for name in names]
    return [str(k) for k in range(clients)]
