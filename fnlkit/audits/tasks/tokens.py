"""Scores of sentences from the scores of their tokens."""

import numpy as np


def sentence_quality(quality: np.ndarray, sentences: np.ndarray) -> np.ndarray:
    """Return the smallest quality (n,) among the tokens of each token's sentence, as cleanlab scores sentences.

    Parameters
    ----------
    quality : (n,)
    sentences : int (n,)
        Number of the sentence of each token.
    """
    smallest = np.full(sentences.max(initial=0) + 1, np.inf)
    np.minimum.at(smallest, sentences, quality)
    return smallest[sentences]
