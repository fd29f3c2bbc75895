"""Backbones for texts; their weights are read from this machine, never downloaded."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Stored
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.encoders.embed import View, must_have, require


@check_arguments
def wordllama(dataset: View, forward: Callable[..., Any], *, normalize: bool = True) -> np.ndarray | Stored:
    """Mean of 256 values per token by WordLlama, whose weights are in the package (extra `text`).

    Parameters
    ----------
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "text", "wordllama")
    package = importlib.util.find_spec("wordllama")
    if package is None or not package.submodule_search_locations:
        raise InputError("backbone 'wordllama' is not installed; run: pip install 'fnlkit[text]'")
    # Its loader searches the tokenizer in another folder than the package has, and downloads it.
    folder = Path(next(iter(package.submodule_search_locations)))
    weights = require("safetensors.numpy").load_file(folder / "weights" / "l2_supercat_256.safetensors")
    tokenizer = require("tokenizers").Tokenizer.from_file(str(folder / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    table = weights["embedding.weight"].astype(np.float32)

    def encode(texts: list[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), table.shape[1]), np.float32)
        for row, tokens in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
            if tokens.ids:
                vectors[row] = table[np.minimum(tokens.ids, len(table) - 1)].mean(0)
        return _unit(vectors) if normalize else vectors

    return forward(encode, weights)


@check_arguments
def model2vec(
    dataset: View, forward: Callable[..., Any], *, name: str = "minishlab/potion-base-8M", normalize: bool = True
) -> np.ndarray | Stored:
    """Vectors of a static model of the package model2vec.

    Parameters
    ----------
    name : str
        A folder, or a model in the Hugging Face cache.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "text", "model2vec")
    model = require("model2vec").StaticModel.from_pretrained(local_folder(name, "model2vec"))
    table = np.asarray(model.embedding, np.float32)

    def encode(texts: list[str]) -> np.ndarray:
        vectors = np.asarray(model.encode(texts, show_progress_bar=False), np.float32)
        return _unit(vectors) if normalize else vectors

    return forward(encode, {"embedding": table})


@check_arguments
def sentence_transformers(
    dataset: View,
    forward: Callable[..., Any],
    *,
    name: str = "sentence-transformers/all-MiniLM-L6-v2",
    normalize: bool = True,
) -> np.ndarray | Stored:
    """Embeddings of a model of the package sentence-transformers.

    Parameters
    ----------
    name : str
        A folder, or a model in the Hugging Face cache.
    normalize : bool
        Scale rows to length 1.
    """
    must_have(dataset, "text", "sentence-transformers")
    module = require("sentence_transformers").SentenceTransformer(local_folder(name, "sentence-transformers"), device="cpu")

    def encode(texts: list[str]) -> np.ndarray:
        return np.asarray(module.encode(texts, show_progress_bar=False, normalize_embeddings=normalize))

    return forward(encode, module.state_dict())


def local_folder(name: str, backbone: str, revision: str = "main") -> str:
    """Find the folder of a model: a path, or the snapshot in the Hugging Face cache."""
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser())
    try:
        return require("huggingface_hub").snapshot_download(name, revision=revision, local_files_only=True)
    except InputError:
        raise
    except Exception as error:  # the library has several classes for a missing file and for an invalid name
        raise InputError(
            f"the weights of {name} ({revision}) are not on this machine; write {backbone}(name=FOLDER), or fetch {name} into "
            "the Hugging Face cache first"
        ) from error


def _unit(x):
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
