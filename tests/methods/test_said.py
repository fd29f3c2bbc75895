"""What a method did not do is said: votes among too many neighbors, a correction that never began."""

import numpy as np
import torch

from fnlkit.core import registry
from fnlkit.methods.neighbor_votes import limit_neighbors, neighbors_for
from tests.toy import toy


class Held:
    """What `allowed_neighbors` asks of Clients."""

    def __init__(self, sizes, classes=10):
        self.sizes, self.classes, self.notes = torch.tensor(sizes, dtype=torch.float64), classes, []

    def note(self, text):
        self.notes.append(text)


def test_the_papers_k_is_reduced_if_a_client_has_fewer_samples_of_a_class():
    paper = Held([1667] * 30)
    assert limit_neighbors(paper, 100, "nnc") == 100 and neighbors_for([1667], 10).item() == 100
    assert limit_neighbors(paper, -1, "nnc") == 0 and not paper.notes
    small = Held([144] * 10)
    assert limit_neighbors(small, 14, "nnc") == 14 and not small.notes
    assert limit_neighbors(small, 100, "nnc") == 14 and len(small.notes) == 1
    assert limit_neighbors(Held([30] * 4), 100, "akd") == 5
    assert limit_neighbors(small, -1, "akd") == 0 and "akd: k = 9 to 9 neighbors vote" in small.notes[1]


def test_votes_of_too_many_neighbors_made_right_labels_wrong_and_the_default_does_not():
    """144 samples a client, 46 % of the labels wrong: with k = 100 a fifth of the labels was right afterwards."""
    from fnlkit import datasets
    from fnlkit.experiment import Experiment, Settings
    from fnlkit.simulate import noise, partitioning

    digits = datasets.load("digits")
    fed = noise.inject(partitioning.federation(digits, clients=10, seed=0), "symmetric(eta=0.46)", seed=0)
    settings = {"rounds": 1, "epochs": 1, "fraction": 0.2}
    x = digits.x_train.reshape(len(digits.x_train), -1).astype(np.float32)
    run = Experiment(fed, digits, Settings(method="nnc", **settings), embeddings=x, engine="sequential").run()
    right = run.labels["corrected"] == run.labels["true"]
    assert right.mean() > 0.7 > (fed.given == fed.true).mean()
    run = Experiment(fed, digits, Settings(method="nnc(k=100)", **settings), embeddings=x, engine="sequential").run()
    assert (run.labels["corrected"] == run.labels["true"]).mean() > 0.7


def test_every_method_with_neighbors_takes_the_default(tmp_path):
    for name in ("nnc", "akd"):
        assert "k" not in registry.method(name).keywords
    assert toy()[0].classes == 4
