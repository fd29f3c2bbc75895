"""Worlds of the league that are made from files of other projects: which rows are drawn, and what is a feature."""

import numpy as np
import pytest

from benchmarks import worlds


@pytest.mark.parametrize(("by", "sites"), [("project", {"a", "b"}), ("release", {"a-1.9", "b-1.9"})])
def test_test_files_are_those_of_the_last_release(by, sites):
    """Two projects with 100 files each of release 1.9 and of the later 1.10; a quarter has a bug."""
    project, true = np.repeat(["a", "b"], 200), np.arange(400) % 4 == 0
    release = np.char.add(np.char.add(project, "-1."), np.tile(np.repeat(["10", "9"], 100), 2))
    train, test = worlds.jira_rows(project, release, true.astype(int), by, files=40)
    assert set(release[train]) == {"a-1.9", "b-1.9"} and set(release[test]) == {"a-1.10", "b-1.10"}
    site = project if by == "project" else release
    assert {name: true[train][site[train] == name].mean() for name in set(site[train])} == dict.fromkeys(sites, 0.5)
    assert len(train) == len(set(train)) == 80
    # A release has 25 files with a bug, and 40 without are drawn.
    assert len(test) == len(set(test)) == 2 * (25 + worlds.TEST_FILES)


def test_the_numeric_columns_of_an_arff_file_are_features(tmp_path):
    (tmp_path / "t.arff").write_text(
        "@relation t\n@attribute 'the speaker' {ann,bob}\n@attribute 'F 0' real\n@attribute n integer\n"
        "@attribute Class {yes, no}\n@data\nann,0.25,3,yes\nbob,-1e-3,4,no\n",
        encoding="utf-8",
    )
    assert worlds.table_text(tmp_path / "t.arff") == "F 0,n,label\n0.25,3,yes\n-0.001,4,no\n"
    with pytest.raises(FileNotFoundError):
        worlds.table_text(tmp_path / "missing.arff")
