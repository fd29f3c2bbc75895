"""Runs side by side: means and spreads of equal ones."""

from fnlkit.results.comparison import groups


def test_groups_average_what_is_equal_and_leave_out_what_has_no_score():
    rows = [
        {"group": {"method": "fedavg", "model": None}, "accuracy_best": best, "accuracy_last": last}
        for best, last in ((0.5, 0.25), (0.75, 0.5), (None, None))
    ]
    rows.append({"group": {"method": "flr", "model": None}, "accuracy_best": 0.5, "accuracy_last": 0.5})
    # Two values 1/4 apart: sample variance (1/8)^2 + (1/8)^2 = 1/32.
    spread = (1 / 32) ** 0.5
    assert groups(rows) == [
        {"group": rows[0]["group"], "runs": 2, "accuracy_best": (0.625, spread), "accuracy_last": (0.375, spread)},
        {"group": rows[3]["group"], "runs": 1, "accuracy_best": (0.5, None), "accuracy_last": (0.5, None)},
    ]
