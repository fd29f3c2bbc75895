#!/usr/bin/env bash
# Package: torchaudio 2.11.1, pipelines of speech networks that normalize the waveform (HUBERT_LARGE, WAVLM_LARGE, XLSR, MMS_FA).
# Guess: in evaluation mode, the features of a recording do not depend on the other recordings of its batch.
# Behavior: mean and variance are those of the whole batch. A quiet recording next to loud ones has features that differ by more
#   than 1 % from those that it has alone; with HUBERT_BASE, which does not normalize, they are equal. Clients that encode the same
#   recordings in other batches have other features. The network was trained with the statistics of single recordings.
# Source: torchaudio/pipelines/_wav2vec2/utils.py, _Wav2Vec2Model; fairseq, issue 5609 (open). Random weights, four of 24 layers.
"$(dirname "$0")/fresh" torchaudio==2.11.1 torch==2.14.1 numpy==2.4.6 <<'PYTHON'
import dataclasses
import tempfile
from pathlib import Path

import torch
import torchaudio
from torchaudio import pipelines


def network(name):
    bundle = getattr(pipelines, name)
    bundle = dataclasses.replace(bundle, _params={**bundle._params, "encoder_num_layers": 4})
    make = torchaudio.models.wavlm_model if name.startswith("WAVLM") else torchaudio.models.wav2vec2_model
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        torch.save(make(**bundle._params).state_dict(), Path(folder, Path(bundle._path).name))
        return bundle.get_model(dl_kwargs={"model_dir": folder})


t = torch.arange(16000) / 16000
noise = torch.randn(3, 16000, generator=torch.Generator().manual_seed(1))
tones = torch.stack([torch.sin(2 * torch.pi * f * t) * torch.sin(6 * torch.pi * t) for f in (200, 400, 600)])
sounds = torch.tensor([[0.01], [0.5], [0.5]]) * (tones + 0.1 * noise)
found = {}
for name in ("HUBERT_BASE", "HUBERT_LARGE", "WAVLM_LARGE"):
    model = network(name)
    with torch.inference_mode():
        alone, batch = (model.extract_features(x)[0][-1].mean(1)[0] for x in (sounds[:1], sounds))
    found[name] = float((alone - batch).norm() / alone.norm())
    print(f"torchaudio {torchaudio.__version__}, {name}: a quiet recording in a batch differs by {found[name]:.2%} from itself alone")
if found["HUBERT_BASE"] > 1e-4 or min(found["HUBERT_LARGE"], found["WAVLM_LARGE"]) < 0.01:
    raise SystemExit("the behavior has changed")
PYTHON
