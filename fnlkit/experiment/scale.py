"""Scale of the samples: published statistics, or statistics that each client sends once."""

import hashlib
from typing import Any, NamedTuple

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.stored import Chosen, Rows
from fnlkit.core.errors import InputError, SampleError
from fnlkit.datasets.dataset import Dataset
from fnlkit.federated.client.scaling import channel_moments, moments, pool_channel_moments, pool_moments

# Mean squared length of a sample of features of a backbone after scaling: with 1,280 features of standard deviation 1, steps of
# the usual learning rates are so long that a linear head memorizes wrong labels.
FEATURE_NORM = 32
# If the images have more bytes than this, only every k-th image is read.
MOST = 2**30


class Scale(NamedTuple):
    """Mean and standard deviation by channel of images or by feature of vectors; () without scaling.

    Attributes
    ----------
    mean, std : tuple of float
    from_clients : bool
        Whether clients of this session send statistics of their samples for the scale.
    """

    mean: tuple[Any, ...]
    std: tuple[Any, ...]
    from_clients: bool


def unscaled(channels: int) -> Scale:
    """Make the Scale that leaves the values of images unchanged."""
    return Scale((0.0,) * channels, (1.0,) * channels, from_clients=False)


def scale_of(
    federation: Federation, dataset: Dataset, train: np.ndarray | Rows, standardize: str = "auto", *, tokens: bool = False
) -> Scale:
    """Find the common Scale by which all clients standardize their samples.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    train : array (n, ...)
        Training samples of the data set, as networks read them.
    standardize : "auto", "always" or "none"
    tokens : bool
        Whether the network looks up vectors as token ids, which ``auto`` does not scale.

    Raises
    ------
    InputError
        If ``always`` is given and the samples are token ids.
    """
    if tokens:
        if standardize == "always":
            raise InputError(
                "always: the network looks up token ids, which cannot be scaled; omit the option", parameter="standardize"
            )
        return Scale((), (), False)
    if dataset.kind == "vector" and standardize != "none":
        mean, std = pool_moments(moments(train[np.asarray(part)]) for part in federation.clients)
        if dataset.features is not None:
            std = std * max(1.0, len(std) / FEATURE_NORM) ** 0.5
        return Scale(tuple(mean.tolist()), tuple(std.tolist()), True)
    if dataset.kind == "image" and standardize == "none":
        return unscaled(train.shape[-1])
    if dataset.kind == "image" and dataset.statistics is None:
        whole = federation.whole()
        clients = hashlib.sha256(np.asarray(whole.client_offsets).tobytes() + np.asarray(whole.client_indices).tobytes())
        try:
            scale = dataset.remember(f"moments of clients {clients.hexdigest()}", lambda: _channels(whole, train))
        except SampleError:  # a client with unreadable images sends no statistics and will fail later; the result is not cached
            scale = _channels(whole, train, skip_unreadable=True)
        mean, std = scale
        return Scale(tuple(mean), tuple(std), True)
    return Scale(tuple(dataset.mean), tuple(dataset.std), False)


def _channels(federation, train, skip_unreadable=False):
    """Compute [mean, std] by channel from the moments of each client and of the public set.

    The public set contains the samples that no client holds.
    """
    every, statistics = max(1, train.nbytes // MOST), []
    public = np.setdiff1d(np.arange(len(train)), federation.client_indices)
    for part in (*federation.clients, public):
        part = np.asarray(part)
        try:
            statistics.append(channel_moments(Chosen(train, part[part % every == 0])))
        except SampleError:
            if not skip_unreadable:
                raise
    if not any(moments.count for moments in statistics):
        raise InputError("no client could read all of its images, so their scale is unknown; -vv shows the clients' errors")
    return [values.tolist() for values in pool_channel_moments(statistics, train.dtype)]
