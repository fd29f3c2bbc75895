"""The list of published rows for a GPU, without a GPU."""

import argparse

import pytest

from benchmarks import gpu_campaign

SMALL = {"seeds": 1, "dataset": None, "embeddings": None, "eval_every": None, "scale": 0.004}
SMALL |= {"model": "mlp(hidden=4)", "precision": "fp32", "device": "cpu"}


def test_every_row_can_run():
    found = list(gpu_campaign.jobs(argparse.Namespace(**(SMALL | {"seeds": 2}))))
    assert [job.regime for _, job in found] == 2 * [row for _, row in gpu_campaign.ROWS]
    assert all(job.published for _, job in found)
    assert {job.seed for _, job in found[: len(gpu_campaign.ROWS)]} == {found[0][1].seed}


@pytest.mark.slow
def test_a_finished_row_is_not_trained_again(tmp_path, monkeypatch, capsys):
    words = [str(tmp_path), "--rows", "0", "--dataset", "digits", "--scale", "0.004", "--model", "mlp(hidden=4)"]
    monkeypatch.setattr("sys.argv", ["gpu_campaign", *words, "--precision", "fp32", "--device", "cpu"])
    for lines in (1, 0):
        with pytest.raises(SystemExit) as ended:
            gpu_campaign.main()
        assert ended.value.code == 0
        assert capsys.readouterr().out.count("finished after 4 rounds") == lines
