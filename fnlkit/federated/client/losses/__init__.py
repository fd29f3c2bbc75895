"""Losses: functions (logits (..., B, C), batch) -> values (..., B), or (values, rows to write back).

They operate on the last axis and broadcast over the others, so that one client and a stacked cohort share the code.
Constants of a round are keywords, bound with functools.partial.  Values that differ by client or class are in
``batch.received``, ``batch.state`` and ``batch.rows``.  A loss that reads more than labels declares it with `reads`.
The names for ``--loss`` are in fnlkit/core/registry.py.  Losses of methods:

    ==========================  ===========================================================  ===============================
    loss                        value of one sample, p = softmax(logits)                     reads
    ==========================  ===========================================================  ===============================
    cross_entropy               -log p_y                                                     y
    smoothed_cross_entropy      -(1 - a) log p_y - a mean_j log p_j                          y
    kept_cross_entropy          w_i (-log p_y)                                               rows["keep"]
    forward_corrected           -log sum_j p_j T[j, y]                                       state["transition"]
    importance_reweighted       p_y / (p T)_y (-log p_y)                                     state["transition"]
    contrastive                 -log(p_y + f) + b log(p_y' + f), y' ~ q                      received["prior"], uniform
    label_mixture               -log p_y + a log(1 - <p, t>)                                 teacher, rows["mixture_*"]
    embedding_distilled         -log p_y + b d |e - ê| / root of D                           rows, features, received, state
    logit_distilled             -log p_y + b d F^2 KL(p^F, p_global^F)                       teacher, received
    logit_adjusted              -log p'_y, p' = softmax(z + log n)                           state["class_share"]
    adjusted_distilled          -(1 - w) log p'_y + w KL(p_global^F || p')                   state, teacher, received["distil"]
    partly_distilled            adjusted_distilled, w = 0 for relabeled samples              the same, rows["distilled"]
    label_learning              KL(p || s) / C + b H(p) / C, s learned; or -log p'_y         rows, state, received["noisy"]
    near_centroids              -log p_y' + b |f - c_y|^2 + e H(p) on small losses           features, rows, state
    self_regularized            -log p'_y + b JS(p1^F, p2^F) + e H, p' of two views          uniform
    consistent                  -log p_y' of filtered, agreeing samples + b KL(1/C||mean p)  rows, state, unmixed
    mixmatch                    -<t, log p> or u mean_c (t - p)^2, t refined or guessed      rows, unmixed, features of a Pair
    joint                       -<s, log p> + a KL(1/C || mean p) + b H(p)                   rows["joint_*"]
    refurbished                 -log p_y' on certain or small-loss samples, else 0           rows["selfie_*"]
    soft_cross_entropy          -<q, log p>                                                  rows["inferred"]
    exchanged                   sum_k c_i,-k (-log p_k,y), c chosen by the other model       features of a Pair
    ==========================  ===========================================================  ===============================
"""

from fnlkit.core.lazy import attach

# The names of these three are also those of their files.
from fnlkit.federated.client.losses.contrastive import contrastive as contrastive
from fnlkit.federated.client.losses.cross_entropy import cross_entropy as cross_entropy
from fnlkit.federated.client.losses.mixmatch import mixmatch as mixmatch
from fnlkit.federated.client.losses.parts import reads as reads

__getattr__ = attach(__name__, {})
