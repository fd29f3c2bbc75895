"""The search of league-real: equal for all methods, without the reported seeds, test samples and true labels."""

from benchmarks import league_real, league_search
from benchmarks.league_cells import read_lines
from fnlkit.reproduce import checking, recipe, reproduce
from fnlkit.reproduce.spaces import apply_configuration

PLAN = recipe.load_recipe("league-real")


def test_each_method_has_four_settings_of_the_same_learning_rates():
    found = league_search.cells(PLAN)
    labels = [entry.label for entry in recipe.entries(PLAN["regime"][0]) if entry.label in league_search.SECOND]
    assert {*labels} == {*league_real.stored_league().methods, "oracle"}
    assert [cell.name for cell in found] == [(regime, name) for regime in league_search.REGIMES for name in labels]
    for cell in found[: len(labels)]:
        assert cell.left[0] == {} and [values.get("lr") for values in cell.left] == [None, 0.03, None, 0.03]
        assert len(cell.rungs) == 1 and cell.rungs[0].rounds == PLAN["train"]["rounds"]
        for values in cell.left:
            method, options = apply_configuration(cell.entry.method, values)
            checking.must_run(method, PLAN["train"] | options)


def test_the_search_reads_held_out_labels_of_another_seed():
    reported = {tuple(job.prepare) for name in league_search.REGIMES for job in reproduce.jobs(PLAN, only=name)}
    for cell in league_search.cells(PLAN)[:2]:
        jobs = [job for _, jobs in cell.jobs(0) for job in jobs]
        assert len(jobs) == 4 and {job.seed for job in jobs} == {league_search.SEED} and not {100} & {*PLAN["seeds"]}
        assert all("--measure=holdout" in job.train and "--holdout" in job.prepare[0][0] for job in jobs)
        assert not reported & {tuple(job.prepare) for job in jobs}


def test_chosen_settings_have_the_best_score_and_scores_of_all_seeds():
    lines = read_lines(league_search.LOG)
    before, after, choices = league_search.searched()
    assert before.regimes == [name for name in league_real.stored_league().regimes if name in league_search.REGIMES]
    for (regime, method), chosen in choices.items():
        tried = [line for line in lines if (line["regime"], line["method"]) == (regime, method) and "values" in line]
        assert len(tried) == 4 and max(tried, key=lambda line: line["score"])["values"] == chosen
        scores = [league.rows[regime, method]["kept"] for league in (before, after)]
        assert scores[0].keys() == scores[1].keys() and (bool(chosen) or scores[0] == scores[1])
