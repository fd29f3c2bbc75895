"""Checkpoints of an experiment: snapshot, resume with all checks, and a rehearsal of the resume."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.packing import LIMIT
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.experiment import memory
from fnlkit.experiment.identity import (
    describe_data,
    labels_of,
    machine,
    must_have_same_data,
    must_have_same_settings,
    peak_bytes,
    truth_of,
)
from fnlkit.federated.client.network import Model
from fnlkit.federated.engines.engine import Engine
from fnlkit.federated.server.clients import Clients


# ---- snapshot
def snapshot(experiment: Any) -> Run:
    """Save an experiment as the Run after the last finished round.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment
    """
    federation, clients, chosen = experiment.federation, experiment.clients, experiment.selection
    return Run(
        settings=asdict(experiment.settings),
        weights=experiment.model.weights if chosen.weights is None else chosen.weights,
        labels=labels_of(federation, experiment.labels()),
        client_offsets=np.asarray(federation.client_offsets),
        client_indices=np.asarray(federation.client_indices),
        history=list(experiment.history),
        records={
            name: (np.array([round for round, _ in pairs]), np.stack([values for _, values in pairs]))
            for name, pairs in experiment.records.items()
        },
        truth=truth_of(federation),
        memory=memory.pack(clients.members.with_memory(), clients.memory),
        log=list(clients.log),
        results=list(clients.results),
        traffic=clients.traffic,
        rejected=list(clients.rejected),
        finished=experiment.finished,
        meta=_metadata(experiment),
        selection=chosen.arrays(experiment.model, experiment.history),
        predicted={name: logits.argmax(1).astype(np.int32) for name, logits in experiment.logits.items()},
        logits=experiment.logits,
    )


def _metadata(experiment):
    federation, dataset, inputs = experiment.federation, experiment.dataset, experiment.inputs
    cost = {"seconds": experiment.seconds, "peak_bytes": peak_bytes()}
    cost["row_seconds"] = experiment.times[: len(experiment.history)]
    return {
        **describe_data(federation, dataset, inputs.mean, inputs.std),
        "input_shape": list(experiment.input_shape),
        "embedding": experiment.embedding,
        "head": experiment.head,
        "frozen": experiment.network.frozen,
        "pair": "pair" in experiment.plan.needs,
        "committee": experiment.committee,
        "needs": sorted(experiment.plan.needs),
        "own": experiment.user_files,
        **({"code_changes": experiment.code_changes} if experiment.code_changes else {}),
        "provenance": experiment.provenance,
        "selection": experiment.selection.facts(experiment.history),
        "unsaved": _find_unsaved(experiment),
        "privacy_key": experiment.privacy_key,
        "machine": machine(experiment.clients.engine, experiment.device) | cost,
    }


def _find_unsaved(experiment):
    """Find the server parts of the optimizer whose state no run saves; note each once."""
    now = memory.server_state(experiment.opt)
    changed = [name for name in now if now[name] != experiment.initial_server_state[name]]
    for name in changed:
        experiment.clients.note(
            f"this run cannot be resumed: the optimizer's {name} stores state in its attributes or variables; store it in "
            "`updates.memory`, for an aggregator in its argument `memory` (docs/extending.md)"
        )
    return changed


# ---- warnings before a checkpoint fails
def warn_if_too_large(experiment: Any) -> None:
    """Note after the first round if the clients' state will exceed the size limit of a run's file."""
    clients = experiment.clients
    visits = min(len(clients), experiment.settings.rounds * len(clients.log[-1].asked))
    total = memory.expected_bytes(clients.members.with_memory(), visits)
    if total > LIMIT:
        clients.note(
            f"after all rounds the state of {visits:,} clients will have {total / 1e9:.1f} GB, but the limit of a run's "
            f"file is {LIMIT / 1e9:.1f} GB, so writing it will fail; choose a smaller network, fewer rounds, or an "
            "optimizer and a method without client state"
        )


def rehearse(experiment: Any, first: Model) -> None:
    """Note if the rounds so far cannot be repeated from the log, because the run could then not be resumed.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment
    first : Model
        The model before the first round.
    """
    original, plan, settings = experiment.clients, experiment.plan, experiment.settings
    clients = Clients(Engine((), experiment.network, experiment.inputs, seed=settings.seed))  # the log replies
    clients.sizes, clients.classes, clients.public = original.sizes, original.classes, original.public
    clients.replay(original.log, original.results)
    opt = replace(experiment.opt, rounds=0)
    start = Model(experiment.network, first.weights)
    try:
        program = plan.method.run(clients, start, opt, plan.make_selector(), rounds=settings.rounds)
        for _ in experiment.history:
            next(program)
    except InputError as error:
        reason = str(error).removeprefix("`resume`: ")
        original.note(f"this run cannot be resumed after an interruption: {reason}")


# ---- resume
def resume(experiment: Any, run: Run) -> None:
    """Replay the server's program on the logged replies of a run, then restore the model and the state of the run.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment
        A new experiment with the settings and the data of the run.
    run : Run

    Raises
    ------
    InputError
        If the run was made with other settings, data or code.
    """
    check(experiment, run)
    _replay(experiment, run)
    _restore(experiment, run)


def check(experiment: Any, run: Run) -> None:
    """Raise InputError if a run was made with other settings, data or code; parameters as for `resume`."""
    must_have_same_settings(run, experiment.settings)
    must_have_same_data(run, experiment.federation, experiment.dataset)
    _check_code(experiment, run)
    _check_inputs(experiment, run)
    _check_schedule(experiment.plan, run)


def _check_code(experiment, run):
    """Compare the user's files with the digests of a run; note and record accepted changes in `experiment.code_changes`."""
    recorded, now = run.meta.get("own"), experiment.user_files  # the earliest runs have none, or none of data files
    experiment.code_changes = list(run.meta.get("code_changes", []))
    for name in [] if recorded is None else sorted(recorded.keys() | {name for name in now if ":" in name}):
        before, after = recorded.get(name, "none"), now.get(name, "none")
        if before == after:
            continue
        changed = f"the code of {name}" if ":" in name else f"the file {name}"
        if not experiment.accept_code_change:
            raise InputError(
                f"`resume`: {changed} changed since the run was made (SHA-256 {before[:12]}, now {after[:12]}); restore the "
                "earlier version, train again, or continue with `accept_code_change=True`"
            )
        rounds = len(run.log)
        experiment.code_changes.append({"name": name, "before": before, "after": after, "rounds": rounds})
        experiment.clients.note(
            f"{changed} changed after {rounds:,} rounds: SHA-256 {before[:12]}, now {after[:12]}; the run records both, and an "
            "uninterrupted run with either version can differ"
        )
    if run.meta.get("unsaved"):
        raise InputError(
            f"`resume`: the optimizer's {run.meta['unsaved'][0]} stored state in its attributes, which no run saves; store it "
            "in `updates.memory` (docs/extending.md) and train again"
        )


def _check_inputs(experiment, run):
    dataset = experiment.dataset
    if run.meta.get("privacy_key", "") != experiment.privacy_key:
        raise InputError(
            "`resume`: the run was made with another privacy key, or without one; name the key file of the run with "
            "`privacy_key`, or train again"
        )
    before, now = (features and features["sha256"] for features in (run.meta.get("features"), dataset.features))
    if before != now:
        spec = (run.meta.get("features") or {}).get("backbone", "none")
        raise InputError(f"`resume`: the run was made with another `backbone` or other weights; write `backbone={spec!r}`")
    mean = (run.meta.get("samples") or {}).get("mean", [])
    if dataset.kind == "vector" and list(experiment.inputs.mean) != mean:
        raise InputError(
            "`resume`: the run standardized its vectors with other statistics, or not at all, as early versions of fnlkit did; "
            "train again"
        )
    if run.meta.get("embedding") != experiment.embedding:
        raise InputError("`resume`: the run was made with other `embeddings`; use the `embeddings` of the run")
    if run.meta.get("frozen") != experiment.network.frozen:
        raise InputError("`resume`: the frozen parameters of the network differ; use the `model` file of the run")


def _check_schedule(plan, run):
    method = plan.method
    before = run.settings["rounds"]
    now = plan.settings.rounds
    over = {tuple(map(plan.schedule_over(rounds), range(len(run.log)))) for rounds in (before, now)}
    same_rates = len(over) == 1
    if before != now and not (same_rates and method.budget(before) == method.budget(now)):
        name = method.spec if same_rates else f"`schedule` {plan.settings.schedule}"
        raise InputError(
            f"`resume`: the schedule of {name} depends on the number of rounds, which was `rounds` {before}; resume "
            f"with `rounds={before}`, or train {now} rounds from the start"
        )


def _replay(experiment, run):
    """Repeat the rounds of a run from the log."""
    experiment.continue_history(run)
    clients = experiment.clients
    clients.replay(run.log, run.results)
    for _ in experiment.history:
        step = next(experiment.program, None)
        if step is None:
            raise InputError(
                f"`resume`: the run has {len(experiment.history)} rounds, more than `rounds` {experiment.settings.rounds} "
                "allows; use a higher `rounds`"
            )
        experiment.model = step.model
    if clients.unread and run.finished:  # a method can request further replies after its last round
        next(experiment.program, None)
    if clients.unread:
        raise InputError("`resume`: the log of the run contains more rounds than its history; the file is damaged, train again")
    clients.end_replay()


def _restore(experiment, run):
    """Restore the model, the records of the session, the memory of the clients and their labels."""
    clients, indices = experiment.clients, np.asarray(experiment.federation.client_indices, np.int64)
    # The program's variables refer to the Model that it yielded last, so this object receives the run's weights. The
    # weights of earlier rounds stay unknown.
    weights = run.selection.get("last", run.weights)
    if len(weights) != experiment.network.size:
        raise InputError(f"`resume`: the run has {len(weights):,} weights, but its network {experiment.network.size:,}")
    experiment.model.weights = weights.to(device=experiment.device, dtype=experiment.network.dtype)
    clients.log, clients.rejected, clients.results = list(run.log), list(run.rejected), list(run.results)
    clients.traffic = run.traffic.copy()  # the caller can resume the run again
    memory.unpack(run.memory, clients.members, clients.memory, experiment.device)
    experiment.selection.resume(run, experiment.model.weights)
    corrected = torch.from_numpy(run.labels["corrected"].astype(np.int64))
    clients.members.y.copy_(corrected[torch.from_numpy(indices)])
