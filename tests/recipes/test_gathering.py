"""Folders that are merged come from other machines: nothing in them is followed or waited for."""

import os

import numpy as np
import pytest

from fnlkit.errors import InputError
from fnlkit.recipes import gathering, recipe, reproduce


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_a_merged_folder_gives_regular_files_only(kind, tmp_path):
    """A link would copy a file of this machine into a folder that is passed on; a pipe or device would never end."""
    source = tmp_path / "run.metrics.jsonl"
    if kind == "pipe":
        os.mkfifo(source)
    else:
        source.symlink_to("/dev/zero" if kind == "device" else __file__)
    with pytest.raises(InputError, match="regular file"):
        gathering._copy(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_runs_of_annotators_belong_to_the_recipe_that_names_the_votes(tmp_path):
    """The scheme `annotators` makes a row of each vote, so that runs have the checksum of these rows."""
    rng = np.random.default_rng(0)
    y, x = np.arange(60) % 2, rng.normal(size=(60, 3)).astype(np.float32)
    votes = np.where(rng.random((60, 3)) < 0.7, y[:, None], -1)
    votes[:, 0] = y
    np.savez(tmp_path / "votes.npz", x_train=x, votes_train=votes, y_train_true=y, x_test=x, y_test=y)
    (tmp_path / "r.toml").write_text(
        'title = "t"\ndataset = "votes.npz"\nseeds = [0]\nmethods = ["fedavg"]\n[train]\nmodel = "mlp(hidden=[])"\nrounds = 1\n'
        'epochs = 1\nfraction = 1.0\n[[regime]]\nname = "a"\nsteps = ["partition --scheme annotators"]\n'
    )
    given = recipe.load_recipe(str(tmp_path / "r.toml"))
    jobs = reproduce.jobs(given)
    assert reproduce.run(jobs, tmp_path, at_once=1) == {}
    gathering.must_belong_together(jobs, [tmp_path])
    np.savez(tmp_path / "votes.npz", x_train=x + 1, votes_train=votes, y_train_true=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match="another data set than"):
        gathering.must_belong_together(jobs, [tmp_path])
