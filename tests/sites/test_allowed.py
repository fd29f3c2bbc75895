"""The table of functions that a server may name, and the limit of the CPU time of a request."""

import ast
import importlib
import inspect
import signal
import threading
from pathlib import Path

import pytest

from fnlkit.core import registry
from fnlkit.federated.client import drift
from fnlkit.methods import nnc
from fnlkit.sites.site.allowed import PACKAGES, functions
from fnlkit.sites.site.time_limit import TooLong, cpu_limit

# ---- the table of functions that a server may name: complete, and nothing in it that does not run on clients
ROOT = Path(__file__).parents[2]
ARGUMENTS = (["client", "model", "received"], ["logits", "batch"], ["w", "w_start", "batch"], ["features", "batch"])


def steps():
    """Yield (module, name) of all functions in the source of components that are called as steps or losses."""
    for folder in ("methods", "federated/client", "federated/server", "audits"):
        for path in (ROOT / "fnlkit" / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] in ARGUMENTS[:2]:
                    # Names with an underscore and the step of `auto` run in simulations only, and a message names a step and
                    # not its compiled form.
                    if not node.name.startswith("_") and not module.endswith((".client.learning", ".server.agreement")):
                        yield module, node.name


def named(function):
    return function.__module__, function.__name__


def test_every_function_that_runs_on_clients_is_in_the_table():
    wanted = {*steps(), *(tuple(target.split(":")) for target in registry.LOSSES.values())}
    wanted |= {named(f) for f in vars(drift).values() if inspect.isfunction(f) and f.__module__ == drift.__name__}
    assert len(wanted) > 70 and not wanted - functions()


def test_the_table_contains_nothing_else():
    """Every entry is a public function of fnlkit's steps, losses and gradient terms, found where it is named."""
    for module, name in functions():
        found = getattr(importlib.import_module(module), name)
        assert module.startswith(PACKAGES) and not name.startswith("_") and named(found) == (module, name)
        positional = [p.name for p in inspect.signature(found).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional in ARGUMENTS


@pytest.mark.parametrize(
    "name",
    [
        ("os", "system"),
        ("fnlkit.federated.client.client", "predict"),  # imported there, made elsewhere
        ("fnlkit.methods_of_mine", "step"),
        ("fnlkit.estimators.loss", "reply_losses"),  # estimators are no task of a project
        ("fnlkit.federated.client.losses.correction", "transition_matrix"),  # reads a file
        ("fnlkit.federated.client.losses", "cross_entropy"),  # defined in another module
        ("fnlkit.methods.fedcorr", "fedcorr"),
        ("fnlkit.methods.fedcorr", "adaptive_proximal.__globals__"),
        ("fnlkit.audits.site.copies", "find_copies"),
    ],
)
def test_nothing_else_may_be_named(name):
    assert name not in functions()


def test_only_functions_with_the_arguments_of_a_step_enter_the_table(monkeypatch):
    """A helper of a method, a private function and a step of another module stay out."""

    def step(client, model, received, *, k=1):
        return None

    def helper(client, model):
        return None

    own, made = nnc.__name__, {"added": step, "_hidden": step, "helper": helper, "foreign": step}
    for name, function in made.items():
        module = "somewhere.else" if name == "foreign" else own
        found = type(function)(function.__code__, function.__globals__, name, function.__defaults__)
        found.__kwdefaults__, found.__module__, found.__qualname__ = function.__kwdefaults__, module, name
        monkeypatch.setattr(nnc, name, found, raising=False)
    functions.cache_clear()
    try:
        added = {name for module, name in functions() if module == own}
    finally:
        functions.cache_clear()
    assert added == {"added"}


# ---- the CPU time of a request is limited in the main thread; where it cannot be limited, a site answers nothing
def test_a_thread_cannot_limit_its_time_and_computes_nothing():
    reached, errors = [], []

    def enter():
        try:
            with cpu_limit(60, "audit"):
                reached.append(True)
        except TooLong as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert not reached and len(errors) == 1 and errors[0].startswith("audit: the CPU time cannot be limited here")


def test_a_system_without_the_timer_computes_nothing(monkeypatch):
    monkeypatch.delattr(signal, "setitimer")
    with pytest.raises(TooLong, match="Linux or macOS"), cpu_limit(60, "audit"):
        pytest.fail("computed")


def test_the_time_of_all_threads_counts():
    """The main thread waits, and a thread that it started computes."""
    ended = threading.Event()

    def compute():
        while not ended.is_set():
            pass

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        with pytest.raises(TooLong, match="more than the 0.2 s"), cpu_limit(0.2, "audit"):
            while thread.is_alive():  # the error is raised between two waits: another thread may have received the signal
                thread.join(0.05)
    finally:
        ended.set()
        thread.join()


def test_the_former_handler_and_timer_return():
    before = signal.getsignal(signal.SIGVTALRM)
    with cpu_limit(60, "audit") as check:
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 0
        check()
    assert signal.getsignal(signal.SIGVTALRM) == before and signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
