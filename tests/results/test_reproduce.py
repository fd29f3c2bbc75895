"""Recipes are commands: they parse, name what exists, run, continue, and compare."""

import shlex

import pytest

from fnlkit import catalogue
from fnlkit.artefacts.run import Run
from fnlkit.cli import group
from fnlkit.errors import InputError
from fnlkit.results import reproduce

TINY = """
title = "tiny"
dataset = "digits"
seeds = [0, 1]
[train]
rounds = 6
fraction = 0.2
epochs = 1
memorization = true
[[regime]]
name = "heavy"
steps = ["partition --clients 10", "inject-noise --noise 'clients(rho=0.6, tau=0.5)'"]
methods = ["fedavg", "fedcorr(iterations=1)"]
published = { fedcorr = [90.0, 1.0] }
"""


@pytest.mark.parametrize("name", reproduce.recipes())
def test_recipes_that_come_with_fnlkit_name_what_exists(name):
    for job in reproduce.jobs(reproduce.load(name)):
        catalogue.method(job.method)
        for line in reproduce.commands(job):
            program, verb, *arguments = shlex.split(line)
            assert program == "fnlkit"
            # Parsing finds unknown options and values of a wrong type without running anything.
            command = group.get_command(None, verb)
            command.make_context(verb, arguments)


def test_a_recipe_runs_continues_and_compares(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    jobs = reproduce.jobs(reproduce.load(str(path)))
    said = []
    assert reproduce.run(jobs[:1], tmp_path / "runs", at_once=1, on_done=lambda job, error: said.append(error)) == {}
    stamp = (tmp_path / "runs" / "0-0-1.npz").stat().st_mtime_ns
    assert reproduce.run(jobs, tmp_path / "runs", at_once=1) == {}
    assert (tmp_path / "runs" / "0-0-1.npz").stat().st_mtime_ns == stamp and said == [None]
    first, second = reproduce.rows(jobs, tmp_path / "runs")
    assert first["method"] == "fedavg" and first["best_over_first"] == 0 and not first["best_clear"] and first["runs"] == 2
    assert second["published"] == [90.0, 1.0] and second["best_spread"] >= 0
    assert second["late_over_first"] == pytest.approx(second["late_mean"] - first["late_mean"])
    # Two paired differences a and b: the interval of their mean is t(0.975, 1) = 12.7062 times |a - b| / 2 wide to each side.
    gains = [second["late"][seed] - first["late"][seed] for seed in (0, 1)]
    assert second["late_over_first_half"] == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-5)
    assert second["late_clear"] == (min(gains) > 0 and second["late_over_first"] > second["late_over_first_half"])
    run = Run.read(str(tmp_path / "runs" / "0-0-fedavg-0.pt")), Run.read(str(tmp_path / "runs" / "0-0-fedavg-1.pt"))
    last = [100 * [row["local_noisy_memorized"] for row in r.history if "local_noisy_memorized" in row][-1] for r in run]
    assert first["local_memorized"] == pytest.approx(sum(last) / 2) and 0 <= first["global_memorized"] <= 100
    assert first["client_rounds"] == second["client_rounds"] == 12


def test_a_published_number_belongs_to_a_method_or_to_one_way_to_write_it():
    recipe = reproduce.load("feddpcont-epsilon-cifar10")
    found = {(job.regime, job.method): job.published for job in reproduce.jobs(recipe, seeds=1)}
    assert found["random 0.4", "feddpcont(epsilon=0.81)"] == [72.99, 1.01]
    assert found["random 0.4", "feddpcont(epsilon=0.01)"] == [72.12, 1.08]
    assert found["random 0.4", "feddpcont(release=exact)"] is None
    kept = {job.published[0] for job in reproduce.jobs(reproduce.load("feddpcont-epsilon-clothing1m"))}
    assert kept == {70.79, 70.8}


def test_what_a_failed_job_said_is_kept(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(TINY.replace("fedcorr(iterations=1)", "fedcorr(iterations=900)"))
    jobs = [j for j in reproduce.jobs(reproduce.load(str(path)), seeds=1) if "900" in j.method]
    (said,) = reproduce.run(jobs, tmp_path, at_once=1).values()
    assert "too many beside" in said and "Traceback" not in said


def test_a_data_set_that_is_not_there_is_the_callers_mistake(tmp_path, monkeypatch):
    monkeypatch.setenv("FNLKIT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="^cifar10 is not on this machine: run `fnlkit data get cifar10`"):
        reproduce.run(reproduce.jobs(reproduce.load("regimes"), seeds=1)[:1], tmp_path, at_once=1)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(InputError, match="did you mean 'regimes'"):
        reproduce.load("regime")
    path = tmp_path / "x.toml"
    path.write_text("title = ")
    with pytest.raises(InputError, match="not a recipe"):
        reproduce.load(str(path))
    path.write_text("title = 'a'")
    with pytest.raises(InputError, match="needs 'dataset'"):
        reproduce.load(str(path))
    with pytest.raises(InputError, match="no regime has 'zzz'"):
        reproduce.jobs(reproduce.load("regimes"), only="zzz")


def test_the_interval_of_paired_differences():
    """t(0.975, 2) = 4.302653; the spread of 1, 2, 3 is 1: 4.302653 / sqrt(3) = 2.484138."""
    assert reproduce.half_width([1.0, 2.0, 3.0]) == pytest.approx(2.484138, rel=1e-6)
    assert reproduce.half_width([1.0]) is None


def test_a_switch_of_a_recipe_is_a_switch():
    (line,) = {reproduce.commands(job)[-1] for job in reproduce.jobs(reproduce.load("regimes-features"), seeds=1)[:1]}
    assert "--memorization " in line and "--memorization=" not in line


def test_a_name_in_full_means_itself():
    recipe = reproduce.load("fedln-table3-fashion-mnist")
    assert {job.regime for job in reproduce.jobs(recipe, only="N_L 0.4, n_s 0")} == {"n_l 0.4, n_s 0"}
    assert len({job.regime for job in reproduce.jobs(recipe, only="n_l 0.4")}) > 1
    assert len({job.regime for job in reproduce.jobs(recipe)}) == len(recipe["regime"])
