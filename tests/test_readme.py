"""README.md is true: its example runs and ends as it says, its links and commands exist, its numbers name their source."""

import re
import shlex
from pathlib import Path

from fnlkit.cli import COMMANDS, group
from tests.commands import shell

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_quickstart_shows_fedcorr_above_fedavg(tmp_path):
    done = shell(f"bash {shlex.quote(str(ROOT / 'examples' / 'quickstart.sh'))} runs", tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^ *digits +(fedavg|fedcorr) +3 +\S+ ± \S+ +(\S+) ± \S+ *$", done.stdout, re.MULTILINE))
    assert float(found["fedcorr"]) > float(found["fedavg"]) + 2, done.stdout


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_command_and_option_in_the_pages_exists():
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for verb, rest in re.findall(r"\bfnlkit ([a-z][a-z-]+)([^\n|`&#]*)", text):
            if verb in COMMANDS:
                command = group.get_command(None, verb)
                known = {name for p in command.params for name in p.opts}
                known |= {name for sub in getattr(command, "commands", {}).values() for p in sub.params for name in p.opts}
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest):
                    assert option in known | {"--help"}, f"{page.name}: fnlkit {verb} has no {option}"


def test_every_command_stands_in_the_readme():
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", README), name
