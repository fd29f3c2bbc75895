"""Tasks over files, and their results; without Flower."""

import json
from pathlib import Path

from fnlkit.artifacts.run import Run
from fnlkit.audits import report
from fnlkit.sites.server import folder, tasks
from fnlkit.sites.site import request_files


def run_by_folder(agreed, options, doors, place):
    """Run a task as people do who send files: the coordinator's command again and again, and that of each site {name: Door}."""
    for _ in range(20):
        transport = folder.Folder(place, [*doors])
        try:
            tasks.conduct(transport, agreed, options, folder=str(place))
            return result_of(options)
        except folder.Waiting:
            for name, door in doors.items():
                if any(not path.with_suffix(".reply").exists() for path in Path(place).glob(f"{name}-*.request")):
                    for path in request_files.list_requests([str(place)], name):
                        request_files.answer_file(door, path)
    raise AssertionError("the task does not end")


def result_of(options):
    """Return the run of a training, else the written facts."""
    return Run.read(options.output) if options.task == "train" else json.loads(Path(options.output).read_text())


def same(found, simulated, federation, data):
    """Return whether the rows of an audit are those of the simulation, without counts of single samples."""
    expected = json.loads(json.dumps(report.facts(simulated, federation, data)["sites"]))
    single = ("copies", "near_copies", "far", "unlabeled", "detectors", "agreed")
    left, right = (
        [{name: row[name] for name in row if name not in single} for row in rows] for rows in (found["sites"], expected)
    )
    return left == right
