"""The sentence at the top of a comparison says what its numbers say, and no more."""

import math

from toy_results import RESULTS, result

from clusterformer.compare.statistics import AVERAGE, summarise
from clusterformer.compare.verdict import explain_test, verdict


def runs(row: str, values: list[float], **changes) -> list:
    return [result(row, "", seed, value, **changes) for seed, value in enumerate(values)]


def test_who_is_ahead_by_how_much_at_what_cost() -> None:
    slow = runs("ours", [0.9, 0.9, 0.9], seconds_a_step=0.4)
    printed = verdict(summarise([*runs("full", [0.8, 0.8, 0.8]), *slow]))
    assert printed == (
        "ours is ahead of full by 0.100 in test/accuracy (0.900 against 0.800), for 2.00 times "
        "the time an epoch and the same memory. Significance cannot be shown with 3 pairs "
        "(p = 0.250, the smallest possible p is 0.250). Seen: 6 runs, 3 seeds, 3 epochs each."
    )


def test_the_baseline_may_be_ahead_and_pairs_may_suffice() -> None:
    printed = verdict(summarise([*runs("full", [0.9] * 6), *runs("ours", [0.8] * 6)]))
    assert printed.startswith("full is ahead of ours by 0.100")
    assert "The difference is significant (p = 0.031, 6 pairs)." in printed
    printed = verdict(summarise([*runs("full", [0.9] * 6), *runs("ours", [0.8, 1.1] * 3)]))
    assert "The difference is not significant" in printed
    assert "on average" in verdict(summarise(RESULTS))


def test_it_claims_nothing_from_two_seeds() -> None:
    printed = verdict(summarise([*runs("full", [0.8]), *runs("ours", [0.9])]))
    assert "not tested: fewer than 3 seeds" in printed
    sets = [
        result(row, column, seed, value)
        for row, value in (("full", 0.8), ("ours", 0.9))
        for column in "abcdef"
        for seed in range(3)
    ]
    few = summarise([run for run in sets if run.seed < 2])
    assert not few.significance
    assert "fewer than 3 seeds" in verdict(few)
    assert "needs 3 seeds" in explain_test(few)
    assert summarise(sets).significance["ours"].num_pairs == 18
    assert "are level" in verdict(summarise([*runs("full", [0.8]), *runs("ours", [0.8])]))
    assert verdict(summarise(runs("a", [0.8]))).startswith("a has test/accuracy 0.800.")
    assert "there is no verdict" in verdict(summarise(runs("a", [math.nan])))
    assert explain_test(summarise(runs("a", [0.8]))).startswith("p: none")


def test_averages_that_differ_by_rounding_are_level() -> None:
    values = {"full": [(0.1, 0.5), (0.2, 0.4)], "ours": [(0.2, 0.4), (0.2, 0.4)]}
    sets = [
        result(row, column, seed, value)
        for row, seeds in values.items()
        for seed, both in enumerate(seeds)
        for column, value in zip("ab", both, strict=True)
    ]
    summary = summarise(sets)
    cells = [summary.cells[row, AVERAGE] for row in ("full", "ours")]
    assert cells[0].values[0] != cells[0].values[1]
    assert [(cell.best, cell.spread) for cell in cells] == [(True, 0.0)] * 2
    assert "full and ours are level on average in test/accuracy (0.300 against" in verdict(summary)


def test_it_does_not_lend_a_pair_the_p_of_another() -> None:
    ours = [result("ours", column, seed, 0.9) for column in "ab" for seed in range(6)]
    theirs = [
        result("theirs", column, seed, 0.88 if seed % 2 else 0.91)
        for column in "ab"
        for seed in range(6)
    ]
    summary = summarise([*(result("full", "a", seed, 0.5) for seed in range(6)), *ours, *theirs])
    assert summary.significance["ours"].p < 0.05  # against full, which has no run in column b
    printed = verdict(summary)
    assert printed.startswith("ours is ahead of theirs on average by 0.005")
    assert "not tested: rows are tested against full. Seen" in printed
    assert "p =" not in printed


def test_rows_with_other_seeds_are_compared_on_those_of_both() -> None:
    folds = [0.8, 0.82, 0.81, 0.83, 0.8, 0.82, 0.6, 0.61, 0.62, 0.6]
    behind = [fold - 0.01 - 0.002 * seed for seed, fold in enumerate(folds[:6])]
    printed = verdict(summarise([*runs("full", folds), *runs("ours", behind)]))
    assert printed.startswith("full is ahead of ours over the 6 runs that both have by 0.015")
    assert "(p = 0.031, 6 pairs)" in printed
    apart = [result("ours", "", seed, 0.9) for seed in (7, 8)]
    assert "no seed in common" in verdict(summarise([*runs("full", folds[:3]), *apart]))


def test_a_seed_outside_the_average_may_have_diverged() -> None:
    runs = [result(row, "A", seed, 0.5) for row in ("full", "ours") for seed in (0, 1)]
    runs += [
        result(row, "B", seed, 0.5 if seed < 2 else math.nan)
        for row in ("full", "ours")
        for seed in (0, 1, 2)
    ]
    told = verdict(summarise(runs))
    assert told.startswith("full or ours has a run without a finite test/accuracy: there is no")


def test_costs_are_those_of_the_runs_compared() -> None:
    def sets(row: str, value: float, seeds: int) -> list:
        short = [result(row, "mr", seed, value, seconds_a_step=0.1) for seed in range(3)]
        return short + [result(row, "20news", seed, value) for seed in range(seeds)]

    printed = verdict(summarise([*sets("full", 0.8, 1), *sets("ours", 0.9, 3)]))
    assert "for the same time an epoch and the same memory" in printed


def test_the_best_of_many_rows_has_to_be_further_ahead() -> None:
    full = runs("full", [0.8] * 6)
    for number, sure in ((1, True), (2, False)):
        rows = [run for i in range(number) for run in runs(f"ours {i}", [0.9 + i / 100] * 6)]
        assert ("is significant" in verdict(summarise([*full, *rows]))) is sure
    printed = verdict(summarise([*full, *rows]))
    assert "p = 0.062 by Bonferroni over 2 rows" in printed
    assert "Significance cannot be shown with 6 pairs" in printed
    assert "the smallest possible p is 0.062" in printed
