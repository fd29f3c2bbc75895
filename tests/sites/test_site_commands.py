"""Commands of a site and of the coordinator: folders to hand over, checks before anything is sent, reviews, the ledger."""

import hashlib
import json
import shlex
import shutil
import stat
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import fnlkit.cli.sites as coordinator
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import WorkStopped
from fnlkit.estimators.judgment import PREFIX, add_judgment
from fnlkit.sites import folders
from fnlkit.sites.site import labels, ledger
from tests.commands import fnlkit, refuse, succeed

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from fnlkit.sites import flower, flower_app, project  # noqa: E402
from fnlkit.sites.samples import load_for_task  # noqa: E402
from fnlkit.sites.server import tasks  # noqa: E402
from fnlkit.sites.server.flower import FlowerTransport  # noqa: E402
from fnlkit.sites.site import opening as site_module  # noqa: E402
from tests.federated.engines.here import Grid  # noqa: E402
from tests.tables import edit_csv  # noqa: E402


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    line = "fnlkit flower-app demo --dataset digits --sites 3 --address localhost:18200 --demo --model 'mlp(hidden=8)'"
    succeed(f"{line} --rounds 2 --epochs 1 --fraction 1", folder)
    return folder / "demo"


@pytest.fixture
def copied(demo, tmp_path):
    """The folder of a copy of the demonstration, in which tasks ran nowhere."""
    return shutil.copytree(demo, tmp_path / "demo", ignore=shutil.ignore_patterns("memory", "review"))


def nodes_of(folder, first=10):
    """Return the configurations of the nodes of a demonstration."""
    out = {}
    for k in range(3):
        site = folders.read_site(folder / f"sites/site-{k}")
        out[first + k] = {name: site[name] for name in ("client", "data", "memory", "agreed")}
    return out


def conduct(folder, nodes, values):
    """Run a task over sites in this process."""
    agreed = replace(project.read(folder), keys=[])
    grid = Grid(flower.client_app(), {}, nodes)
    tasks.conduct(FlowerTransport(grid), agreed, tasks.options_of(values))


def test_a_demonstration_has_all_files_and_private_keys_are_private(demo):
    for name in ("ca.crt", "ca.key", "server.crt", "server.key", "start.sh"):
        assert (demo / "coordinator" / name).is_file()
    for k in range(3):
        site = demo / f"sites/site-{k}"
        assert (site / "bin/flower-superexec").stat().st_mode & stat.S_IXUSR
        assert (site / "project.json").read_bytes() == (demo / "project.json").read_bytes()
        assert not (site / "ca.key").exists() and (site / "ca.crt").read_bytes() == (demo / "coordinator/ca.crt").read_bytes()
    for key in demo.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for start in demo.rglob("*.sh"):
        assert start.stat().st_mode & stat.S_IXUSR


def test_a_site_checks_its_data_and_sends_nothing(demo):
    site = demo / "sites/site-1"
    found = json.loads(succeed("fnlkit site check data.npz --project project.json --json", site).stdout)
    assert "predicted" in succeed("fnlkit site check data.npz", site).stdout
    data = np.load(site / "data.npz")
    assert found["samples"] == len(data["y"]) and found["classes"] == {str(c): int((data["y"] == c).sum()) for c in range(10)}
    sizes = {(row["task"], row["name"]): row["bytes"] for row in found["leaves"]}
    assert sizes["audit", "predicted"] == 800 and sizes["evaluate", "wrong"] == 88
    assert {task for task, _ in sizes} == set(project.TASKS)
    assert not (site / "memory/left.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"class_names": np.array(["0", "1", "2", "3", "4", "5", "6", "7", "8", "cat"])}, "cat"),
        ({"x": np.zeros((20, 9, 8, 1), np.uint8)}, "9"),
        ({"y": np.full(20, -1)}, "label"),
        ({"x": np.zeros((20, 64), np.uint8)}, "64"),
        ({"x": None}, "x"),
        ({"y": np.array(["a", "b"] * 10), "class_names": None}, "'a'"),
    ],
)
def test_data_that_do_not_fit_are_named_before_anything_is_sent(change, named, demo, tmp_path):
    site = {"x": np.zeros((20, 8, 8, 1), np.uint8), "y": np.arange(20) % 10, "class_names": np.array(list("0123456789"))}
    np.savez(tmp_path / "ours.npz", **{name: values for name, values in (site | change).items() if values is not None})
    folder = demo / "sites/site-0"
    for words in (f"check ours.npz --project {folder}", f"join {folder} --data ours.npz"):
        last = refuse(f"fnlkit site {words}", tmp_path, named).stderr.splitlines()[-1]
        assert named in last and not (folder / "memory/left.jsonl").exists()


@pytest.mark.parametrize(
    ("labels", "samples", "problems", "noted"),
    [([3, 3, 3, 4, -1], 4, 1, "4 samples"), (["3"] * 6, 6, 0, "'3'"), (["3"], 1, 0, "'3'")],
)
def test_problems_of_the_data_are_listed(labels, samples, problems, noted, demo, tmp_path):
    """A label is missing; or the site has one class, or one sample."""
    names = {"class_names": np.array(list("0123456789"))} if -1 in labels else {}
    np.savez(tmp_path / "few.npz", x=np.zeros((len(labels), 8, 8, 1), np.uint8), y=np.array(labels), **names)
    found = json.loads(succeed(f"fnlkit site check few.npz --project {demo}/sites/site-0 --json", tmp_path).stdout)
    assert (found["unlabeled"], found["samples"], len(found["problems"])) == (len(labels) - samples, samples, problems)
    assert any(noted in note for note in found["notes"]) and len(found["notes"]) == 2 and found["leaves"]


def test_joining_again_keeps_the_key(demo):
    site = demo / "sites/site-2"
    before = (site / "site-2.key").read_bytes()
    done = succeed("fnlkit site join . --data data.npz", site)
    assert (site / "site-2.key").read_bytes() == before
    assert flower_app.fingerprint_of(site / "site-2.key.pub") in done.stdout
    settings = tomllib.loads((site / "site.toml").read_text())
    assert settings["data"] == str(site / "data.npz") and settings["client"] == 2


def test_the_container_reads_all_from_folders_of_the_machine(demo, tmp_path):
    """The image contains no file of the site; the folder and the data have the same paths in the container."""
    site = tmp_path / "a folder"
    shutil.copytree(demo / "sites/site-2", site)
    (tmp_path / "data").mkdir()
    shutil.move(site / "data.npz", tmp_path / "data/data.npz")
    for data, mounts in ((tmp_path / "data/data.npz", 2), (site / "data.npz", 1)):
        folders.join(site, str(data))
        lines = (site / "Containerfile").read_text().splitlines()
        orders = dict(line.split(" ", 1) for line in lines if not line.startswith("#"))
        assert set(orders) == {"FROM", "RUN", "CMD"} and json.loads(orders["CMD"]) == [str(site / "start.sh")]
        (run,) = [shlex.split(line, comments=False)[1:] for line in lines if " run " in line]
        there = [run[i + 1].split(":") for i, word in enumerate(run) if word == "-v"]
        assert len(there) == mounts and all(mount[0] == mount[1] for mount in there) and there[0] == [str(site)] * 2
        assert all(mount[2] == "ro" for mount in there[1:])
        assert any(str(data).startswith(f"{mount[0]}/") for mount in there)


def test_an_audit_a_review_and_the_log_of_a_site(demo, tmp_path):
    """The commands of the site's guide, after an audit in this process."""
    nodes, site = nodes_of(demo), demo / "sites/site-2"
    conduct(demo, nodes, {"task": "audit", "output": str(tmp_path / "audit.json"), "wait": 0.0})
    done = succeed("fnlkit sites show audit.json", tmp_path)
    assert "site-2" in done.stdout and not done.stderr
    refuse("fnlkit site review --list", site, "--guarantee")
    assert not (site / "review").exists()
    data = dict(np.load(site / "data.npz"))
    np.savez(tmp_path / "fewer.npz", **data | {"x": data["x"][1:], "y": data["y"][1:]})
    done = refuse(f"fnlkit site review fewer.npz --project {site}", tmp_path, "original data")
    assert "--dataset" not in done.stderr
    succeed("fnlkit site review --budget 12", site)
    refuse("fnlkit site review", site, "decisions.csv")  # no decision yet
    first = iter([{"decision": "relabel", "label": "7"}])
    rows = edit_csv(site / "review/decisions.csv", lambda row: next(first, {"decision": "keep"}))
    succeed("fnlkit site review", site)
    client = site_module.open_site(site_module.Place.of(nodes[12]), project.read(demo), "train").client
    assert int(client.reviewed.sum()) == 12 and int(client.y[int(rows[0]["position"])]) == 7
    assert "judge" not in succeed("fnlkit site log", site).stderr and "predicted" in succeed("fnlkit site log", site).stdout
    lines, path = json.loads(succeed("fnlkit site log --json", site).stdout), site / "memory/left.jsonl"
    assert lines == ledger.read_ledger(str(path)) and len(lines) == 3
    path.write_text(path.read_text().replace('"round": 0', '"round": 1', 1))
    refuse("fnlkit site log", site, "left.jsonl")


def start_review(site, data=None):
    """Write the judgment of an audit, whose scores rise with the position, to the memory of a site; return the start."""
    settings = folders.read_site(site)
    start = labels.fresh(
        load_for_task(str(data or settings["data"]), project.read(settings["agreed"]), memory=str(site / "memory")), site.name
    )
    size = len(start.given)
    scores = {"issue_score": np.linspace(0, 1, size), "flagged": np.zeros(size, bool)}
    scores["suggested_label"] = (start.given + 1) % start.classes
    (site / "memory").mkdir(mode=0o700, exist_ok=True)
    add_judgment(start, {PREFIX + name: values for name, values in scores.items()}).write(site / "memory/judged.npz")
    return start


def test_reviews_of_a_site_accumulate(copied):
    """A second review without another audit keeps the decisions of the first; a table can be imported again."""
    site = copied / "sites/site-2"
    start_review(site)

    def review(words=""):
        succeed(f"fnlkit site review {words}", site)

    def fill(decision, count=None):
        filled = iter([{"decision": decision}] * (count or 10**6))
        rows = edit_csv(site / "review/decisions.csv", lambda row: next(filled, {}))
        return {int(row["position"]) for row in rows[:count]}

    def decided():
        found = Federation.read(site / "memory/reviewed.npz")
        return set(np.flatnonzero(found.extra["reviewed"]).tolist()), found

    review("--budget 12")
    fill("keep", 5)
    review()
    first = fill("7")  # the same table, completed and changed
    review()
    assert decided()[0] == first and (decided()[1].given[sorted(first)] == 7).all() and len(decided()[1].meta["reviews"]) == 1
    (site / "review/decisions.csv").rename(site / "review/old.csv")
    review("--budget 8 --guarantee 0.5")
    second = fill("keep", 3)
    assert not first & fill("keep", 3) and len(first) == 12
    review()
    review()  # the same table again
    now, federation = decided()
    assert now == first | second and (federation.given[sorted(first)] == 7).all() and len(federation.meta["reviews"]) == 2
    (site / "review/decisions.csv").rename(site / "review/second.csv")
    (site / "review/old.csv").rename(site / "review/decisions.csv")
    table = site / "review/decisions.csv"
    table.write_text(table.read_text().replace(",7,", ",,", 1))  # an older table with a decision less
    refuse("fnlkit site review", site, "an earlier import has all of its decisions")
    assert decided()[0] == now
    kept = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (site / "memory").glob("decisions-*.csv")}
    assert kept >= {record["sha256"] for record in federation.meta["reviews"]} and len(kept) == 3


def test_an_export_of_an_annotation_tool_is_imported_at_a_site(tmp_path):
    """A folder of images, reviewed in Label Studio; samples are found by path, and the next run has the labels."""
    for part in ("ours", "theirs"):
        for i in range(24):
            (tmp_path / part / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 10 * i, np.uint8)).save(tmp_path / part / "ab"[i % 2] / f"{i}.png")
    succeed("fnlkit flower-app p --dataset ours --sites 2 --address localhost", tmp_path)
    site = tmp_path / "p/sites/site-0"
    succeed(f"fnlkit site join {site} --data theirs", tmp_path)
    start = start_review(site)
    names = start.ids_of(np.arange(len(start.given)))
    chosen = next(name for name in names if name[0] == "a")
    questions = {"sure": "yes", "before": "a", "c": "b"}
    result = [{"type": "choices", "from_name": name, "value": {"choices": [word]}} for name, word in questions.items()]
    entries = {"image": f"/data/upload/3/0a1b2c3d-{chosen[2:]}", "compare": names[-1]}
    (tmp_path / "e.json").write_text(json.dumps([{"id": 1, "data": entries, "annotations": [{"result": result}]}]))
    line = f"fnlkit site review --project {site} --decisions e.json"
    refuse(line, tmp_path, "'before', 'c' have only classes; choose one by --control NAME")
    columns = "'image' (1 of 1 rows), 'compare' (1 of 1 rows)"
    refuse(f"{line} --control c", tmp_path, columns, "--sample-column NAME")
    assert not (site / "memory/reviewed.npz").exists()
    done = succeed(f"{line} --control c --sample-column image", tmp_path)
    found = Federation.read(site / "memory/reviewed.npz")
    (changed,) = np.flatnonzero(found.given != start.given)
    assert found.ids_of([changed]) == [chosen] and "1 labels changed" in done.stderr
    assert len(list((site / "memory").glob("decisions-*.json"))) == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("site log --project nowhere", "site.toml"),
        ("sites status nowhere", "flwr list"),
        ("sites remove nowhere site-0", "nowhere"),
        ("flower-app new --dataset digits --sites 2 --estimator em", "an audit"),
        ("sites show fed.npz", "fed.npz"),
        ("flower-app new --dataset digits --sites 2 --demo", "--address"),
        ("flower-app new --dataset digits --sites 2 --address host:port", "--address"),
        ("flower-app new --dataset digits --sites 2 --name one", "--name"),
        ("flower-app new --dataset digits --sites 2 --scale sites", "--scale"),
        ("flower-app new --dataset digits --sites 2 --scale sites --sums-epsilon 1", "--s"),
        ("flower-app new --dataset digits --sites 2 --backbone pca", "--backbone"),
        ("flower-app new --dataset digits --sites 2 --method nnc", "needs embedding"),
        ("flower-app new --dataset digits --sites 2 --method oracle", "needs truth"),
        ("flower-app new --dataset digits --sites 2 --memorization", "needs the true labels"),
        ("flower-app new --dataset digits --sites 2 --model mine.py:Net", "--model"),
    ],
)
def test_bad_input_is_one_line(words, named, tmp_path):
    (tmp_path / "fed.npz").write_bytes(b"{}")
    done = refuse(shlex.join(["fnlkit", *words.split()]), tmp_path, named)
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("admit demo demo/sites/site-0/site-0.key.pub copy/site-0.key.pub", "keys of one site"),
        ("run demo --task audit --run x.pt -o a.json", "--run is for the task evaluate"),
        ("run demo --task audit --server-data x.npz -o a.json", "--server-data is for the task train"),
        ("run demo --task evaluate --run x.pt --folder mail -o a.json", "x.pt"),
        ("run demo --task audit --folder file.txt -o a.json", "--folder file.txt is a file"),
        ("run demo --task audit --html a.json -o a.json", "--html a.json"),
        ("run demo --task train --folder mail --without site-1 -o run.pt", "needs all sites"),
        ("run demo --task audit --folder mail --without site-0 --without site-1 --without site-2 -o a.json", "no site"),
        ("renew demo", "ca.key"),
        ("remove demo site-0", "nodes.json"),
        ("show half.json", "half.json"),
    ],
)
def test_commands_of_the_coordinator_that_do_not_fit_change_nothing(words, named, server, copied, tmp_path):
    """Each ended with an internal error, after half of its work, or as if the option were not there."""
    (tmp_path / "copy").mkdir()
    shutil.copy(copied / "sites/site-0/site-0.key.pub", tmp_path / "copy")
    (tmp_path / "file.txt").write_text("mine")
    (tmp_path / "half.json").write_text('{"kind": "fnlkit.sites/1", "task": "evaluate", "sites": [{}], "lost": {}}')
    (copied / "coordinator/ca.key").write_bytes(b"key")
    (copied / "coordinator/nodes.json").write_text("[" if "remove" in words else "{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = refuse(f"fnlkit sites {words}", tmp_path, named)
    assert len(done.stderr.splitlines()) == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"} == before


TRAIN = "fnlkit sites run demo --task train -o run.pt"


@pytest.fixture
def server(monkeypatch):
    """Flower's commands, answered in this process; with `fails`, a site is missing."""

    class Server:
        fails, nodes, last, status, printed = False, {}, 9, "", ()

        def flwr(self, folder, *words):
            if words[:2] == ("supernode", "register"):
                if words[2] in self.nodes.values():
                    raise WorkStopped("flwr supernode: Public key already in use.")
                self.last += 1
                self.nodes[str(self.last)] = words[2]
                return {"node-id": str(self.last)}
            if words[0] == "run":
                values = tomllib.loads(words[4].replace(" ", "\n"))
                self.status = "finished:completed"
                nodes = nodes_of(folder, 20)
                if self.fails:
                    del nodes[21]
                try:
                    conduct(folder, nodes, values | {"wait": 0.0})
                except Exception:
                    self.status = "finished:failed"
                return {"run-id": 7}
            if words[0] == "list":
                return {"runs": [{"status": self.status}]}
            if words[:2] == ("supernode", "unregister"):
                del self.nodes[words[2]]
                return {}
            about = {"status": "online", "online-at": "2026-01-01", "offline-at": "N/A"}
            return {"nodes": [{"node-id": node, **about} for node in self.nodes]}

    server = Server()
    monkeypatch.setattr(coordinator, "_flwr", server.flwr)
    monkeypatch.setattr(coordinator, "_program", lambda: "flwr")
    monkeypatch.setattr(coordinator, "_print_log", lambda *about: setattr(server, "printed", about))
    return server


def test_without_flower_a_site_is_not_admitted(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator.shutil, "which", lambda name: None)
    monkeypatch.setattr(coordinator.sys, "executable", str(tmp_path / "python"))
    before = (copied / "project.json").read_bytes()
    refuse("fnlkit sites admit demo demo/sites/site-0/site-0.key.pub", tmp_path, "flwr is missing")
    assert (copied / "project.json").read_bytes() == before


def test_the_coordinator_admits_and_runs(server, copied, tmp_path):
    """A failed task ends with 1 and names the site; the same command completes it."""
    keys = [f"demo/sites/site-{k}/site-{k}.key.pub" for k in (0, 1)]
    admit = f"fnlkit sites admit demo {' '.join(keys)}"
    done, site = succeed(admit, tmp_path), project.read(copied / "sites/site-0/project.json")
    assert all(flower_app.fingerprint_of(tmp_path / key) in done.stdout for key in keys)
    assert project.read(copied).digest == site.digest and not any(site.keys)  # the copy of a site agrees to the project
    succeed(f"fnlkit sites admit demo {keys[0]}", tmp_path)
    assert len(server.nodes) == 2  # known already
    assert [bool(key) for key in project.read(copied).keys] == [True, True, False]
    server.nodes.clear()  # the server has lost its database
    succeed(admit, tmp_path)
    assert sorted(server.nodes) == ["12", "13"]
    shutil.copy(tmp_path / keys[0], tmp_path / "unknown.key.pub")
    refuse("fnlkit sites admit demo unknown.key.pub", tmp_path, "unknown")
    server.fails = True
    audit = "fnlkit sites run demo --task audit --min-replies 1 -o audit.json"
    done = fnlkit(audit, tmp_path)
    assert done.returncode == 1 and "site-1" in done.stdout and not (tmp_path / "audit.json").exists()
    assert done.stderr.splitlines()[-1].count("same command") == 1
    server.fails = False
    succeed(audit, tmp_path)
    assert server.printed == (copied, "7")
    assert len(json.loads((tmp_path / "audit.json").read_text())["sites"]) == 3
    refuse(audit, tmp_path, "audit.json")  # a finished result is kept
    refuse("fnlkit sites run demo --task evaluate -o e.json", tmp_path, "--run")


def test_a_project_file_that_cannot_run_is_refused_before_anything_is_sent(server, copied, tmp_path):
    text = (copied / "project.json").read_text()
    (copied / "project.json").write_text(text.replace('"method": "fedavg"', '"method": "fedcor"'))
    refuse(TRAIN, tmp_path, "fedcorr", "nothing was sent")
    assert server.status == ""


@pytest.mark.parametrize("status", ["finished:failed", "finished:stopped"])
def test_a_task_that_ends_without_a_result_ends_with_1(status, server, copied, tmp_path, monkeypatch):
    """Its log has named the reason; before the end, the command waits."""
    states = iter(["running", status])
    monkeypatch.setattr(server, "fails", True)
    monkeypatch.setattr(coordinator, "_status_of", lambda *about: next(states))
    monkeypatch.setattr(coordinator.time, "sleep", lambda seconds: None)
    done = fnlkit(TRAIN, tmp_path)
    assert done.returncode == 1 and status in done.stderr.splitlines()[-1]


def test_a_site_is_removed_and_certificates_are_renewed(server, copied, tmp_path):
    import ssl

    from cryptography import x509

    names, join = ("ca.crt", "ca.key", "server.crt"), "fnlkit site join . --data data.npz"
    succeed("fnlkit sites admit demo " + " ".join(f"demo/sites/site-{k}/site-{k}.key.pub" for k in (0, 1)), tmp_path)
    refuse("fnlkit sites remove demo site-2", tmp_path)
    succeed("fnlkit sites remove demo site-1", tmp_path)
    keys = project.read(copied).keys
    assert [bool(key) for key in keys] == [True, False, False] and len(server.nodes) == 1
    refuse("fnlkit sites remove demo site-0", tmp_path)  # the last one
    before = {name: (copied / f"coordinator/{name}").read_bytes() for name in names}
    succeed("fnlkit sites renew demo", tmp_path)
    after = {name: (copied / f"coordinator/{name}").read_bytes() for name in names}
    assert after["ca.key"] == before["ca.key"] and after["server.crt"] != before["server.crt"]
    assert (copied / "sites/site-2/ca.crt").read_bytes() == after["ca.crt"] != before["ca.crt"]
    ssl.create_default_context().load_verify_locations(copied / "coordinator/ca.crt")
    old, new = (x509.load_pem_x509_certificate(each["ca.crt"]) for each in (before, after))
    assert new.public_key() == old.public_key() and new.not_valid_after_utc >= old.not_valid_after_utc
    x509.load_pem_x509_certificate(after["server.crt"]).verify_directly_issued_by(new)
    own = (copied / "sites/site-2/own.crt").read_bytes()
    succeed(join, copied / "sites/site-2")
    assert (copied / "sites/site-2/own.crt").read_bytes() != own
