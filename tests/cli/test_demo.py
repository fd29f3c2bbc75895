"""The demo prints the commands that it runs, and they find the noisy sites and train."""

import re

from tests.commands import refuse, succeed


def test_the_demo_runs_five_commands_and_overwrites_nothing(tmp_path):
    done = succeed("fnlkit demo -o 'my files'", tmp_path)
    ran = re.findall(r"(?m)^\$ fnlkit (\S+)", done.stdout)
    assert ran == ["partition", "inject-noise", "audit", "train", "evaluate"]
    assert float(re.search(r"accuracy last +(\S+)", done.stdout)[1]) > 0.9
    assert "3 of 6 sites have more wrong labels" in done.stderr and "my files/audit.html in a browser" in done.stderr
    assert (tmp_path / "my files/audit.html").stat().st_size > 10_000
    refuse("fnlkit demo -o 'my files'", tmp_path, "exists")
