"""Slow tests run when asked; threads are pinned so that equal results are equal bytes."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections import Counter
from types import SimpleNamespace

gc.disable()  # until all tests are imported: a fifth of this time
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ledgers of label releases lie beside the data: those of tests in a place of their own.
os.environ["FNLKIT_CACHE"] = tempfile.mkdtemp(prefix="fnlkit-tests-")

import hypothesis  # noqa: E402
import pytest  # noqa: E402

atexit.register(shutil.rmtree, os.environ["FNLKIT_CACHE"], ignore_errors=True)
# Whoever starts the tests in the background of a script hands them an ignored Ctrl-C, and they would hand it on.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also run tests of minutes")
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="print the N files with the most CPU seconds")


def pytest_configure(config):
    # A shared CI judges a change, not its luck: the same examples every time. Anybody else gets new ones with each run.
    examples = 100 if config.getoption("--slow") else 20
    hypothesis.settings.register_profile("fnlkit", derandomize=bool(os.environ.get("CI")), max_examples=examples, deadline=None)
    hypothesis.settings.load_profile("fnlkit")


def pytest_ignore_collect(collection_path, config):
    """With `-m smoke`, import only files with this mark: importing all files takes longer than these tests."""
    if config.option.markexpr == "smoke" and collection_path.match("test_*.py"):
        return "mark.smoke" not in collection_path.read_text(encoding="utf-8") or None


def pytest_collection_modifyitems(config, items):
    """Leave out tests that run with `--slow` or on a CUDA device; a skip of each would take a millisecond and a line.

    The process that distributes tests to others collects none, and so imports no torch.
    """
    import torch

    torch.set_num_threads(1)
    runs = {"slow": config.getoption("--slow"), "gpu": torch.cuda.is_available()}
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in runs if not runs[mark])]
    config.hook.pytest_deselected(items=left_out)
    kept = {*items} - {*left_out}
    items[:] = [item for item in items if item in kept]


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


# ---- CPU seconds of files: of a test with its fixtures, and of its processes once they ended
_used, _before = Counter(), pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_before] = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    try:
        return (yield)
    finally:
        item.user_properties.append(("cpu", sum(os.times()[:4]) - item.stash[_before]))


def pytest_runtest_logreport(report):
    """Add up the seconds; under xdist, this function sees the reports of all processes."""
    if report.when == "teardown":
        _used[report.nodeid.partition("::")[0]] += dict(report.user_properties).get("cpu", 0)


def pytest_terminal_summary(terminalreporter, config):
    if config.option.cpu:
        terminalreporter.section(f"CPU seconds: {sum(_used.values()):.1f}, without imports")
        for name, seconds in _used.most_common(config.option.cpu):
            terminalreporter.write_line(f"{seconds:7.1f} {name}")


@pytest.fixture(scope="session")
def digits():
    """The embedded digits."""
    from fnlkit import datasets

    return datasets.load("digits")


@pytest.fixture(scope="session")
def noisy(tmp_path_factory):
    """Path of a noisy federation of the embedded digits, 20 clients; it is everybody's, so write beside it, not to it."""
    from tests.commands import fnlkit

    folder = tmp_path_factory.mktemp("federation")
    done = fnlkit("fnlkit partition | fnlkit inject-noise --noise 'clients(rho=0.6, tau=0.5)' -o noisy.npz", folder)
    assert done.returncode == 0, done.stderr
    (folder / "noisy.npz").chmod(0o444)
    return folder / "noisy.npz"


@pytest.fixture
def few_trees():
    yield from ten_trees()


@pytest.fixture(scope="module")
def few_trees_of_a_module():
    yield from ten_trees()


def ten_trees():
    """Models that a site trains of its own table have ten trees: for tests that are about other models."""
    from fnlkit.audits.site import own_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_model, "TREES", 10)
        yield


@pytest.fixture
def exported(monkeypatch):
    """Return the list of exported modules; the conversion by torch.export, which takes seconds, is left out."""
    import torch

    modules = []
    monkeypatch.setattr(torch.export, "export", lambda module, *_, **__: modules.append(module))
    monkeypatch.setattr(torch.export, "save", lambda program, file: file.write(b"program"))
    monkeypatch.setattr(torch.export, "load", lambda file: SimpleNamespace(module=lambda: modules[-1]))
    return modules
