"""What a file calls the classes of its labels, and its clients."""


def class_names(meta, classes):
    """Return the names (C,) that a federation's or a run's meta gives its classes; their numbers where it has none.

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
    found = meta.get("class_names") or (samples.get("class_names") if isinstance(samples, dict) else None)
    fits = isinstance(found, list) and len(found) == classes and all(isinstance(name, str) for name in found)
    return list(found) if fits else [str(label) for label in range(classes)]


def client_names(meta, clients):
    """Return what a federation's meta calls its clients (N,), such as the sites that they are; numbers where it does not.

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
