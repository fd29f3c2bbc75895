#!/usr/bin/env bash
# Package: label-studio-sdk 2.1.2, exports JSON_MIN and CSV of the same tasks.
# Guess: the column "id" is the same in both exports, so that they can be joined by it.
# Behavior: if the tasks' data has a field "id" (such as the row in the own database), CSV exports this field and JSON_MIN the
#   number of the task in Label Studio. Where the numbers overlap, as for 1 and 2 here, the exports name different labels
#   for the same id.
# Source: label_studio_sdk/converter/converter.py, convert_to_json_min; exports/csv2.py, prepare_annotation.
"$(dirname "$0")/fresh" label-studio-sdk==2.1.2 numpy==2.2.6 pandas==2.3.3 <<'PYTHON'
import csv
import json
import tempfile
from importlib.metadata import version

from label_studio_sdk.converter import Converter

config = """<View><Text name="text" value="$text"/><Choices name="label" toName="text">
<Choice value="cat"/><Choice value="dog"/><Choice value="fox"/></Choices></View>"""
labels = ["cat", "dog", "fox"]
tasks = [
    {
        "id": row + 1,
        "data": {"id": row, "text": f"row {row}"},
        "annotations": [
            {
                "id": 50 + row,
                "completed_by": 1,
                "result": [{"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": [label]}}],
            }
        ],
    }
    for row, label in enumerate(labels)
]
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/tasks.json", "w", encoding="utf-8") as target:
        json.dump(tasks, target)
    converter = Converter(config, folder)
    converter.convert_to_json_min(f"{folder}/tasks.json", f"{folder}/min", is_dir=False)
    converter.convert_to_csv(f"{folder}/tasks.json", f"{folder}/csv", is_dir=False, sep=",")
    with open(f"{folder}/min/result.json", encoding="utf-8") as source:
        short = {int(row["id"]): row["label"] for row in json.load(source)}
    with open(f"{folder}/csv/result.csv", encoding="utf-8", newline="") as source:
        table = {int(row["id"]): row["label"] for row in csv.DictReader(source)}
print(f"label-studio-sdk {version('label-studio-sdk')}: label by id: JSON_MIN {short}, CSV {table}")
expected = ({1: "cat", 2: "dog", 3: "fox"}, {0: "cat", 1: "dog", 2: "fox"})
if (short, table) != expected:
    raise SystemExit(f"the behavior has changed: {(short, table)} instead of {expected}")
PYTHON
