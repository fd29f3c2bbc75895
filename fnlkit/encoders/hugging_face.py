"""Backbones of the package transformers, for images and texts; their weights are read from this machine, never downloaded."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Stored
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.encoders.embed import View, must_have, require
from fnlkit.encoders.text_backbones import local_folder


@check_arguments
def transformers_backbone(
    dataset: View, forward: Callable[..., Any], *, name: str, revision: str = "main", normalize: bool = True
) -> np.ndarray | Stored:
    """Features of a model of Hugging Face's transformers (extra `transformers`).

    Images: the pooled output, or the mean over the last hidden states of a model without one. Texts: the mean of the last
    hidden states over the tokens. Code of a model's repository is never run.

    Parameters
    ----------
    name : str
        A folder that `save_pretrained` wrote, or a model in the Hugging Face cache, for example facebook/dinov2-small.
    revision : str
        Branch, tag or commit in the cache.
    normalize : bool
        Scale rows to length 1.
    """
    if dataset.kind != "text":
        must_have(dataset, "image", "transformers")
    library = require("transformers")
    folder = local_folder(str(name), "transformers", str(revision))
    model = _load(library.AutoModel, folder).eval()
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(f"transformers: {name} is an encoder with a decoder, such as T5; name a model of an encoder alone")
    if dataset.kind == "text":
        return forward(TextEncoder(_load(library.AutoTokenizer, folder), model, normalize), model.state_dict())
    form = _load(library.AutoImageProcessor, folder).to_dict()
    size = form.get("crop_size") or form["size"]
    size = size if isinstance(size, int) else size.get("height") or size["shortest_edge"]
    scale = form if form.get("do_normalize", True) else {}
    mean, std = (scale.get(key) or (value,) * 3 for key, value in (("image_mean", 0.0), ("image_std", 1.0)))
    interpolation = "bicubic" if form.get("resample") == 3 else "bilinear"
    return forward(ImageEncoder(model), size, mean, std, normalize=normalize, interpolation=interpolation)


class ImageEncoder(torch.nn.Module):
    """Pooled output (B, d) of a vision model for images (B, 3, size, size)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = getattr(model, "vision_model", model)  # of two towers, the one for images

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.model(pixel_values=x)
        pooled = getattr(output, "pooler_output", None)
        return output.last_hidden_state.mean(1) if pooled is None else pooled.flatten(1)


class TextEncoder:
    """Mean (m, d) of the last hidden states over the tokens of texts."""

    def __init__(self, tokenizer: Any, model: Any, normalize: bool) -> None:
        self.tokenizer, self.model, self.normalize = tokenizer, getattr(model, "text_model", model), normalize

    def __call__(self, texts: list[str]) -> np.ndarray:
        rows = []
        # RoBERTa counts positions from the one after that of padding.
        positions = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
        padding = getattr(positions, "padding_idx", None)
        taken = 0 if padding is None else padding + 1
        longest = min(self.tokenizer.model_max_length, self.model.config.max_position_embeddings - taken)
        # Text by text: with padding, the features of a text would depend on the others by rounding.
        for text in texts:
            tokens = self.tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
            with torch.inference_mode():
                rows.append(self.model(**tokens).last_hidden_state[0].mean(0))
        features = torch.stack(rows).float()
        return (torch.nn.functional.normalize(features, dim=1) if self.normalize else features).numpy()


def _load(kind, folder):
    """Load a model, tokenizer or image processor from a folder, without downloads and without code of the folder."""
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library has many classes for missing and unsuitable files
        part = kind.__name__.removeprefix("Auto")
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"transformers finds no {part} in {folder}: {reason}") from error
