"""The search of league-real: equal for all methods, without the reported seeds, test samples and true labels."""

from types import SimpleNamespace

from benchmarks import league_real, league_search
from benchmarks.league_cells import read_lines
from fnlkit.recipes import checking, recipe, reproduce
from fnlkit.recipes.spaces import apply_configuration

PLAN = recipe.load_recipe("league-real")


def test_each_method_has_four_settings_of_the_same_learning_rates():
    found = league_search.cells(PLAN)
    labels = [entry.label for entry in recipe.entries(PLAN["regime"][0]) if entry.label in league_search.SECOND]
    assert {*labels, "auto"} == {*league_real.stored_league().methods, "oracle"}
    assert [cell.name for cell in found] == [(regime["name"], name) for regime in PLAN["regime"] for name in labels]
    for cell in found[: len(labels)]:
        assert cell.left[0] == {} and [values.get("lr") for values in cell.left] == [None, 0.03, None, 0.03]
        assert len(cell.rungs) == 1 and cell.rungs[0].rounds == PLAN["train"]["rounds"]
        for values in cell.left:
            method, options = apply_configuration(cell.entry.method, values)
            checking.must_run(method, PLAN["train"] | options)


def test_the_search_reads_held_out_labels_of_another_seed():
    reported = {tuple(job.prepare) for job in reproduce.jobs(PLAN)}
    for cell in league_search.cells(PLAN, "wine", ("fedem",)):
        jobs = [job for _, jobs in cell.jobs(0) for job in jobs]
        assert len(jobs) == 4 and {job.seed for job in jobs} == {league_search.SEED} and not {100} & {*PLAN["seeds"]}
        assert all("--measure=holdout" in job.train and "--holdout" in job.prepare[0][0] for job in jobs)
        assert not reported & {tuple(job.prepare) for job in jobs}


def test_chosen_settings_have_the_best_score_and_scores_of_all_seeds():
    lines = read_lines(league_search.LOG)
    before, after, choices = league_search.searched()
    assert choices.keys() == {(regime, name) for regime in before.regimes for name in league_search.SECOND}
    for (regime, method), line in choices.items():
        tried = [each for each in lines if (each["regime"], each["method"]) == (regime, method) and "values" in each]
        best = max(tried, key=lambda each: each["score"])
        assert len(tried) == 4 and (best["values"], best["score"]) == (line["chosen"], line["score"])
        scores = [league.rows[regime, method]["kept"] for league in (before, after)]
        assert scores[0].keys() == scores[1].keys() and (bool(line["chosen"]) or scores[0] == scores[1])


def test_the_regret_of_a_choice_is_against_the_best_method_of_the_reference():
    """Regime a of world x: 2 of 10 points behind; b of x: 0; y: 6 behind.  Worlds: 1 and 6 points."""
    table = {("x: a", "m"): 8, ("x: a", "n"): 10, ("x: b", "m"): 5, ("x: b", "n"): 4, ("y: a", "m"): 1, ("y: a", "n"): 7}
    league = SimpleNamespace(methods=["m", "n"], mean=lambda name, regime: table[regime, name])
    assert league_search.regret(league, {"x: a": "m", "x: b": "m", "y: a": "m"}, league) == (3.5, 6)


def test_a_search_of_one_method_keeps_the_stored_lines_of_the_others():
    first, second = PLAN["regime"][0]["name"], PLAN["regime"][1]["name"]
    old = [{"regime": first, "method": name, "score": 1} for name in ("slr", "fedem")] + [{"regime": second, "method": "fedem"}]
    new = [{"regime": first, "method": "fedem", "score": 2}]
    assert league_search._merge(PLAN, old[::-1], new, {(first, "fedem")}) == [old[0], new[0], old[2]]
