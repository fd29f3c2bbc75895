"""ResNet-50 of torchvision for large images, with ImageNet weights."""

import torch
from torch import nn

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.models.parts import Init, Network, image, initialize, remove_counters
from fnlkit.models.vision import load_weights, torchvision, weights_file


class ResNet50(Network):
    """torchvision's ResNet-50 with a new last layer."""

    def __init__(self, net, channels, classes):
        super().__init__()
        for module in net.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        self.width = net.fc.in_features
        net.fc = nn.Identity()
        if channels != 3:
            net.conv1 = initialize(nn.Conv2d(channels, 64, 7, 2, 3, bias=False), "he")
        self.net = remove_counters(net)
        self.fc = nn.Linear(self.width, classes)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


@declare(cite="He 2016")
@check_arguments
def resnet50(*, input_shape: tuple[int, ...], classes: int, weights: str = "", init: Init = "torch") -> torch.nn.Module:
    """ResNet-50 (He 2016), the network of the Clothing1M experiments.

    Parameters
    ----------
    input_shape : (C, H, W)
        With weights, C is 3.
    classes : int
        The last layer is always new.
    weights : str
        A file with torchvision's state dictionary, or ``imagenet``: torchvision's first published ImageNet weights, which
        FedCorr used, from torch's cache folder.  Nothing is downloaded.  Empty: random initial weights.
    init : str
        See fnlkit.models.parts.initialize; ``torch`` is torchvision's own initialization (``he`` on convolutions).

    Raises
    ------
    InputError
        If the weights are missing, with the place to put them, or do not fit.
    """
    channels, _, _ = image(input_shape, "resnet50", least=32)
    zoo = torchvision().models
    net = zoo.resnet50(weights=None)
    if weights:
        if channels != 3:
            raise InputError(f"model 'resnet50': ImageNet weights need images of 3 channels, these have {channels}")
        if init != "torch":
            raise InputError(f"model 'resnet50': init={init} would overwrite the weights; leave one of the two out")
        url = zoo.ResNet50_Weights.IMAGENET1K_V1.url
        state = weights_file(url if weights == "imagenet" else weights)
        load_weights(net, {**state, "fc.weight": net.fc.weight, "fc.bias": net.fc.bias}, weights)
    return initialize(ResNet50(net, channels, classes), init)
