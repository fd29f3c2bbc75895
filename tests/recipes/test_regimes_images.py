"""The recipe on images: its two parts of a data set share no image, and its runs start from the reported part."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import regimes
from fnlkit.errors import InputError
from fnlkit.recipes import recipe, reproduce
from tests.commands import succeed

PAPERS = ("fedcorr", "fedefc", "flr", "feddpcont", "nnc")


def _numbered(train, test):
    """Return a data set whose pixels are the number of the sample; test samples continue the numbers."""
    x = np.arange(train + test)[:, None, None, None]
    return SimpleNamespace(x_train=x[:train], y_train=np.arange(train) % 10, x_test=x[train:], y_test=np.arange(test) % 10)


def test_development_and_reported_images_differ():
    data = _numbered(50, 7)
    develop, report = regimes.part(data, True, size=10), regimes.part(data, False, size=10)
    seen = {
        name: {int(i) for i in part[key].ravel()}
        for name, part, key in (
            ("develop", develop, "x_train"),
            ("develop tests", develop, "x_test"),
            ("report", report, "x_train"),
            ("report tests", report, "x_test"),
        )
    }
    assert sum(map(len, seen.values())) == len(set().union(*seen.values())) == 37
    assert all(len(part["y_train"]) == 10 for part in (develop, report))
    # Labels stay with their images.
    assert all((part["x_train"].ravel() % 10 == part["y_train"]).all() for part in (develop, report))


def test_a_data_set_that_is_too_small_is_named():
    with pytest.raises(InputError, match="29 training samples, but the parts need 30"):
        regimes.part(_numbered(29, 7), True, size=10)


def test_each_paper_has_a_regime_with_fedavg_and_true_labels():
    for paper in PAPERS:
        (regime,) = {job.regime for job in reproduce.jobs(recipe.load_recipe("regimes-images"), seeds=1) if job.method == paper}
        jobs = reproduce.jobs(recipe.load_recipe("regimes-images"), only=regime)
        methods = [job.method for job in jobs if job.seed == 0]
        assert methods[:3] == ["fedavg", paper, "oracle"] and {job.seed for job in jobs} == {0, 1, 2, 3, 4}
        # All methods of a regime have the same options: the differences are those of the methods and losses.
        own = ("--method", "--seed", "--embed", "--loss")
        options = {tuple(word for word in job.train if not word.startswith(own)) for job in jobs}
        assert len(options) == 1


def test_a_regime_on_images_runs(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (460, 32, 32, 3), dtype=np.uint8)
    y = np.arange(460) % 10
    np.savez(tmp_path / "images.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    command = "fnlkit reproduce regimes-images --only 'FLR*' --seeds 1 --rounds 1 --dataset images.npz -o runs --json"
    done = succeed(command, tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["method"] for row in rows if "method" in row][:3] == ["fedavg", "flr", "oracle"]
