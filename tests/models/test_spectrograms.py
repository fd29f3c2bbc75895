"""Log-Mel spectrograms against the formula, written out."""

import math

import numpy as np
import pytest

from fnlkit.core.errors import InputError
from fnlkit.models.spectrograms import FLOOR, LogMel, log_mel


def naive(wave, rate, bins=64, window=0.025, hop=0.010):
    """One frame at a time: Hann window, power spectrum, triangles on the HTK Mel scale, logarithm."""
    length, step = round(window * rate), round(hop * rate)
    size = LogMel(rate, bins=bins, window=window, hop=hop).size
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    mel = np.linspace(0, 2595 * math.log10(1 + rate / 2 / 700), bins + 2)
    edges = 700 * (10 ** (mel / 2595) - 1)
    hertz = np.arange(size // 2 + 1) * rate / size
    columns = []
    for start in range(0, len(wave) - length + 1, step):
        power = np.abs(np.fft.rfft(wave[start : start + length] * hann, size)) ** 2
        bands = []
        for low, middle, high in zip(edges[:-2], edges[1:-1], edges[2:], strict=True):
            triangle = np.minimum((hertz - low) / (middle - low), (high - hertz) / (high - middle))
            bands.append((np.maximum(triangle, 0) * power).sum())
        columns.append(np.log(np.array(bands) + FLOOR))
    return np.array(columns).T


@pytest.mark.parametrize(("rate", "bins"), [(16000, 64), (8000, 64), (8000, 40), (22050, 64)])
def test_the_spectrogram_equals_the_formula(rate, bins):
    wave = np.random.default_rng(0).normal(size=rate // 5) * 0.1
    found = log_mel(wave[None], rate, bins=bins)[0, 0]
    wanted = naive(wave, rate, bins)
    assert found.dtype == np.float32 and found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("rate", [1000, 8000, 16000, 44100])
def test_no_band_is_empty(rate):
    assert (LogMel(rate).filters.sum(0) > 0).all()


def test_integers_and_floats_agree():
    wave = np.random.default_rng(0).integers(-3000, 3000, (3, 4000), dtype=np.int16)
    np.testing.assert_array_equal(log_mel(wave, 8000), log_mel(wave.astype(np.float32) / 32768, 8000))


def test_a_second_has_98_frames_in_batches_of_any_size():
    waves = np.random.default_rng(0).normal(size=(5, 16000)).astype(np.float32)
    seen = []
    one = log_mel(waves, 16000, batch_size=2, progress=seen.append)
    assert one.shape == (5, 1, 64, 98) and seen == [2, 4, 5]
    np.testing.assert_allclose(one, log_mel(waves, 16000), atol=1e-5)


@pytest.mark.parametrize(
    ("waves", "rate", "message"),
    [
        (np.zeros((2, 3, 4)), 8000, "expected int16 or float"),
        (np.zeros((2, 100)), 8000, "less than one window of 200"),
        (np.full((2, 4000), np.nan), 8000, "not finite"),
        (np.zeros((2, 4000)), 0, "at least 1000 Hz"),
    ],
)
def test_mistakes_are_named(waves, rate, message):
    with pytest.raises(InputError, match=message):
        log_mel(waves, rate)
