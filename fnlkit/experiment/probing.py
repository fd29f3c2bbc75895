"""Linear probing before fine-tuning (LP-FT, Kumar 2022): the head of a pretrained network is trained first, on features."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.core.spec import parse
from fnlkit.datasets.dataset import Dataset
from fnlkit.encoders.features import find_pretrained, with_backbone
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.client import in_blocks
from fnlkit.federated.client.network import Network


def warm_head(
    federation: Federation,
    dataset: Dataset,
    settings: Settings,
    network: Network,
    *,
    make: Callable[..., Any],
    device: str = "cpu",
) -> Traffic:
    """Train the head of a pretrained network on features with FedAvg, write it into the network, and return the traffic.

    The result depends on the settings and the data only, so that a resumed run repeats it.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
        Images.
    settings : Settings
        ``warmup_head`` is the number of rounds, ``warmup_lr`` their learning rate: features have a fixed length, for which the
        small rates of fine-tuning are too small.
    network : fnlkit.federated.client.network.Network
        Of the model ``pretrained``; its head is changed.
    make : type
        fnlkit.experiment.experiment.Experiment.
    device : str

    Raises
    ------
    InputError
        If the network has no backbone, or updates are protected.
    """
    module: Any = network.module
    spec = parse(settings.model, "model")
    if spec.name != "pretrained" or not hasattr(module, "encoder"):
        raise InputError(
            "trains the head of a pretrained network; write `model='pretrained(train=...)'`", parameter="warmup_head"
        )
    if settings.protect != "none":
        raise InputError("is not protected by `protect`; omit one of both", parameter="warmup_head")
    backbone = str(spec.parameters.get("backbone", "auto"))
    if backbone == "auto":
        backbone = str(find_pretrained("image", min(dataset.x_train.shape[1:3])))
    probe = replace(
        settings, method="fedavg", model="mlp(hidden=[])", rounds=settings.warmup_head, warmup_head=0, augment="none",
        lr=settings.warmup_lr, client_optimizer="sgd",
        mixup=0.0, eval_every=10**9, measure="auto", select="last", patience=0, memorization=False, standardize="always",
    )  # fmt: skip
    if dataset.features is None:
        data = with_backbone(dataset, backbone, device=device)
    else:  # values before the first trained block
        parts = [_encode(module.encoder, x, network) for x in (dataset.x_train, dataset.x_test)]
        data = replace(dataset, samples=lambda: tuple(parts))
    run = make(federation, data, probe, device=device).run()
    width, about = module.width, run.meta["samples"]
    flat = run.weights.double().cpu()
    weight, bias = flat[: -network_classes(module)].view(-1, width), flat[-network_classes(module) :]
    # The probe reads (f - mean) / std of the features f, and the network f * scale.
    mean, std = (torch.tensor(about[name], dtype=torch.float64) for name in ("mean", "std"))
    weight = weight / std
    parts = {"fc.weight": weight / module.scale, "fc.bias": bias - weight @ mean}
    with torch.no_grad():
        for name, start, end, _ in network.slots:
            if name in parts:
                network.flat[start:end] = parts[name].reshape(-1).to(network.flat)
    return run.traffic


def _encode(encoder, x, network):
    """Compute features float32 (n, d) of samples (n, ...)."""
    with torch.no_grad():
        return in_blocks(lambda part: encoder(part.to(network.flat)), x).float().cpu().numpy()


def network_classes(module: Any) -> int:
    """Number of classes of a network with a linear head."""
    return int(module.fc.out_features)
