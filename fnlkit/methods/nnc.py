"""NNC: replace labels by the majority of nearest neighbors before training.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from fnlkit.core import registry
from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import Automatic, Range, Share, check_arguments
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.missed import catching_up, complete_levels
from fnlkit.methods.neighbor_votes import limit_neighbors, vote


# ---- the server
@method(
    sends={"noise_level": Sent.share("share of labels outvoted by nearest neighbors", "once, before training")},
    loss="usual",
    needs=("embedding",),
    cite="Tsouvalas 2024",
)
@check_arguments
def nnc(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    k: Annotated[int, Range(1), Automatic()] = -1,
    least: Share = 0.0,
    include_self: bool = False,
    ties: Literal["random", "lowest"] = "random",
    usual: Callable[..., Any] = fedavg,
) -> Generator[Round, None, Model]:
    """Replace labels by the vote of nearest neighbors in an embedding, then train.

    Each client replaces its labels by the neighbors' votes (eq. 7), then all train as usual.

    Parameters
    ----------
    rounds : int
    k : int >= 1, or -1
        Neighbors within the client: 100 in the paper, whose CIFAR-10 clients have 167 samples of a class.  Default: -1, which
        is 0.6 times the client's samples per class, from 5 to 100; this gives 100 in the paper's setting.  A larger number than
        the mean number of samples per class and client is reduced to that number with a note.
    least : float in [0, 1]
        Labels of a client with a lower estimated level are not changed; 0.15 in the public code.
    include_self : bool
        Count a sample as its own neighbor (public code).
    ties : "random" or "lowest"
        Choice among equal votes; the lowest class in the public code.
    usual : method
        Method that trains on the corrected labels.

    Notes
    -----
    The quality of the votes depends on the embedding.  Without `--embeddings`, principal components of the samples are used
    and a note is printed.  On photographs, such votes make labels worse.

    In FedLN's Table 3 the difference from FedAvg on CIFAR-10 is -8.9 to +17.1, with CLIP and 167 samples of a class per client.
    With a few samples of a class and principal components, as in docs/league.md, votes are worse than the labels: NNC
    replaces all labels (eq. 7), and `least` = 0.15 of the public code does not prevent it.

    FedLN's matrix of a client has an even diagonal, n_l = 1 - diag(Q) in every class (Definition 2.1 and the public code):
    `sparse(per_client=true)`.  The uneven diagonals of `construction=confident-learning` cannot be the paper's: with such
    diagonals a perfect embedding reaches AUC 83.0 at (0.7, 0), and the paper prints 91.63 with CLIP.

    On 500 CIFAR-10 samples, 50 per class, 100 votes include other classes: at n_l 0.7, F 0.8 the share of right labels is 42.1
    % with k = 100 and 45.0 % with k = 50 (44.6 % before).  With uneven matrices the most frequent label of a class can be
    wrong, and every k loses (37.0 % at best).  On Fashion-MNIST k = 100 leaves 66.8 % right and k = 30 69.1 % (67.4 % before;
    n_l 0.4, clients of 2,000).

    Reports
    -------
    noise_level (N,), once; a client without a vote counts as the noisiest of the others.
    """
    k = limit_neighbors(clients, k, "nnc")
    discard = "embedding" not in registry.needs(usual)
    correct = partial(vote, k=k, include_self=include_self, ties=ties, correct=True, least=least, discard=discard)
    replies = clients.round(np.arange(len(clients)), model, correct, expect=("noise_level",))
    opt = catching_up(opt, clients, replies, partial(correct, missed=True))
    levels = np.zeros(len(clients))
    levels[replies.ids] = replies["noise_level"].numpy()
    report = {"noise_level": complete_levels(levels, replies.ids)}
    program = usual(clients, model, opt, select, rounds=rounds)
    while True:  # add the report to the first round of `usual`
        try:
            step = next(program)
        except StopIteration as end:
            return end.value
        yield Round(step.model, step.stage, step.replies, {**step.report, **report})
        report = {}
