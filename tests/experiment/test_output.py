"""What a run writes while it trains, and what it says of its progress."""

import json
from types import SimpleNamespace

import numpy as np

from fnlkit.experiment.output import metrics_file
from fnlkit.experiment.progress import Progress


def test_metrics_start_with_the_rows_of_the_run_that_is_continued(tmp_path):
    path = tmp_path / "m.jsonl"
    with metrics_file(str(path), [{"round": 0}]) as write:
        write({"round": 1})
        assert [json.loads(line) for line in path.read_text().splitlines()] == [{"round": 0}, {"round": 1}]
    with metrics_file(None, []) as write:
        write({"round": 0})


def test_progress_counts_from_where_a_run_was_continued(monkeypatch):
    traffic = SimpleNamespace(client_rounds=10)
    clients = SimpleNamespace(traffic=traffic, sizes=np.array([20.0, 40.0]))
    experiment = SimpleNamespace(clients=clients, client_rounds_total=30, settings=SimpleNamespace(epochs=2))
    clock = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    state = Progress(experiment)
    traffic.client_rounds = 15
    # 5 client-rounds of 30 samples on average and 2 epochs in 10 seconds: 30 samples a second; 15 more take 30 seconds.
    assert state.text({"stage": "training"}) == "training: 30 samples/s"
    assert (state.start, state.done, state.total, state.seconds_left) == (10, 15, 30, 30.0)
    monkeypatch.undo()
    assert state.text({"stage": "training", "accuracy": 0.5}).startswith("training: accuracy 0.5000, ")
    assert state.text({"stage": "final"}).startswith("final: accuracy 0.5000, ")
