"""Scale of the samples: published statistics, or statistics that each client sends once."""

import hashlib
from typing import NamedTuple

import numpy as np

from fnlkit.artifacts.stored import Chosen
from fnlkit.client.scaling import channel_moments, moments, pooled, pooled_channels
from fnlkit.errors import InputError, SampleError

# If the images have more bytes than this, only every k-th image is read.
MOST = 2**30


class Scale(NamedTuple):
    """Mean and standard deviation by channel of images or by feature of vectors; () without scaling.

    Attributes
    ----------
    mean, std : tuple of float
    told : bool
        Whether clients sent statistics of their samples for it.
    """

    mean: tuple
    std: tuple
    told: bool


def scale_of(federation, dataset, train, standardize="auto", *, tokens=False):
    """Return the Scale of a federation's samples.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    train : array (n, ...)
        Training samples of the data set, as networks read them.
    standardize : "auto", "always" or "none"
        The setting for vectors.
    tokens : bool
        The network looks up vectors as token ids: ``auto`` leaves them as they are.

    Raises
    ------
    InputError
        If ``always`` is given and the samples are token ids.
    """
    if tokens:
        if standardize == "always":
            raise InputError("--standardize always: the network looks up token ids, which cannot be scaled; leave it out")
        return Scale((), (), False)
    if dataset.kind == "vector" and (standardize == "always" or standardize == "auto" and dataset.features is None):
        return _plain(*pooled(moments(train[np.asarray(part)]) for part in federation.clients))
    if dataset.kind == "image" and dataset.statistics is None:
        whole = federation.whole()
        held = hashlib.sha256(np.asarray(whole.client_offsets).tobytes() + np.asarray(whole.client_indices).tobytes())
        try:
            found = dataset.remember(f"moments of clients {held.hexdigest()}", lambda: _channels(whole, train))
        except SampleError:  # a client with unreadable images sends no statistics and will fail later; the result is not cached
            found = _channels(whole, train, without_the_broken=True)
        return Scale(*map(tuple, found), True)
    return Scale(tuple(dataset.mean), tuple(dataset.std), False)


def cost_of_telling(traffic, clients, width):
    """Count the traffic of the statistics.

    Each client sends a count and two sums of `width` values, and receives mean and deviation.
    """
    cost = clients * (8 + 16 * width)
    traffic.sent["moments"] = traffic.sent.get("moments", 0) + cost
    traffic.bytes_up += cost
    traffic.bytes_down += clients * 16 * width


def _channels(federation, train, without_the_broken=False):
    """Return [mean, std] by channel from the moments of each client and of the public set.

    The public set contains the samples that no client holds.
    """
    every, told = max(1, train.nbytes // MOST), []
    public = np.setdiff1d(np.arange(len(train)), federation.client_indices)
    for part in (*federation.clients, public):
        part = np.asarray(part)
        try:
            told.append(channel_moments(Chosen(train, part[part % every == 0])))
        except SampleError:
            if not without_the_broken:
                raise
    if not any(one.count for one in told):
        raise InputError("no client could read all of its images, so their scale is unknown; -vv shows the clients' errors")
    return [values.tolist() for values in pooled_channels(told, train.dtype)]


def _plain(mean, std):
    return Scale(tuple(mean.tolist()), tuple(std.tolist()), True)
