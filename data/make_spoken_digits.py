"""Make spoken-digits.npz from the recordings of the Free Spoken Digit Dataset.

git clone https://github.com/Jakobovski/free-spoken-digit-dataset && python data/make_spoken_digits.py FOLDER OUT.npz
"""

import pathlib
import sys

import numpy as np
from scipy.io import wavfile

RATE, WINDOW, STEP, BANDS, FRAMES = 8000, 256, 80, 16, 16
RANGE = 80.0  # dB below the loudest cell that become 0


def mel_filters():
    """Return the triangular filters (BANDS, WINDOW // 2 + 1) with centers at equal distances on the mel scale."""
    mel = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.clip(np.minimum((frequencies - low) / (center - low), (high - frequencies) / (high - center)), 0, None)


def image(wave, filters):
    """Return the logarithmic mel spectrogram (BANDS, FRAMES, 1) uint8 of a recording, stretched to FRAMES columns."""
    wave = np.pad(wave.astype(np.float64), (0, max(0, WINDOW - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::STEP] * np.hanning(WINDOW)
    power = filters @ (np.abs(np.fft.rfft(frames)) ** 2).T
    columns = [part.mean(1) for part in np.array_split(np.repeat(power, FRAMES, 1), FRAMES, 1)]
    level = 10 * np.log10(np.maximum(np.stack(columns, 1), 1e-10))
    level = np.clip((level - level.max()) / RANGE + 1, 0, 1)
    return np.rint(255 * level[::-1]).astype(np.uint8)[..., None]


if __name__ == "__main__":
    folder, out = pathlib.Path(sys.argv[1]) / "recordings", sys.argv[2]
    names = sorted((path.stem.split("_") for path in folder.glob("*.wav")), key=lambda name: (name[1], name[0], int(name[2])))
    filters, parts = mel_filters(), {"train": [], "test": []}
    for digit, speaker, index in names:
        part = parts["test" if int(index) < 5 else "train"]
        part.append((image(wavfile.read(folder / f"{digit}_{speaker}_{index}.wav")[1], filters), int(digit), speaker))
    arrays = {}
    for part, rows in parts.items():
        x, y, speakers = zip(*rows, strict=True)
        arrays |= {f"x_{part}": np.stack(x), f"y_{part}": np.array(y, np.int64)}
        if part == "train":
            arrays["site_train"] = np.array(speakers)
    np.savez_compressed(out, **arrays)
