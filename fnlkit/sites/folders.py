"""Folders of a deployment: the coordinator's, one to hand over to each site, and a demonstration on one machine.

A site treats the received folder as untrusted input.  Names and addresses follow strict patterns, because `start.sh` contains
both.  Symbolic links are refused.  `bin/`, which precedes the search path of commands, contains a single known program.  Keys,
memory and decisions are created at the site: a sender of these files would know the keys, or decide for the reviewers.
"""

import json
import os
import platform
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.sheets import Sheet
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.datasets.columns import decode_row
from fnlkit.datasets.dataset import Dataset
from fnlkit.kernels.streams import stream
from fnlkit.sites import credentials, identity, project
from fnlkit.sites.identity import is_name, parse_address
from fnlkit.sites.templates import render

FOLDER, SITE, REVIEW = "coordinator", "site.toml", "review"
_SITE = {"client": int, "name": str, "superlink": str, "data": str, "memory": str, "agreed": str, "port": int, "leave_out": str}
_MAX_BYTES, _MOST_SITES = 2**14, 10**6
_PROGRAM = "flower-superexec"


def parts(address: tuple[str, int], names: Sequence[str], agreed: bytes) -> dict[str, Any]:
    """Make {path: bytes} of the coordinator's folder and of the folder of each site.

    Parameters
    ----------
    address : (str, int)
        Host and port at which sites reach the server.
    names : sequence of str
    agreed : bytes
        The content of the project's project.json.
    """
    host, port = address
    made = credentials.of_server(host)
    files = {f"{FOLDER}/{name}": content for name, content in made.items()}
    listen = "127.0.0.1" if identity.is_loopback(host) else "0.0.0.0"  # noqa: S104 - sites connect from other machines
    files[f"{FOLDER}/start.sh"] = render("start_server", host=listen, port=port)
    files[".gitignore"] = f"{FOLDER}/\nsites/\n".encode()
    for client, name in enumerate(names):
        about = {"client": client, "name": name, "superlink": f"{host}:{port}", "data": "", "memory": "memory",
                 "agreed": project.FILE, "port": port + 1 + client, "leave_out": ""}  # fmt: skip
        folder = f"sites/{name}"
        files[f"{folder}/ca.crt"], files[f"{folder}/{project.FILE}"] = made["ca.crt"], agreed
        files[f"{folder}/{SITE}"] = to_toml(about).encode()
        files[f"{folder}/README.md"] = render("readme", name=name, host=host, port=port)
    return files


def to_toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def read_site(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the settings in a site's folder as a dict, with absolute paths.

    Raises
    ------
    InputError
        If the folder has no settings, if an entry is invalid, or if the folder contains a symbolic link or a foreign program.
    """
    folder = Path(folder).absolute()
    folder = folder.parent if folder.name in (project.FILE, SITE) else folder
    path = folder / SITE
    if not path.is_file():
        raise InputError(f"{display_path(path)}: is missing; name the folder that the coordinator sent, with --project FOLDER")
    _check_links(folder, ())
    text = files.read_text(str(path), max_bytes=_MAX_BYTES)
    try:
        site = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, a number of too many digits, or nested too deeply
        raise InputError(f"{display_path(path)}: {error}; correct the file") from None
    valid = {name: type(site.get(name)) is kind for name, kind in _SITE.items()}
    if all(valid.values()):
        valid["name"] = is_name(site["name"])
        valid["client"] = 0 <= site["client"] < _MOST_SITES
        valid["port"] = 0 < site["port"] < 65536
        valid["agreed"] = site["agreed"] == project.FILE
        valid["memory"] = site["memory"] == "memory"
    if site.get("agreed") == "agreed.toml":
        raise InputError(f"{display_path(path)}: is of fnlkit 0.2; the coordinator runs `fnlkit flower-app` again")
    if unknown := sorted(set(site) - set(_SITE)):
        raise InputError(f"{display_path(path)}: {unknown[0]} is no entry{nearest(unknown[0], _SITE)}; correct the name")
    for name in _SITE:
        if not valid[name]:
            raise InputError(f"{display_path(path)}: has no usable {name}; restore the file that the coordinator sent")
    parse_address(site["superlink"], f"{display_path(path)}: superlink", default=None)
    _check_links(folder, (f"{site['name']}.key", f"{site['name']}.key.pub"))
    for name in ("data", "memory", "agreed"):
        if site[name]:
            site[name] = str(folder / os.path.expanduser(site[name]))
    return site | {"folder": str(folder)}


def locate_site(where: str | os.PathLike[str], name: str = "") -> dict[str, Any]:
    """Read the settings of a site as `read_site` does, from its folder or from the project's project.json.

    Without a folder, the site's memory is ``memory-NAME`` in the folder of the file.

    Parameters
    ----------
    where : path
    name : str
        Name of the site; required if `where` is a file.

    Raises
    ------
    InputError
    """
    if not os.path.isfile(where):
        site = read_site(where)
        if name and name != site["name"]:
            raise InputError(f"--site {name}: the folder {display_path(where)} is that of {site['name']}; leave out --site")
        return site
    names = project.read(where).names
    if name not in names:
        raise InputError(f"--site {name or '(missing)'}: is no site of {display_path(where)}; sites: {list_names(names)}")
    folder = Path(where).absolute().parent
    return {"client": names.index(name), "name": name, "agreed": str(where), "memory": str(folder / f"memory-{name}"),
            "data": "", "leave_out": "", "folder": str(folder)}  # fmt: skip


def _check_links(folder, names):
    """Raise InputError if a file that fnlkit reads or writes in a site's folder is a symbolic link, or if `bin` has others."""
    fixed = (SITE, project.FILE, "ca.crt", "own.crt", "own.key", "start.sh", "bin", "memory", "README.md", "Containerfile")
    parts = [folder / name for name in (*fixed, "fnlkit-site.service", REVIEW, *names)]
    for inner in ("bin", "memory", REVIEW):
        if (folder / inner).is_dir() and not (folder / inner).is_symlink():
            parts += (folder / inner).iterdir()
    for part in parts:
        if part.is_symlink():
            raise InputError(f"{display_path(part)}: is a symbolic link; the folder of a site contains none, remove it")
        if part.exists() and not (part.is_file() or part.is_dir()):
            raise InputError(f"{display_path(part)}: is no regular file; remove it")
        if part.parent.name == "bin" and (part.name != _PROGRAM or not part.is_file()):
            raise InputError(f"{display_path(part)}: is no program of fnlkit; remove it, because the site would run it")


def list_private_files(site: dict[str, Any]) -> list[Any]:
    """List the paths of keys, memory and decisions in a site's folder, which a coordinator does not send.

    Features in `memory` are not listed: `fnlkit site check` stores these features before the site joins.

    Parameters
    ----------
    site : dict
        From `read_site`.
    """
    folder = Path(site["folder"])
    names = (f"{site['name']}.key", f"{site['name']}.key.pub", "own.key", "own.crt", REVIEW)
    private = [folder / name for name in names if (folder / name).exists()]
    memory = Path(site["memory"])
    kept = sorted(memory.iterdir()) if memory.is_dir() else [memory] if memory.exists() else []
    return private + [path for path in kept if not path.name.startswith("features-")]


def join(folder: str | os.PathLike[str], data: str, leave_out: str = "") -> list[Path]:
    """Write key, certificate, start command, systemd unit and container file of a site; return the paths of the new files.

    An existing key is kept, because the coordinator may have registered it. The certificate for the processes of the site is
    new.

    Parameters
    ----------
    folder : path
        As handed over by the coordinator.
    data : str
        The site's data.
    leave_out : str
        Names of classes whose samples are not used, separated by commas.
    """
    site = read_site(folder)
    folder = Path(site["folder"])
    if not site["data"] and (brought := list_private_files(site)):
        raise InputError(f"{display_path(brought[0])}: this site has not joined, so that the file is not its own; remove it")
    for name, value in (("the folder", str(folder)), ("DATA", os.path.abspath(data)), ("--leave-out", leave_out)):
        if not value.isprintable():
            raise InputError(f"{name} {value!r}: contains a control character, which no start script can contain; rename it")
    about = tomllib.loads((folder / SITE).read_text(encoding="utf-8")) | {"data": os.path.abspath(data), "leave_out": leave_out}
    files = {SITE: to_toml(about).encode()}
    made, kept = credentials.of_site(site["name"]), (folder / f"{site['name']}.key").exists()
    files |= {name: made[name] for name in (("own.crt", "own.key") if kept else made)}
    node = {"client": site["client"], "data": about["data"], "memory": site["memory"], "agreed": site["agreed"]}
    node |= {"leave_out": leave_out} if leave_out else {}
    if any('"' in str(value) or "'" in str(value) for value in node.values()):
        raise InputError(f"{data}: Flower reads no path with quotes; rename it")
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in node.items())
    files["start.sh"] = render("start_site", superlink=site["superlink"], name=site["name"], port=site["port"], config=config)
    files[f"bin/{_PROGRAM}"] = render("superexec")
    start, path = _quote_for_systemd(f"{folder}/start.sh"), _quote_for_systemd(f"PATH={os.environ.get('PATH', '')}", "%")
    user = os.getuid() if hasattr(os, "getuid") else 0  # without user numbers, there is no systemd
    files["fnlkit-site.service"] = render("unit", name=site["name"], user=user, start=start, path=path)
    beside = Path(node["data"]) if os.path.isdir(node["data"]) else Path(node["data"]).parent  # a table can name files there
    mounts = [f"{folder}:{folder}", *([] if beside.is_relative_to(folder) else [f"{beside}:{beside}:ro"])]
    files["Containerfile"] = render(
        "container",
        mounts=" ".join(f"-v {shlex.quote(mount)}" for mount in mounts),
        python=".".join(platform.python_version_tuple()[:2]),
        version=metadata.version("fnlkit"),
        start=json.dumps([f"{folder}/start.sh"]),
    )
    saving.private_folder(site["memory"])
    os.makedirs(folder / "bin", exist_ok=True)
    for name, content in files.items():
        saving.write_bytes([content], str(folder / name), mode=mode_of(name))
    return [folder / name for name in files]


def mode_of(name: str) -> int:
    """Choose the permissions of a file of a project or site by the name of the file."""
    if name.endswith(".key"):
        return 0o600
    return 0o755 if name.endswith(".sh") or name.startswith("bin/") else 0o644


def _quote_for_systemd(text, special="%$"):
    """Quote `text` as one word of a unit file; characters in `special` are doubled."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(2 * each if each in special else each for each in text) + '"'


def make_demo(folder: str | os.PathLike[str], dataset: Dataset, names: Sequence[str], seed: int = 0) -> None:
    """Write the data of each site of a demonstration, join the sites, and write the command that starts all processes.

    Samples are dealt out at random. The labels of site k are wrong with probability k / (2 N): the next class instead of the
    right one.

    Parameters
    ----------
    folder : path
        Of a project with an address.
    dataset : fnlkit.datasets.Dataset
    names : sequence of str
    seed : int
    """
    folder, rng = Path(folder).absolute(), stream(seed, "demonstration")
    count, classes = len(names), np.array(list(map(str, dataset.class_names)))
    order = rng.permutation(len(dataset.y_train))
    for k, name in enumerate(names):
        held = np.sort(order[k::count])
        labels = dataset.y_train[held].copy()
        wrong = rng.random(len(labels)) < k / (2 * count)
        labels[wrong] = (labels[wrong] + 1) % len(classes)
        path = folder / "sites" / name / ("data.csv" if dataset.table else "data.npz")
        if dataset.table:  # sites of a table give cells, from which each computes its features
            rows = [[text for _, text in decode_row(dataset.table, np.asarray(dataset.x_train[i]))] for i in held]
            rows = [[*row, classes[label]] for row, label in zip(rows, labels, strict=True)]
            Sheet([*(column["name"] for column in dataset.table), "label"], rows).write(str(path))
        else:
            np.savez_compressed(path, x=np.asarray(dataset.x_train[held]), y=labels, class_names=classes)
        join(path.parent, str(path))
    more = " ".join(f"sites/{name}/{name}.key.pub" for name in names)
    starts = "\n".join(f"sites/{name}/start.sh > sites/{name}/log.txt 2>&1 &" for name in names)
    saving.write_bytes([render("demo", keys=more, starts=starts)], str(folder / "demo.sh"), mode=0o755)
