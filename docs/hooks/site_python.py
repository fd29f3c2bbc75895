"""Reference of the library: a page per package with the docstrings of exported names."""

import importlib

from site_text import prose, table

# Packages that export public names, the most used first.
ROOMS = ("fnlkit", "kernels", "datasets", "noise", "estimators", "models", "experiment", "client", "engines")
# Types that functions of a package return or take, but that the package does not export.
BESIDE = {
    "fnlkit": ("artifacts.federation:Federation", "results.trained:TrainedRun", "pipeline.judging:Evaluation"),
    "estimators": ("estimators.options:EstimateOptions", "estimators.inputs:EstimatorInputs", "estimators.judgment:Judgment"),
}


def pages():
    """Yield (path, Markdown) of the list of packages and of each package; mkdocstrings adds the docstrings."""
    rows, told, texts = [], {}, []
    for room in reversed(ROOMS):  # a name that two packages export is documented in the lower package
        module = importlib.import_module("fnlkit" if room == "fnlkit" else f"fnlkit.{room}")
        things = [*_handed_on(module), *(_thing(place) for place in BESIDE.get(room, ()))]
        links = [f"[`{thing.__name__}`]({told.setdefault(_path(thing), room)}.md)" for thing in things]
        rows.append((f"[`{module.__name__}`]({room}.md)", prose(_first(module)), ", ".join(links)))
        here = [_path(thing) for thing in things if told[_path(thing)] == room]
        text = "\n".join(f"::: {path}\n    options:\n      heading_level: 2\n" for path in here)
        elsewhere = [link for link in links if f"]({room}.md)" not in link]
        also = f"It also hands on {', '.join(elsewhere)}.\n\n" if elsewhere else ""
        texts.append((f"library/{room}.md", f"# {module.__name__}\n\n{prose(_first(module))}\n\n{also}{text}"))
    head = "# The library\n\nWhat can be imported, by room. Shapes, units and errors stand in the docstrings.\n\n"
    yield "library/index.md", head + table(("room", "what it is for", "names"), rows[::-1]) + "\n"
    yield from reversed(texts)


def _handed_on(module):
    """Return the functions and classes that a package exports, or defines if there is no `__all__`."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    things = [getattr(module, name) for name in names]
    return [each for each in things if callable(each) and (hasattr(module, "__all__") or each.__module__ == module.__name__)]


def _thing(place):
    module, name = place.split(":")
    return getattr(importlib.import_module(f"fnlkit.{module}"), name)


def _path(thing):
    return f"{thing.__module__}.{thing.__qualname__}"


def _first(module):
    return " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
