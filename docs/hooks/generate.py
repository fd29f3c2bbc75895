"""Write the generated pages of the site: commands, methods, other components, packages, noise figures (mkdocs-gen-files)."""

import inspect
import re
from functools import partial
from pathlib import Path

import click
import mkdocs_gen_files

import fnlkit
import fnlkit.kernels
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.cli import COMMANDS, group, parts
from fnlkit.cli.dataclass_options import ALL_OPTIONS
from fnlkit.core import presets, registry
from fnlkit.core.spec import parse
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment
from fnlkit.experiment import cards
from fnlkit.pipeline.judging import Evaluation
from fnlkit.results import plots
from fnlkit.results.trained_run import TrainedRun
from fnlkit.simulate import noise, partitioning

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("datasets", "simulate.noise", "estimators", "models", "experiment", "federated.client", "federated.engines",
            "cleanlab.filter", "cleanlab.rank", "cleanlab.count")  # fmt: skip
TYPES = (Federation, TrainedRun, Evaluation, EstimatorInputs, Judgment)  # arguments and results of exported functions


def write(path, text):
    """Write a page of the site; a page of docs/ with this path is replaced."""
    with mkdocs_gen_files.open(path, "w") as file:
        file.write(text)


def documented(function, heading=2, source="false"):
    """Return the directive of mkdocstrings for a function."""
    plain = inspect.unwrap(function)
    path = f"{plain.__module__}.{plain.__qualname__}"
    return f"::: {path}\n    options: {{heading_level: {heading}, show_source: {source}}}\n"


def command_pages():
    """Write the `--help` of each command; mkdocs-click would omit the groups of options and the form of examples."""
    write(
        "commands/index.md", "# Commands\n\n" + "".join(f"- [{name}]({name}.md): {text}\n" for name, text in COMMANDS.items())
    )
    for name in COMMANDS:
        command, text = group.get_command(None, name), f"# fnlkit {name}\n"
        for verb, each in {"": command, **getattr(command, "commands", {})}.items():
            path = f"fnlkit {name} {verb}".strip()
            context = click.Context(each, info_name=path, max_content_width=100, terminal_width=100)
            context.meta[ALL_OPTIONS] = True
            usage = each.get_help(context)
            text += (f"\n## {path}\n" if verb else "") + f"\n```text\n{usage}\n```\n"
        write(f"commands/{name}.md", text)


def component_pages():
    """Write a page per method, and a page per other kind of component, from docstrings and declarations."""
    write("method/index.md", f"# Methods\n\n{cards.markdown()}\n")
    for kind, about in parts.KINDS.items():
        title = {"loss": "losses", "model": "networks", "noise": "noise models"}.get(kind, f"{kind}s")
        page = f"# {title.capitalize()}\n\nUse: `{about.use.format(kind=kind, spec='SPEC')}`\n\n"
        for name in about.parts():
            (function,) = [found for of, found in parts.find_all(name) if of == kind]
            if kind == "method":
                write(f"method/{name}.md", _method(name, function))
            else:
                page += f"## {name}\n\n{documented(function, 3)}\n"
        if kind != "method":
            write(f"parts/{title.replace(' ', '-')}.md", page)


def _method(name, function):
    known = cards.card("method", name)
    used = [
        f"`--preset {each}`"
        for each in presets.names()
        if parse(presets.load_preset(each).get("method", "fedavg")).name == name
    ]
    loss = "The method defines the loss." if registry.brings_loss(name) else "Every [loss](../parts/losses.md) can be used."
    replies = "".join(f"- `{reply}`: {sent.what} ({sent.when})\n" for reply, sent in known.sends.items())
    cost = "Not compared with FedAvg, because the method has its own number of rounds."
    if known.cost:
        cost = ", ".join(f"{what} {known.cost[key]:g}" for key, what in cards.COST.items())
        cost = f"At equal `--rounds`, relative to FedAvg: {cost} (`python -m benchmarks.methods --traffic`)."
    return f"""# {name}

*Source:* {parts.source(function) or "none"}

{loss} {"Published settings: " + ", ".join(used) + "." if used else ""} [When each method helps](../methods.md)

{documented(function, 2, "true")}
## Replies of a client

- `weights`: the local model (every round)
{replies}
## Cost

{cost}
"""


def package_pages():
    """Write a page per package; mkdocstrings lists the exported names, except lazy names of `fnlkit` and `fnlkit.kernels`."""
    lazy = [getattr(fnlkit, name) for name, home in fnlkit._HOME.items() if home != "fnlkit.kernels"]
    write("library/fnlkit.md", "# fnlkit\n\n" + "\n".join(map(documented, [*lazy, *TYPES])))
    exported = "\n".join(documented(getattr(fnlkit.kernels, name)) for name in fnlkit.kernels.__all__)
    write("library/kernels.md", f"# fnlkit.kernels\n\n{exported}")
    for name in PACKAGES:
        options = "options: {heading_level: 2, show_root_heading: false}"
        write(f"library/{name.rpartition('.')[2]}.md", f"# fnlkit.{name}\n\n::: fnlkit.{name}\n    {options}\n")


def repository_files():
    """Convert links that leave docs/, and copy the linked files to files/ as text."""
    for source in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        inside = source.parent.name == "docs"
        text = source.read_text(encoding="utf-8")
        outside = r"\]\((\.\./[^):#]+)(?=[)#])" if inside else r"\]\(([^):#]+)(?=[)#])"
        text = re.sub(outside, partial(_link, source.parent), text)
        write(source.name if inside else source.name.lower(), text)


def _link(folder, found):
    """Return the site's form of a link to a repository file."""
    target = (folder / found[1]).resolve().relative_to(ROOT)
    if target.is_relative_to("docs"):
        return f"]({target.relative_to('docs')}"
    if target.suffix == ".md":
        return "](index.md" if target.name == "README.md" else f"]({target.name.lower()}"
    write(f"files/{target}.txt", (ROOT / target).read_text(encoding="utf-8"))
    return f"](files/{target}.txt"


def noise_figures():
    """Replace each line ``<!-- noise: SPEC -->`` of noise.md by `fnlkit plot transition` (digits, 20 clients, seed 0)."""
    data = datasets.load("digits")
    clean = partitioning.federation(data, clients=20)

    def figure(found):
        name = f"noise/{re.sub(r'[^a-z0-9]+', '-', found[1])}.svg"
        with mkdocs_gen_files.open(name, "wb") as file:
            plots.plot([("", noise.inject(clean, found[1], seed=0, x=data.x_train))], "transition", file.name)
        return f"`--noise '{found[1]}'`\n\n![Requested and achieved transition of {found[1]}]({name})"

    page = (ROOT / "docs/noise.md").read_text(encoding="utf-8")
    write("noise.md", re.sub(r"(?m)^<!-- noise: (.+?) -->$", figure, page))


command_pages()
component_pages()
package_pages()
repository_files()
noise_figures()
