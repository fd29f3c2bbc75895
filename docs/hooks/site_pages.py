"""Hooks of mkdocs: generated pages in addition to those of docs/, and converted links."""

import posixpath
import re

import site_commands
import site_noise
import site_parts
import site_python
from mkdocs.structure.files import File
from site_links import PAGES, ROOT, linked, placed, relinked, repository

from fnlkit.components import registry

# Table rows that begin with a method's name link to the page of the method.
ROW = re.compile(rf"(?m)^\| `({'|'.join(map(re.escape, registry.METHODS))})` (?=\|)")
GENERATED = {"@methods": site_parts, "@commands": site_commands, "@library": site_python}


def on_config(config):
    """Replace names of generated pages in the navigation by the pages."""
    config.nav = [_filled(entry) for entry in config.nav]
    return config


def on_files(files, config):
    """Add generated pages, and files outside docs/ that pages link to."""
    for module in GENERATED.values():
        for path, text in module.pages():
            files.append(File.generated(config, path, content=text))
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for target in linked(file.src_uri for file in files.documentation_pages()):
        if (ROOT / target).is_dir():
            listed = "\n".join(f"- [{p.name}]({_under_files(p, target)})" for p in _within(ROOT / target))
            files.append(File.generated(config, placed(target), content=f"# {target}\n\n{listed}\n"))
            copied = _within(ROOT / target)
        else:
            copied = [ROOT / target]
        for path in copied:
            place = placed(path.relative_to(ROOT).as_posix())
            if files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Convert links between repository files to links between pages, and insert drawings."""
    origin = repository(page.file.src_uri)
    if origin is not None:
        markdown = relinked(markdown, origin, page.file.src_uri)
        here = posixpath.dirname(page.file.src_uri) or "."
        markdown = ROW.sub(lambda found: f"| [`{found[1]}`]({posixpath.relpath(f'method/{found[1]}.md', here)}) ", markdown)
    return site_noise.drawn(markdown)


def _within(folder):
    return sorted(path for path in folder.iterdir() if path.is_file())


def _under_files(path, folder):
    return posixpath.relpath(placed(path.relative_to(ROOT).as_posix()), posixpath.dirname(placed(folder)))


def _filled(entry):
    """Return a navigation entry with the pages of a module in place of the module's name."""
    ((title, value),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
    if isinstance(value, list):
        return {title: [each for one in value for each in _listed(one)]}
    return entry


def _listed(entry):
    if isinstance(entry, dict):
        return [_filled(entry)]
    name, _, prefix = entry.partition(" ")
    if name not in GENERATED:
        return [entry]
    paths = [path for path, _ in GENERATED[name].pages() if path.startswith(prefix)]
    index = [path for path in paths if path.endswith("/index.md")]
    return [*index, *[path for path in paths if path not in index]]
