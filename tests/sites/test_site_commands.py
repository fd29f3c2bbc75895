"""Commands of a site and of the coordinator: folders to hand over, checks before anything is sent, reviews, the ledger."""

import hashlib
import json
import shlex
import shutil
import stat
import subprocess
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import fnlkit.cli.sites as coordinator
from fnlkit.artifacts.federation import Federation
from fnlkit.cli.site import command as site_command
from fnlkit.errors import WorkStopped
from fnlkit.estimators.apply import add_judgment
from fnlkit.estimators.judgment import PREFIX
from fnlkit.sites import folders, labels, ledger
from tests import commands

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from fnlkit.sites import flower, flower_app, project, tasks  # noqa: E402
from fnlkit.sites import site as site_module  # noqa: E402
from fnlkit.sites.samples import load_for_task  # noqa: E402
from tests.engines.here import Grid  # noqa: E402
from tests.tables import edit_csv  # noqa: E402


def fnlkit(words, folder):
    """Return the finished command of a list of words."""
    return commands.fnlkit(shlex.join(words), folder)


PROJECT = "fnlkit flower-app demo --dataset digits --sites 3 --address localhost:18200 --demo --model mlp(hidden=8) --rounds 2"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    line = [*PROJECT.split(), "--warm-up-rounds", "1", "--epochs", "1", "--fraction", "1"]
    done = fnlkit(line, folder)
    assert done.returncode == 0, done.stderr
    return folder / "demo"


@pytest.fixture
def copied(demo, tmp_path):
    """The folder of a copy of the demonstration, in which tasks ran nowhere."""
    return shutil.copytree(demo, tmp_path / "demo", ignore=shutil.ignore_patterns("memory"))


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
    tasks.conduct(flower.FlowerTransport(grid), agreed, tasks.options_of(values))


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


def test_openssl_accepts_the_certificates_and_ssh_the_keys(demo):
    for command in (
        ["openssl", "verify", "-CAfile", "coordinator/ca.crt", "-verify_hostname", "localhost", "coordinator/server.crt"],
        ["ssh-keygen", "-lf", "sites/site-1/site-1.key.pub"],
        ["ssh-keygen", "-y", "-f", "sites/site-1/site-1.key"],
    ):
        try:
            done = subprocess.run(command, cwd=demo, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip(f"{command[0]} is not installed")
        assert done.returncode == 0, done.stderr
    assert flower_app.fingerprint_of(demo / "sites/site-1/site-1.key.pub").startswith("SHA256:")


def test_a_site_checks_its_data_and_sends_nothing(demo):
    site = demo / "sites/site-1"
    done = fnlkit(["fnlkit", "site", "check", "data.npz", "--json"], site)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
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
    for command in (["check", "ours.npz", "--project", str(demo / "sites/site-0")],
                    ["join", str(demo / "sites/site-0"), "--data", "ours.npz"]):  # fmt: skip
        done = fnlkit(["fnlkit", "site", *command], tmp_path)
        last = done.stderr.splitlines()[-1]  # `check` prints the samples first
        assert done.returncode == 2 and named in last and last.startswith("fnlkit: error:"), done.stderr
        assert not (demo / "sites/site-0/memory/left.jsonl").exists()


@pytest.mark.parametrize(
    ("labels", "samples", "problems", "noted"),
    [([3, 3, 3, 4, -1], 4, 1, "4 samples"), (["3"] * 6, 6, 0, "'3'"), (["3"], 1, 0, "'3'")],
)
def test_problems_of_the_data_are_listed(labels, samples, problems, noted, demo, tmp_path):
    """A label is missing; or the site has one class, or one sample."""
    names = {"class_names": np.array(list("0123456789"))} if -1 in labels else {}
    np.savez(tmp_path / "few.npz", x=np.zeros((len(labels), 8, 8, 1), np.uint8), y=np.array(labels), **names)
    done = fnlkit(["fnlkit", "site", "check", "few.npz", "--project", str(demo / "sites/site-0"), "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["unlabeled"], found["samples"], len(found["problems"])) == (len(labels) - samples, samples, problems)
    assert any(noted in note for note in found["notes"]) and len(found["notes"]) == 2 and found["leaves"]


def test_joining_again_keeps_the_key(demo):
    site = demo / "sites/site-2"
    before = (site / "site-2.key").read_bytes()
    done = fnlkit(["fnlkit", "site", "join", ".", "--data", "data.npz"], site)
    assert done.returncode == 0 and (site / "site-2.key").read_bytes() == before
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


def test_keys_can_be_admitted_one_by_one_and_bind_the_number(copied):
    """A site's copy without keys still agrees to the project with keys."""
    key = flower_app.fingerprint_of(copied / "sites/site-1/site-1.key.pub")
    agreed = flower_app.set_keys(copied, project.read(copied), {"site-1": key})
    assert agreed.keys == project.read(copied).keys == ["", key, ""]
    assert agreed.digest == project.read(copied / "sites/site-0/project.json").digest


def test_an_audit_a_review_and_the_log_of_a_site(demo, tmp_path):
    """The commands of the site's guide, after an audit in this process."""
    nodes = nodes_of(demo)
    conduct(demo, nodes, {"task": "audit", "output": str(tmp_path / "audit.json"), "wait": 0.0})
    done = fnlkit(["fnlkit", "sites", "show", "audit.json"], tmp_path)
    assert done.returncode == 0 and "site-2" in done.stderr + done.stdout
    site = demo / "sites/site-2"
    done = fnlkit(["fnlkit", "site", "review", "--list"], site)
    assert done.returncode == 2 and "--guarantee" in done.stderr and not (site / "review").exists()
    data = dict(np.load(site / "data.npz"))
    np.savez(tmp_path / "fewer.npz", **data | {"x": data["x"][1:], "y": data["y"][1:]})
    done = fnlkit(["fnlkit", "site", "review", str(tmp_path / "fewer.npz"), "--project", str(site)], tmp_path)
    assert done.returncode == 2 and "original data" in done.stderr and "--dataset" not in done.stderr
    done = fnlkit(["fnlkit", "site", "review", "--budget", "12"], site)
    assert done.returncode == 0, done.stderr
    done = fnlkit(["fnlkit", "site", "review"], site)
    assert done.returncode == 2 and "decisions.csv" in done.stderr  # no decision yet
    first = iter([{"decision": "relabel", "label": "7"}])
    rows = edit_csv(site / "review/decisions.csv", lambda row: next(first, {"decision": "keep"}))
    done = fnlkit(["fnlkit", "site", "review"], site)
    assert done.returncode == 0, done.stderr
    client = site_module.open_site(site_module.Place.of(nodes[12]), project.read(demo), "train").client
    assert int(client.reviewed.sum()) == 12 and int(client.y[int(rows[0]["position"])]) == 7
    done = fnlkit(["fnlkit", "site", "log", "--json"], site)
    lines = json.loads(done.stdout)
    assert lines == ledger.read_ledger(str(site / "memory/left.jsonl")) and len(lines) == 3
    path = site / "memory/left.jsonl"
    path.write_text(path.read_text().replace('"round": 0', '"round": 1', 1))
    done = fnlkit(["fnlkit", "site", "log"], site)
    assert done.returncode == 2 and "left.jsonl" in done.stderr


def test_reviews_of_a_site_accumulate(demo, tmp_path):
    """A second review without another audit keeps the decisions of the first; a table can be imported again."""
    site = tmp_path / "site"
    shutil.copytree(demo / "sites/site-2", site, ignore=shutil.ignore_patterns("memory", "review"))
    (site / "memory").mkdir(mode=0o700)
    samples = load_for_task(str(site / "data.npz"), project.read(site))
    start = labels.fresh(samples, "site-2")
    size = len(start.given)
    scores = {
        "issue_score": np.linspace(0, 1, size),
        "flagged": np.zeros(size, bool),
        "suggested_label": (start.given + 1) % 10,
    }
    found = add_judgment(start, {PREFIX + name: values for name, values in scores.items()})
    found.write(site / "memory/judged.npz")

    def review(*words):
        found = CliRunner().invoke(site_command, ["review", "--project", str(site), "-o", str(site / "review"), *words])
        assert found.exit_code == 0, found.output + str(found.exception)
        return found.output

    def fill(decision, count=None):
        filled = iter([{"decision": decision}] * (count or 10**6))
        rows = edit_csv(site / "review/decisions.csv", lambda row: next(filled, {}))
        return {int(row["position"]) for row in rows[:count]}

    def decided():
        found = Federation.read(site / "memory/reviewed.npz")
        return set(np.flatnonzero(found.extra["reviewed"]).tolist()), found

    review("--budget", "12")
    fill("keep", 5)
    review()
    first = fill("7")  # the same table, completed and changed
    review()
    assert decided()[0] == first and (decided()[1].given[sorted(first)] == 7).all() and len(decided()[1].meta["reviews"]) == 1
    (site / "review/decisions.csv").rename(site / "review/old.csv")
    review("--budget", "8", "--guarantee", "0.5")
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
    done = CliRunner().invoke(site_command, ["review", "--project", str(site), "-o", str(site / "review")])
    assert "no row is decided yet" in str(done.exception)
    assert decided()[0] == now
    kept = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (site / "memory").glob("decisions-*.csv")}
    assert kept >= {record["sha256"] for record in federation.meta["reviews"]} and len(kept) == 3


def test_data_in_place_of_a_run_are_refused_without_an_option_that_sites_lack(demo, tmp_path):
    np.savez(tmp_path / "ours.npz", x=np.zeros((3, 8, 8)), y=np.zeros(3))
    done = fnlkit(["fnlkit", "site", "predict", str(tmp_path / "ours.npz")], demo / "sites/site-2")
    assert done.returncode == 2 and "plain npz" in done.stderr and "data set" in done.stderr, done.stderr
    assert "--dataset" not in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("kind", ["json", "xml"])
def test_an_export_of_an_annotation_tool_is_imported_at_a_site(kind, tmp_path):
    """A folder of images, reviewed in Label Studio or CVAT; samples are found by path, and the next run has the labels."""
    for part in ("ours", "theirs"):
        for i in range(24):
            (tmp_path / part / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), 10 * i, np.uint8)).save(tmp_path / part / "ab"[i % 2] / f"{i}.png")
    done = fnlkit(["fnlkit", "flower-app", "p", "--dataset", "ours", "--sites", "2", "--address", "localhost"], tmp_path)
    assert done.returncode == 0, done.stderr
    site = tmp_path / "p/sites/site-0"
    done = fnlkit(["fnlkit", "site", "join", str(site), "--data", "theirs"], tmp_path)
    assert done.returncode == 0, done.stderr
    samples = load_for_task(str(tmp_path / "theirs"), project.read(site))
    start = labels.fresh(samples, "site-0")
    size, chosen = len(start.given), next(name for name in start.ids_of(np.arange(len(start.given))) if name[0] == "a")
    scores = {"issue_score": np.zeros(size), "flagged": np.zeros(size, bool), "suggested_label": start.given}
    (site / "memory").mkdir(mode=0o700, exist_ok=True)
    add_judgment(start, {PREFIX + name: values for name, values in scores.items()}).write(site / "memory/judged.npz")
    if kind == "json":
        questions = {"sure": "yes", "before": "a", "c": "b"}
        result = [{"type": "choices", "from_name": name, "value": {"choices": [word]}} for name, word in questions.items()]
        entries = {"image": f"/data/upload/3/0a1b2c3d-{chosen[2:]}", "compare": start.ids_of([size - 1])[0]}
        tasks_of = [{"id": 1, "data": entries, "annotations": [{"result": result}]}]
        text = json.dumps(tasks_of)
    else:
        text = f'<annotations><image id="0" name="{chosen}"><tag label="b" source="manual"/></image></annotations>'
    (tmp_path / f"export.{kind}").write_text(text)
    line = ["fnlkit", "site", "review", "--project", str(site), "--decisions", f"export.{kind}"]
    if kind == "json":
        done = fnlkit(line, tmp_path)
        assert done.returncode == 2 and "'before', 'c' have only classes; choose one by --control NAME" in done.stderr
        done = fnlkit([*line, "--control", "c"], tmp_path)
        assert done.returncode == 2 and "'image' (1 of 1 rows), 'compare' (1 of 1 rows)" in done.stderr
        assert "--sample-column NAME" in done.stderr and not (site / "memory/reviewed.npz").exists()
        line += ["--control", "c", "--sample-column", "image"]
    done = fnlkit(line, tmp_path)
    assert done.returncode == 0 and "1 labels changed" in done.stderr, done.stderr
    found = Federation.read(site / "memory/reviewed.npz")
    (changed,) = np.flatnonzero(found.given != start.given)
    assert found.ids_of([changed]) == [chosen] and len(list((site / "memory").glob(f"decisions-*.{kind}"))) == 1


def test_an_estimate_keeps_the_copies_and_outliers_of_an_audit(tmp_path):
    from types import SimpleNamespace

    import torch

    data = SimpleNamespace(
        y_train=np.array([0, 1, 1, 0]), checksum="a", class_names=["x", "y"], ids=None, name="ours", groups=None
    )
    federation = labels.fresh(data, "Bonn")
    rows = {"estimate/issue": torch.tensor([0.1, 0.9, 0.2, 0.3]), "estimate/flagged": torch.tensor([False, True, False, False]),
            "estimate/guess": torch.tensor([0, 0, 1, 0])}  # fmt: skip
    found = {"audit/copy_of": torch.tensor([-1, -1, 1, -1]), "audit/far": torch.tensor([False, False, False, True])}
    labels.keep_judgment(tmp_path, federation, SimpleNamespace(rows=rows | found))
    again = rows | {"estimate/issue": torch.tensor([0.5, 0.6, 0.7, 0.8])}
    labels.keep_judgment(tmp_path, federation, SimpleNamespace(rows=again))
    extra = Federation.read(str(tmp_path / "judged.npz")).extra
    assert extra["estimate_copy_of"].tolist() == [-1, -1, 1, -1] and extra["estimate_far"].tolist() == [False] * 3 + [True]
    assert extra["estimate_issue_score"] == pytest.approx([0.5, 0.6, 0.7, 0.8])
    other = labels.fresh(SimpleNamespace(**vars(data) | {"checksum": "b"}), "Bonn")
    labels.keep_judgment(tmp_path, other, SimpleNamespace(rows=again))
    assert "estimate_copy_of" not in Federation.read(str(tmp_path / "judged.npz")).extra


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("fnlkit site log --project nowhere", "site.toml"),
        ("fnlkit sites status nowhere", "nowhere"),
        ("fnlkit sites show fed.npz", "fed.npz"),
        ("fnlkit flower-app new --dataset digits --sites 2 --demo", "--address"),
        ("fnlkit flower-app new --dataset digits --sites 2 --address host:port", "--address"),
        ("fnlkit flower-app new --dataset digits --sites 2 --name one", "--name"),
        ("fnlkit flower-app new --dataset digits --sites 2 --estimator loss", "--per-sample"),
        ("fnlkit flower-app new --dataset digits --sites 2 --estimator em(by=sample)", "by=sample"),
        ("fnlkit flower-app new --dataset digits --sites 2 --estimator mine.py:f", "mine.py:f"),
        ("fnlkit flower-app new --dataset digits --sites 2 --scale sites", "--scale"),
        ("fnlkit flower-app new --dataset digits --sites 2 --scale sites --sums-epsilon 1", "--s"),
        ("fnlkit flower-app new --dataset digits --sites 2 --backbone pca", "--backbone"),
        ("fnlkit flower-app new --dataset digits --sites 2 --method nnc", "needs embedding"),
        ("fnlkit flower-app new --dataset digits --sites 2 --method oracle", "needs truth"),
        ("fnlkit flower-app new --dataset digits --sites 2 --memorization", "needs the true labels"),
        ("fnlkit flower-app new --dataset digits --sites 2 --model mine.py:Net", "--model"),
    ],
)
def test_bad_input_is_one_line(line, named, tmp_path):
    (tmp_path / "fed.npz").write_bytes(b"{}")
    done = fnlkit(line.split(), tmp_path)
    assert done.returncode == 2 and named in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not (tmp_path / "new").exists()


def test_a_table_is_compared_column_by_column(tmp_path):
    """Columns in another order and empty cells are allowed; a missing column and an unknown category are named."""
    from tests.sites.test_site_data import HEAD, patients, write

    write(tmp_path / "ours.csv", [row.replace("east", "") if i < 9 else row for i, row in enumerate(patients(90, 0))])
    line = "fnlkit flower-app project --dataset ours.csv --sites 2 --address localhost --model mlp(hidden=8)"
    assert fnlkit(line.split(), tmp_path).returncode == 0
    rows = [",".join(row.split(",")[::-1]) for row in patients(40, 2)]
    rows[0] = ",".join(["ill", "0.1", "", "2000", "60"])
    write(tmp_path / "theirs.csv", rows, ",".join(HEAD.split(",")[::-1]))
    check = ["fnlkit", "site", "check", "theirs.csv", "--project", "project/sites/site-0", "--json"]
    done = fnlkit(check, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["missing"] == {"ward": 1} and found["samples"] == 40 and set(found["classes"]) == {"ill", "well"}
    for head, change, named in ((HEAD.replace("crp", "CRP"), ("", ""), "crp"), (HEAD, ("north", "nowhere"), "nowhere")):
        write(tmp_path / "theirs.csv", [row.replace(*change) if change[0] else row for row in patients(40, 3)], head)
        done = fnlkit(check, tmp_path)
        assert done.returncode == 2 and named in done.stderr, done.stderr


TRAIN = ["fnlkit", "sites", "run", "demo", "--task", "train", "-o", "run.pt"]


@pytest.fixture
def server(monkeypatch):
    """Flower's commands, answered in this process; `fails` is the error of the next run."""

    class Server:
        fails, goes_on, nodes, last, status = None, False, {}, 9, ""

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
                if self.goes_on:
                    self.status, self.asked = "running", 0
                    return {"run-id": 7}
                try:
                    conduct(folder, nodes, values | {"wait": 0.0})
                except Exception:
                    self.status = "finished:failed"
                return {"run-id": 7}
            if words[0] == "list":
                return {"runs": [{"status": self.status}]}
            if words[0] == "stop":
                self.status = "finished:stopped"
                return {}
            if words[:2] == ("supernode", "unregister"):
                del self.nodes[words[2]]
                return {}
            about = {"status": "online", "online-at": "2026-01-01", "offline-at": "N/A"}
            return {"nodes": [{"node-id": node, **about} for node in self.nodes]}

    server = Server()
    monkeypatch.setattr(coordinator, "_flwr", server.flwr)
    return server


def test_the_coordinator_admits_runs_and_sees_the_state(server, copied, tmp_path, monkeypatch):
    """A failed task ends with 1 and names the site; the same command completes it."""
    keys = [f"demo/sites/site-{k}/site-{k}.key.pub" for k in (0, 1)]
    done = fnlkit(["fnlkit", "sites", "admit", "demo", *keys], tmp_path)
    assert done.returncode == 0 and all(flower_app.fingerprint_of(tmp_path / key) in done.stdout for key in keys)
    done = fnlkit(["fnlkit", "sites", "admit", "demo", keys[0]], tmp_path)
    assert done.returncode == 0 and len(server.nodes) == 2  # known already
    server.nodes.clear()  # the server has lost its database
    done = fnlkit(["fnlkit", "sites", "admit", "demo", *keys], tmp_path)
    assert done.returncode == 0 and sorted(server.nodes) == ["12", "13"]
    shutil.copy(tmp_path / keys[0], tmp_path / "unknown.key.pub")
    done = fnlkit(["fnlkit", "sites", "admit", "demo", "unknown.key.pub"], tmp_path)
    assert done.returncode == 2 and "unknown" in done.stderr
    server.fails = True
    audit = ["fnlkit", "sites", "run", "demo", "--task", "audit", "--min-replies", "1", "-o", "audit.json"]
    done = fnlkit(audit, tmp_path)
    assert done.returncode == 1 and "site-1" in done.stderr and not (tmp_path / "audit.json").exists()
    assert done.stderr.splitlines()[-1].count("same command") == 1
    server.fails = False
    done = fnlkit(audit, tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(fnlkit(["fnlkit", "sites", "status", "demo", "--json"], tmp_path).stdout)
    assert rows["task"]["state"] == "completed" and [row["state"] for row in rows["sites"]] == [
        "online",
        "online",
        "not admitted",
    ]
    assert [row["samples"] for row in rows["sites"]] == [row["samples"] for row in sorted(
        json.loads((tmp_path / "audit.json").read_text())["sites"], key=lambda row: row["client"])]  # fmt: skip
    path = tmp_path / "audit.json.status.json"
    for state, word in (("running", "refuses: the"), ("completed", "refused: the")):  # while it runs, and afterwards
        path.write_text(json.dumps(json.loads(path.read_text()) | {"state": state, "refused": {"site-1": "the cause"}}))
        monkeypatch.setattr(server, "status", "running" if state == "running" else "finished:completed")
        rows = json.loads(fnlkit(["fnlkit", "sites", "status", "demo", "--json"], tmp_path).stdout)["sites"]
        assert [row["state"] for row in rows] == ["online", f"{word} cause", "not admitted"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"refused": {}, "silent": {"site-1": "no answer in time"}}))
    rows = json.loads(fnlkit(["fnlkit", "sites", "status", "demo", "--json"], tmp_path).stdout)["sites"]
    assert [row["state"] for row in rows] == ["online", "no answer in time", "not admitted"]
    assert fnlkit(audit, tmp_path).returncode == 2  # a finished result is kept
    done = fnlkit(["fnlkit", "sites", "run", "demo", "--task", "evaluate", "-o", "e.json"], tmp_path)
    assert done.returncode == 2 and "--run" in done.stderr


def test_a_project_file_that_cannot_run_is_refused_before_anything_is_sent(server, copied, tmp_path):
    text = (copied / "project.json").read_text()
    (copied / "project.json").write_text(text.replace('"method": "fedavg"', '"method": "fedcor"'))
    done = fnlkit(TRAIN, tmp_path)
    assert done.returncode == 2 and "fedcorr" in done.stderr and "nothing was sent" in done.stderr
    assert server.status == "" and not (copied / "coordinator/last.json").exists()


def test_a_running_task_is_followed_again_and_stopped(server, copied, tmp_path, monkeypatch):
    server.goes_on = True

    def interrupted(folder, number):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "_follow", interrupted)
        assert fnlkit(TRAIN, tmp_path).returncode == 130
    state = {"task": "train", "state": "running", "step": "round 1", "events": [[0.0, "site-2 refuses"]], "lost": {}}
    (tmp_path / "run.pt.status.json").write_text(json.dumps(state | {"output": str(tmp_path / "run.pt")}))
    server.goes_on = False  # a second submission would complete

    def follow(folder, number):
        assert number == "7" and server.status == "running"
        return {"status": "finished:completed"}

    with monkeypatch.context() as patched:
        patched.setattr(coordinator, "_follow", follow)
        assert fnlkit(TRAIN, tmp_path).returncode == 0 and server.status == "running"
    other = fnlkit([*TRAIN[:-1], "other.pt"], tmp_path)
    assert other.returncode == 2 and "run.pt" in other.stderr
    assert "site-2 refuses" in fnlkit(["fnlkit", "sites", "log", "demo"], tmp_path).stdout
    assert fnlkit(["fnlkit", "sites", "stop", "demo"], tmp_path).returncode == 0 and server.status == "finished:stopped"
    # The server process wrote no end: it was killed.
    found = json.loads(fnlkit(["fnlkit", "sites", "status", "demo", "--json"], tmp_path).stdout)
    assert found["task"]["state"] == "ended"
    assert fnlkit(["fnlkit", "sites", "stop", "demo"], tmp_path).returncode == 2


def test_an_overloaded_machine_neither_ends_the_following_nor_submits_the_task_again(server, copied, tmp_path, monkeypatch):
    """A command of Flower that gives no answer in time has answered nothing: the task may be running."""
    server.goes_on, flwr, slow = True, server.flwr, []

    def first_slow(folder, *words):
        if words[0] == "list" and not slow:
            slow.append(words)
            server.status = "finished:completed"
            raise coordinator.TooSlow("flwr list: no answer within 120 s")
        return flwr(folder, *words)

    state = {"task": "train", "state": "completed", "step": "round 1", "events": [], "output": str(tmp_path / "run.pt")}

    def submitted(*arguments):
        (tmp_path / "run.pt.status.json").write_text(json.dumps(state))
        return first_slow(*arguments)

    monkeypatch.setattr(coordinator, "_flwr", submitted)
    monkeypatch.setattr(coordinator.time, "sleep", lambda seconds: None)
    assert fnlkit(TRAIN, tmp_path).returncode == 0 and slow
    (tmp_path / "run.pt.status.json").write_text(json.dumps(state | {"state": "running"}))
    slow.clear()
    monkeypatch.setattr(coordinator, "_flwr", first_slow)
    done = fnlkit(TRAIN, tmp_path)
    assert done.returncode == 1 and done.stderr.strip() == "fnlkit: error: flwr list: no answer within 120 s"


def test_the_last_lines_of_a_task_are_printed(server, copied, tmp_path, monkeypatch):
    """The task ends while Flower is asked for its state: its last line comes after the lines were read."""
    path, flwr = tmp_path / "run.pt.status.json", server.flwr
    state = {"task": "train", "state": "running", "step": "", "lost": {}, "output": str(tmp_path / "run.pt")}

    def ends(folder, *words):
        if words[0] == "run":
            path.write_text(json.dumps(state | {"events": [[0.0, "round 0 without site-1"]]}))
        if words[0] == "list":
            server.status = "finished:completed"
            events = [[0.0, "round 0 without site-1"], [1.0, "round 1 without site-1"]]
            path.write_text(json.dumps(state | {"state": "completed", "events": events}))
        return flwr(folder, *words)

    now = iter(range(0, 10**6, 30))
    server.goes_on = True
    monkeypatch.setattr(coordinator, "_flwr", ends)
    monkeypatch.setattr(coordinator.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(coordinator.time, "sleep", lambda seconds: None)
    done = fnlkit(TRAIN, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [f"round {n} without site-1" in done.stderr for n in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    ("reason", "status", "printed"),
    [
        ("the warm-up diverged; lower --lr", "failed", "the warm-up diverged; lower --lr"),
        ("site-1 is lost; then run the same command", "failed", "site-1 is lost; then run the same command"),
        ("", "stopped", "the task was stopped (finished:stopped); the same command continues the task"),
        ("", "failed", "the server process ended (finished:failed); its log is that of {}/coordinator/start.sh; the same "
         "command continues the task"),
    ],
)  # fmt: skip
def test_a_task_that_ends_without_a_result_prints_one_remedy(reason, status, printed, server, copied, tmp_path, monkeypatch):
    """The server's reason has its own remedy: the same command would repeat a training that diverged."""
    flwr = server.flwr
    state = {"task": "train", "state": "failed" if reason else "stopped", "reason": reason, "step": "", "lost": {}}

    def ends(folder, *words):
        answer = flwr(folder, *words)
        if words[0] == "run":
            (tmp_path / "run.pt.status.json").write_text(json.dumps(state | {"output": str(tmp_path / "run.pt")}))
            server.status = f"finished:{status}"
        return answer

    server.goes_on = True
    monkeypatch.setattr(coordinator, "_flwr", ends)
    done = fnlkit(TRAIN, tmp_path)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == f"fnlkit: error: {printed.format(copied)}"


def test_a_command_of_flower_without_an_answer_ends_in_one_line(demo, monkeypatch):
    def late(command, **more):
        raise subprocess.TimeoutExpired(command, more["timeout"])

    monkeypatch.setattr(coordinator.subprocess, "run", late)
    with pytest.raises(WorkStopped, match="flwr list: no answer within 120 s; this machine is overloaded"):
        coordinator._flwr(demo, "list")


def test_a_site_is_removed_and_certificates_are_renewed(server, copied, tmp_path):
    import ssl

    from cryptography import x509

    folder, keys = copied, [f"demo/sites/site-{k}/site-{k}.key.pub" for k in (0, 1)]
    assert fnlkit(["fnlkit", "sites", "admit", "demo", *keys], tmp_path).returncode == 0
    assert fnlkit(["fnlkit", "sites", "remove", "demo", "site-2"], tmp_path).returncode == 2
    assert fnlkit(["fnlkit", "sites", "remove", "demo", "site-1"], tmp_path).returncode == 0
    keys = project.read(folder).keys
    assert [bool(key) for key in keys] == [True, False, False] and len(server.nodes) == 1
    assert fnlkit(["fnlkit", "sites", "remove", "demo", "site-0"], tmp_path).returncode == 2  # the last one
    before = {name: (folder / f"coordinator/{name}").read_bytes() for name in ("ca.crt", "ca.key", "server.crt")}
    assert fnlkit(["fnlkit", "sites", "renew", "demo"], tmp_path).returncode == 0
    after = {name: (folder / f"coordinator/{name}").read_bytes() for name in before}
    assert after["ca.key"] == before["ca.key"] and after["server.crt"] != before["server.crt"]
    assert (folder / "sites/site-2/ca.crt").read_bytes() == after["ca.crt"] != before["ca.crt"]
    ssl.create_default_context().load_verify_locations(folder / "coordinator/ca.crt")
    old, new = (x509.load_pem_x509_certificate(each["ca.crt"]) for each in (before, after))
    assert new.public_key() == old.public_key() and new.not_valid_after_utc >= old.not_valid_after_utc
    x509.load_pem_x509_certificate(after["server.crt"]).verify_directly_issued_by(new)
    own = (folder / "sites/site-2/own.crt").read_bytes()
    done = fnlkit(["fnlkit", "site", "join", ".", "--data", "data.npz"], folder / "sites/site-2")
    assert done.returncode == 0 and (folder / "sites/site-2/own.crt").read_bytes() != own
