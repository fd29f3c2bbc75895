"""Sites are compared by models on what the run was trained on."""

import numpy as np
import pytest
from PIL import Image

import fnlkit


@pytest.mark.slow
def test_sites_are_compared_on_the_features_of_the_backbone(tmp_path):
    rng = np.random.default_rng(0)
    for site in "abc":
        for name, high in (("x", 256), ("y", 90)):
            (tmp_path / site / name).mkdir(parents=True)
            for i in range(10):
                Image.fromarray(rng.integers(0, high, (32, 32, 3)).astype(np.uint8)).save(tmp_path / site / name / f"{i}.png")
    fed = fnlkit.partition(f'folder(path="{tmp_path}", label=2)', "sites", say=None)
    run = fnlkit.train(fed, rounds=2, fraction=1.0, output=tmp_path / "run.pt", say=None)
    found = fnlkit.evaluate(run, cross_site=True).rows[0]["cross_site"]
    assert run.meta["features"]["backbone"] and np.mean(found["own"]) > 0.8 and np.mean(found["federated"]) > 0.8
