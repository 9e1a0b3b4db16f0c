"""The sentence at the top of a comparison says what its numbers say, and no more."""

import math

from toy_results import RESULTS, result

from clusterformer.compare.statistics import summarise
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
