#!/usr/bin/env bash
# Package: wordllama 0.4.0.post1, static vectors of texts; its weights and tokenizer are in the package.
# Guess: an empty text is the zero vector also if vectors are scaled to length 1, and deduplicate keeps one of two equal texts.
# Behavior: with norm=True the vector of an empty text is NaN, with a warning of numpy only; the other rows of the batch are right.
#   deduplicate keeps both of two empty texts, while it removes one of two equal words. Without norm the vector is zero, and the
#   similarity of an empty text with itself is 0.
# Source: wordllama/inference.py, embed, line 119.
"$(dirname "$0")/fresh" wordllama==0.4.0.post1 <<'PYTHON'
import warnings
from importlib.metadata import version
from pathlib import Path

import numpy as np
import wordllama
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from wordllama.inference import WordLlamaInference

warnings.simplefilter("ignore")
folder = Path(wordllama.__file__).parent
table = load_file(folder / "weights/l2_supercat_256.safetensors")["embedding.weight"].astype(np.float32)
model = WordLlamaInference(table, Tokenizer.from_file(str(folder / "tokenizers/l2_supercat_tokenizer_config.json")))
scaled = np.isfinite(model.embed(["", "fever"], norm=True)).all(1).tolist()
plain = float(np.abs(model.embed([""])).max())
kept = len(model.deduplicate(["fever", "", ""])), len(model.deduplicate(["fever", "cough", "cough"]))
itself = float(model.similarity("", ""))
print(f"wordllama {version('wordllama')}: finite with norm=True: empty {scaled[0]}, word {scaled[1]}; without: {plain}")
print(f"deduplicate keeps {kept[0]} of a word and two empty texts, {kept[1]} of a word and two equal ones; similarity {itself}")
if (scaled, plain, kept, itself) != ([False, True], 0.0, (3, 2), 0.0):
    raise SystemExit("the behavior has changed")
PYTHON
