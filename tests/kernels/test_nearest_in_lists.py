"""The search in inverted lists finds near copies; how often it misses the nearest of other rows."""

import numpy as np
import pytest

from fnlkit.kernels.neighbors import nearest, nearest_in_lists


@pytest.mark.parametrize(("columns", "missed"), [(16, 0.25), (64, 0.63)])
def test_near_copies_are_found_and_other_nearest_rows_often_missed(columns, missed):
    rng = np.random.default_rng(columns)
    rows = rng.normal(size=(11_000, columns)).astype(np.float32)
    exact = nearest(rows, 1)[:, 0]
    assert abs((nearest_in_lists(rows, 1)[:, 0] != exact).mean() - missed) < 0.03
    rows[5_500:] = rows[:5_500] + 0.01 * rng.normal(size=(5_500, columns)).astype(np.float32)
    assert np.array_equal(nearest_in_lists(rows, 1)[:, 0], (np.arange(11_000) + 5_500) % 11_000)
