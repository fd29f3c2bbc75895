"""The report of a partition: right counts, at most 15 lines, and the same facts as JSON."""

import fnlkit as package


def write(folder):
    """Write 60 rows of two sites: 20 patients, a column of numbers with empty cells at one site, 6 rows without a label."""
    lines = ["exam_no,crp,ward,label,site,patient_id"]
    for i in range(60):
        crp = "" if i in (1, 3, 5) else f"{i / 7:.3f}"
        label = "" if i >= 54 else "ill" if i % 3 else "well"
        lines.append(
            f"{100000 + i},{crp},{'' if i == 4 else 'ab'[i % 2]},{label},{'Aix' if i % 2 else 'Bonn'},p{i // 6:02d}{i % 2}"
        )
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_counts_of_a_table(tmp_path):
    facts = {}
    federation = package.partition(str(write(tmp_path)), "sites", holdout=0, report=facts.update, say=None)
    assert facts["samples"] == {
        "training": 54, "held_out": 0, "verified": 0, "left_out": 0, "test": 0, "unlabeled": 6}  # fmt: skip
    assert facts["clients"] == {"count": 2, "smallest": 27, "largest": 27} and facts["sites"] == {"Aix": 27, "Bonn": 27}
    assert facts["groups"] == 18 and facts["classes"] == {"ill": 36, "well": 18}  # 3 rows of each patient
    assert facts["missing"] == {"crp": {"Aix": 3}, "ward": {"Bonn": 1}, "label": {"Aix": 3, "Bonn": 3}}
    assert facts["left_out"] == {"exam_no": "row numbers"} and facts["true_labels"] is False
    assert facts["columns"] == {
        "label": ["label"], "site": ["site"], "group": ["patient_id"], "number": ["crp"], "one-hot": ["ward"]}  # fmt: skip
    assert facts["samples"]["training"] == sum(map(len, federation.clients))
