#!/usr/bin/env bash
# Package: torch 2.14.1, Tensor.movedim and Tensor.contiguous.
# Guess: moving the channel axis of a batch of images to the front and calling contiguous() makes a copy, with one channel as with
#   three, so that a normalization in place changes the copy only.
# Behavior: with three channels it is a copy, with one channel it is the same memory, because strides of an axis of length 1 count for
#   nothing. to() with the type that the tensor has copies neither. Each normalization in place therefore changes the stored
#   images, but only gray ones of floats: after three epochs they have been normalized three times.
# Source: the definition of is_contiguous in c10/core/Contiguity.h; found by a network that became worse with each evaluation.
"$(dirname "$0")/fresh" torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import torch

changed = {}
for channels in (1, 3):
    images = torch.full((4, 8, 8, channels), 3.0)
    for _ in range(3):
        images.movedim(-1, 1).to(images.dtype).contiguous().sub_(1.0).div_(2.0)
    changed[channels] = float(images.mean())
print(f"torch {torch.__version__}: stored images of 3.0 after three normalizations (x - 1) / 2 of a 'copy': "
      f"{changed[1]} with one channel, {changed[3]} with three")
if changed != {1: -0.5, 3: 3.0}:
    raise SystemExit("the behavior has changed")
PYTHON
