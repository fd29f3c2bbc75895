"""Log-Mel spectrograms of waves, the front end of audio networks."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit.core.errors import InputError

# Added to the energy of a Mel band before the logarithm, so that silence (zeros) stays finite.
FLOOR = 1e-6


class LogMel:
    """Transform waves (..., samples) into log-Mel spectrograms (..., bins, T), without trainable parts.

    It is not a torch module: the window and the filters are constants of the sample rate, not buffers to send or average.

    Parameters
    ----------
    sample_rate : int
        Hz.
    bins : int
        Mel bands from 0 to half the sample rate (HTK scale).
    window, hop : float
        Seconds; Hann window.  FedLN: 0.025 and 0.010.
    full_scale : float
        Divisor of the waves: 32768 for int16 samples.

    Notes
    -----
    There is a frame for every whole window, T = 1 + (samples - window) // hop: 98 per second.  The transform is longer
    than the window (padded with zeros), so that the narrowest Mel band contains a frequency.  Values are natural
    logarithms, ln(energy + 1e-6): -13.8 for silence, up to about 7 for loud speech.
    """

    def __init__(self, sample_rate, *, bins=64, window=0.025, hop=0.010, full_scale=1.0):
        import torch

        if sample_rate < 1000 or bins < 1 or not 0 < hop or not window >= 2 / sample_rate or not full_scale > 0:
            raise InputError(
                f"`sample_rate` {sample_rate} Hz, `bins` {bins}, `window` {window} s, `hop` {hop} s, `full_scale` "
                f"{full_scale}: expected at least 1000 Hz, one bin, positive lengths and scale"
            )
        self.window, self.hop = round(window * sample_rate), max(1, round(hop * sample_rate))
        self.bins, self.full_scale = bins, full_scale
        top = 2595 * math.log10(1 + sample_rate / 2 / 700)
        lowest = 700 * (10 ** (top / (bins + 1) / 2595) - 1)  # upper limit of the first band in Hz is twice this
        self.size = 2 ** math.ceil(math.log2(max(self.window, sample_rate / lowest)))
        self.hann = torch.hann_window(self.window, dtype=torch.float64)
        self.filters = mel_filters(self.size // 2 + 1, bins, sample_rate)

    def frames(self, samples: int) -> int:
        """Number T of frames for waves of this many samples; 0 if they are shorter than the window."""
        return max(0, 1 + (samples - self.window) // self.hop)

    def __call__(self, waves):
        """Compute the spectrograms (..., bins, T) of waves (..., samples), a float tensor."""
        import torch

        around = self.size - self.window
        waves = torch.nn.functional.pad(waves / self.full_scale, (around // 2, around - around // 2))
        # torch centers a window that is shorter than the transform, at the position that the padding gives each frame.
        spectrum = torch.stft(
            waves.reshape(-1, waves.shape[-1]),
            self.size,
            self.hop,
            self.window,
            self.hann.to(waves),
            center=False,
            return_complex=True,
        )
        power = spectrum.abs().square().reshape(*waves.shape[:-1], *spectrum.shape[-2:])
        bands = power.transpose(-1, -2) @ self.filters.to(waves)
        return (bands + FLOOR).log().transpose(-1, -2)


def mel_filters(frequencies: int, bins: int, sample_rate: int) -> Any:
    """Make triangular filters (frequencies, bins) that are equally wide on the Mel scale, a float32 tensor.

    Parameters
    ----------
    frequencies : int
        Number of frequencies, evenly spaced from 0 to half the sample rate.
    bins : int
        Number of Mel bands.  Each rises from the center of the previous band to 1 and falls to the center of the next.
    sample_rate : int
        Hz.

    Notes
    -----
    HTK's scale, mel = 2595 log10(1 + Hz / 700), without a normalization of the area.
    """
    import torch

    top = 2595 * math.log10(1 + sample_rate / 2 / 700)
    borders = 700 * (10 ** (torch.linspace(0, top, bins + 2) / 2595) - 1)
    distances = borders - torch.linspace(0, sample_rate // 2, frequencies)[:, None]  # (frequencies, bins + 2)
    width = borders.diff()
    rise, fall = -distances[:, :-2] / width[:-1], distances[:, 2:] / width[1:]
    return torch.minimum(rise, fall).clamp(min=0)


def log_mel(
    waves: np.ndarray,
    sample_rate: int,
    *,
    bins: int = 64,
    window: float = 0.025,
    hop: float = 0.010,
    batch_size: int = 256,
    device: str = "cpu",
    progress: Callable[..., Any] | None = None,
) -> np.ndarray:
    """Compute log-Mel spectrograms, once for repeated training.

    Parameters
    ----------
    waves : int16 or float (n, samples)
        Integers are divided by 32768; floats must lie in [-1, 1].
    sample_rate : int
        Hz.
    bins : int
    window, hop : float
        Seconds; the defaults are FedLN's.
    batch_size : int
        Waves per step; bounds the additional memory.
    device : str
    progress : callable or None
        Called with the number of finished waves after each batch.

    Returns
    -------
    float32 (n, 1, bins, T)
        One channel; natural logarithms, frequency from low to high; see `LogMel`.

    Raises
    ------
    InputError
        If waves are not (n, samples), shorter than a window, or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit.models.spectrograms import log_mel
    >>> log_mel(np.zeros((2, 16000), np.int16), 16000).shape
    (2, 1, 64, 98)
    """
    import torch

    waves = np.asarray(waves)
    if waves.ndim != 2 or (waves.dtype != np.int16 and waves.dtype.kind != "f"):
        raise InputError(f"`waves` is {waves.dtype} of shape {waves.shape}; expected int16 or float (n, samples)")
    front = LogMel(int(sample_rate), bins=bins, window=window, hop=hop, full_scale=32768.0 if waves.dtype == np.int16 else 1.0)
    frames = front.frames(waves.shape[1])
    if not frames:
        raise InputError(f"`waves` have {waves.shape[1]} samples, less than one window of {front.window}; pad them")
    spectrograms = np.empty((len(waves), 1, bins, frames), np.float32)
    for start in range(0, len(waves), batch_size):
        part = torch.from_numpy(np.ascontiguousarray(waves[start : start + batch_size], np.float32))
        if not torch.isfinite(part).all():
            raise InputError(f"`waves` {start} to {start + len(part) - 1} hold values that are not finite")
        spectrograms[start : start + len(part), 0] = front(part.to(device)).cpu().numpy()
        if progress:
            progress(start + len(part))
    return spectrograms
