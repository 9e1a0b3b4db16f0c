"""The numbers of the table, against numbers worked out by hand."""

import csv
import math
from typing import Any

import pytest
from toy_results import RESULTS, result

from clusterformer.compare.configs import differences, flatten
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.results import Result
from clusterformer.compare.statistics import AVERAGE, summarise
from clusterformer.compare.tables import format_number, latex, markdown, runs_csv, text
from clusterformer.errors import InputError
from clusterformer.tasks.speech import SpeechRecognition
from clusterformer.training.monitoring import mode_of


def test_mean_spread_average_and_best() -> None:
    summary = summarise(RESULTS)
    assert summary.metric == "test/accuracy"
    assert summary.columns == ["MR", "CR", AVERAGE]
    full, ours = summary.cells["full", "MR"], summary.cells["ours", "MR"]
    assert full.mean == pytest.approx(0.8)
    assert full.spread == pytest.approx(0.1)
    assert (full.best, ours.best) == (False, True)
    average = summary.cells["ours", AVERAGE]
    assert average.values == pytest.approx([0.65, 0.7, 0.9])
    assert summary.costs["ours"]["epochs to converge"] == 2


def test_epochs_are_counted_by_steps_however_often_a_run_validates() -> None:
    quarters = [(4, 0.1), (9, 0.3), (14, 0.5), (19, 0.5)]  # of an epoch of 20 steps
    run = result("full", "", 0, 0.5, curve=quarters, steps_an_epoch=20, epochs=1)
    assert run.epochs_to_converge == 0.75
    begun = result("full", "", 0, 0.5, curve=[(19, 0.1), (22, 0.5)], steps_an_epoch=20, epochs=2)
    assert begun.seconds_an_epoch == pytest.approx(20 * 0.2)
    assert begun.epochs_to_converge == 1.15
    curve = [(9, 0.90), (19, 0.989), (29, 0.991), (39, 1.0)]  # 1 % below the best is close
    assert result("ours", "MR", 0, 1.0, curve=curve).epochs_to_converge == 3
    falling = result("ours", "MR", 0, 1.0, mode="min", curve=[(9, 2.0), (19, 1.005), (29, 1.0)])
    assert falling.epochs_to_converge == 2


def test_the_test_says_what_tokens_saw_and_else_the_validation() -> None:
    seen = {"val/keys_seen": 0.25, "test/keys_seen": 0.5}
    assert result("ours", "MR", 0, 0.9, measures=seen).keys_seen == 0.5
    del seen["test/keys_seen"]
    assert result("ours", "MR", 0, 0.9, measures=seen).keys_seen == 0.25
    assert result("ours", "MR", 0, 0.9, measures={}).keys_seen is None


def test_fewer_errors_are_better_whether_or_not_they_chose_the_checkpoint() -> None:
    runs = [
        result(row, "", 0, 0.5, measures={"test/accuracy": 0.5, "test/word_error_rate": rate})
        for row, rate in (("full", 0.1), ("ours", 0.4))
    ]
    assert summarise(runs, "test/word_error_rate").cells["full", ""].best
    for name, metric in SpeechRecognition("fsdd", units="character").metrics().items():
        assert mode_of(f"test/{name}") == ("max" if metric.higher_is_better else "min")


def test_further_measures_stand_beside_the_costs() -> None:
    runs = [
        result(row, column, 0, 0.5, measures={"test/accuracy": 0.5, "test/mrr": value})
        for row, column, value in (("a", "x", 0.2), ("a", "y", 0.4))
    ]
    runs.append(result("b", "x", 0, 0.5, measures={"test/accuracy": 0.5}))
    summary = summarise(runs, also=["test/mrr"])
    assert summary.costs["a"]["mrr"] == pytest.approx(0.3)
    assert "mrr" not in summary.costs["b"]
    assert summary.cost_names[0] == "mrr"
    assert not summary.notes


def test_a_further_measure_that_no_run_has_is_told() -> None:
    summary = summarise([result("a", "", 0, 0.5)], also=["test/mrr"])
    assert summary.notes == ["also: no run has 'test/mrr'; there is test/accuracy, val/accuracy"]


def test_a_measure_of_test_and_of_validation_are_two() -> None:
    measures = {"test/accuracy": 0.5, "test/mrr": 0.2, "val/mrr": 0.4}
    costs = summarise([result("a", "", 0, 0.5, measures=measures)], also=[*measures][1:]).costs["a"]
    assert (costs["test/mrr"], costs["val/mrr"]) == (0.2, 0.4)


def test_a_baseline_without_a_run_is_named() -> None:
    summary = summarise(RESULTS, baseline="gone")
    assert summary.baseline == summary.rows[0]
    assert summary.notes == [
        f"gone has no finished run; the others are compared with {summary.rows[0]}"
    ]


def test_less_is_better_where_it_is() -> None:
    runs = [
        result(row, "", 0, 0.0, measures={"val/loss": loss}, monitor="val/loss", mode="min")
        for row, loss in (("a", 1.0), ("b", 2.0))
    ]
    summary = summarise(runs)
    assert (summary.metric, summary.mode) == ("val/loss", "min")
    assert summary.cells["a", ""].best
    assert not summary.cells["b", ""].best
    with pytest.raises(InputError, match="a, seed 0 has no 'x'; there is val/loss"):
        summarise(runs, "x")


def test_columns_may_have_measures_of_their_own() -> None:
    ranked = {"measures": {"test/map": 0.6, "val/map": 0.5}, "monitor": "val/map"}
    guessed = {"measures": {"test/accuracy": 0.8}, "monitor": "val/accuracy"}
    runs = [result("a", "WikiQA", 0, 0.0, **ranked), result("a", "CR", 0, 0.0, **guessed)]
    assert text(summarise(runs)).splitlines()[0].split()[:5] == [
        "WikiQA", "map", "CR", "accuracy", "average",
    ]  # fmt: skip
    assert summarise(runs).cells["a", AVERAGE].mean == pytest.approx(0.7)
    runs.append(
        result("a", "text", 0, 0.0, measures={"val/loss": 1.0}, monitor="val/loss", mode="min")
    )
    with pytest.raises(InputError, match="more is better in some and less in others of test/map"):
        summarise(runs)


def test_significance_is_of_paired_differences() -> None:
    summary = summarise(RESULTS, baseline="full")
    assert "full" not in summary.significance
    test = summary.significance["ours"]
    # of {1, 1, 1, 3} the signs ++++ and ---- alone have the sum 6; the two zeros do not matter
    assert test == (2 / 16, 6)
    assert "0.125 (n = 6)" in text(summary)


def test_a_missing_run_leaves_a_hole_and_no_average() -> None:
    summary = summarise([r for r in RESULTS if (r.row, r.column) != ("ours", "CR")])
    assert ("ours", AVERAGE) not in summary.cells
    assert text(summary).splitlines()[2].split()[4:6] == ["-", "-"]


def test_nan_and_infinity_are_shown_and_never_best() -> None:
    broken = [result("nan", "", seed, math.nan) for seed in range(3)]
    broken += [result("inf", "", seed, math.inf) for seed in range(3)]
    fine = [result("fine", "", seed, 0.5) for seed in range(3)]
    summary = summarise([*broken, *fine], baseline="fine")
    assert [row for (row, _), cell in summary.cells.items() if cell.best] == ["fine"]
    assert not summary.significance
    assert "nan ± nan" in text(summary)
    assert "inf ± nan" in text(summary)


def test_planned_runs_without_a_result_are_named() -> None:
    planned = [PlannedRun("b", "MR", seed, {}, ()) for seed in range(7)]
    told = "not finished, and not in the table: b on MR, seed 0; b on MR, seed 1"
    assert summarise(RESULTS, unfinished=planned[:2]).notes == [told]
    summary = summarise(RESULTS, unfinished=planned)
    assert summary.notes[0].endswith("b on MR, seed 4; and 2 more")
    assert summary.notes[0] in markdown(summary)


def test_runs_of_one_cell_that_are_no_repetitions_are_named() -> None:
    options = [
        {"model.lr": lr, "data.fold": seed, "seed_everything": seed, "runs": f"x/{seed}"}
        for seed, lr in enumerate((0.1, 0.1, 0.2))
    ]
    runs = [result("a", "MR", seed, 0.5, config=config) for seed, config in enumerate(options)]
    assert summarise(runs[:2]).notes == []  # the fold follows the seed
    assert summarise(runs).notes == ["a on MR: its runs differ in model.lr (0.1, 0.2)"]


def test_rows_on_other_data_in_one_column_are_named() -> None:
    def run(row: str, length: int, seed: int = 0, **config: Any) -> Result:
        options = {"data.num_tokens": length, "data.root": row, **config}
        return result(row, "partner", seed, 0.5, config=options)

    assert summarise([run("a", 256), run("b", 256, model=1)]).notes == []
    assert summarise([run("a", 256), run("b", 128), run("c", 64, method="SVM")]).notes == [
        "partner: its rows differ in data.num_tokens (128, 256); so they may not be comparable"
    ]


def test_rows_that_are_not_tested_on_the_same_examples_are_named() -> None:
    def run(row: str, column: str, limit: float | None, **config: Any) -> Result:
        options = {"trainer.limit_test_batches": limit, "model": row, **config}
        return result(row, column, 0, 0.5, config=options)

    for limit in (None, 1.0):
        rows = [run("a", "MR", limit), run("SVM", "MR", limit, method="SVM")]
        assert summarise(rows).notes == []
    told = "simple methods are tested on all examples, networks on those of "
    columns = [run("a", "CR", None), run("SVM", "CR", None, method="SVM")]
    for limit in (1, 64, 0.5):
        rows = [run("a", "MR", limit), run("b", "MR", limit), run("SVM", "MR", None, method="SVM")]
        expected = f"MR: {told}trainer.limit_test_batches ({limit})"
        assert summarise([*rows, *columns]).notes == [expected]
        assert summarise([*rows[:2], *columns[1:]]).notes == []
    assert summarise([run("a", "", 64), run("b", "", None)]).notes == [
        "the rows differ in trainer.limit_test_batches (None, 64); so they may not be comparable"
    ]


def test_two_rows_with_the_same_options_are_named() -> None:
    def run(row: str, column: str, seed: int, shift: bool, **config: Any) -> Result:
        options = {"model.shift": shift, "seed_everything": seed, "runs": row, **config}
        return result(row, column, seed, 0.5, config=options)

    others = [run("c", "MR", 0, True), run("a", "CR", 0, False)]
    methods = [run(row, "MR", 0, False, method=row) for row in ("SVM", "majority")]
    rows = [run(row, "MR", seed, False) for row in "ab" for seed in (0, 1)]
    told = "a on MR and b on MR have the same options, so they are one model"
    assert summarise([*rows, *others, *methods]).notes == [told]
    assert summarise([*rows[:2], *others, *methods]).notes == []


def test_a_second_run_of_a_seed_is_left_out_and_named() -> None:
    runs = [result("a", "", 0, value, peak_mib=peak) for value, peak in ((0.5, 1.0), (0.7, 3.0))]
    summary = summarise([*runs, result("a", "", 1, 0.9, peak_mib=5.0)])
    assert summary.notes == ["left out: a has another run of seed 0"]
    assert summary.cells["a", ""].values == [0.7, 0.9]
    assert summary.costs["a"]["peak MiB"] == 4.0
    assert len(summary.results) == 2


def test_what_a_token_sees_is_a_column_and_seeing_all_is_noted() -> None:
    runs = [
        result(name, column, seed, 0.5, measures={"test/accuracy": 0.5, "test/keys_seen": seen},
               config={"model.attention": kind})
        for name, kind, column, seen in (
            ("full", "FullAttention", "MR", 1.0),
            ("ours", "NeuralClusteringAttention", "MR", 1.0),
            ("ours", "NeuralClusteringAttention", "20news", 0.25),
        )
        for seed in range(2)
    ]  # fmt: skip
    runs.append(result("of old", "MR", 0, 0.5))
    summary = summarise(runs)
    assert summary.costs["ours"]["keys seen"] == pytest.approx(0.625)
    assert summary.notes == [
        "ours on MR: every token saw its whole text; at these lengths nothing was selected"
    ]
    for form in (text(summary), markdown(summary), latex(summary)):
        assert "keys seen" in form
    table, _, notes = markdown(summary).partition("\n\n")
    assert notes == f"- {summary.notes[0]}\n"
    head, *lines = (line.split("|") for line in table.splitlines())
    assert lines[-1][[cell.strip() for cell in head].index("keys seen")].strip() == "-"
    assert "test/keys_seen" in runs_csv(summary).splitlines()[0]


def test_an_encoder_that_selects_nothing_is_noted_beside_a_decoder_that_selects() -> None:
    def run(decoder: str, encoder_sees: float, decoder_sees: float) -> list[str]:
        measures = {"test/accuracy": 0.5, "test/keys_seen": (encoder_sees + decoder_sees) / 2}
        measures |= {f"test/layer{layer}/keys_seen": encoder_sees for layer in (1, 2)}
        measures |= {f"test/decoder/layer{layer}/keys_seen": decoder_sees for layer in (1, 2)}
        config = {"model.attention": "ReformerAttention", "model.decoder_attention": decoder}
        return summarise([result("a", "MT", 0, 0.5, measures=measures, config=config)]).notes

    of_encoder = (
        "a on MT: every token of the encoder saw its whole text; there nothing was selected"
    )
    assert run("ReformerAttention", 1.0, 0.5) == [of_encoder]
    assert run("FullAttention", 1.0, 1.0) == [of_encoder]
    whole = "a on MT: every token saw its whole text; at these lengths nothing was selected"
    assert run("ReformerAttention", 1.0, 1.0) == [whole]
    assert run("ReformerAttention", 0.9, 0.5) == []


def test_every_form_of_the_table_holds_the_numbers() -> None:
    summary = summarise(RESULTS, paper={"ours": {"MR": 0.777}})
    for form in (text(summary), markdown(summary), latex(summary)):
        assert "0.800" in form
        assert "0.777" in form
    assert "**0.900 ± 0.100**" in markdown(summary)
    assert r"\textbf{0.900 $\pm$ 0.100}" in latex(summary)
    lines = list(csv.DictReader(runs_csv(summary).splitlines()))
    assert len(lines) == len(RESULTS)
    assert (lines[0]["commit"], lines[0]["command"]) == ("abc", "clusterformer fit")
    assert lines[0]["versions"] == "torch 2.13"


def test_names_with_characters_of_latex_are_text_there() -> None:
    name = r"[a] k=5 \ {b_1} ~ 50% & $x^2$ < y|z #"
    form = latex(summarise([result(name, "", 0, 0.5)]))
    expected = (
        r"{[}a] k=5 \textbackslash{} \{b\_1\} \textasciitilde{} 50\% \& "
        r"\$x\textasciicircum{}2\$ $<$ y$|$z \# & \textbf{0.500}"
    )
    assert form.splitlines()[4].startswith(expected)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.12345, "0.123"), (12.345, "12.35"), (1234.5, "1,234"), (2.5e6, "2.50 M"),
        (1e-4, "0.0001"), (-0.00034567, "-0.00035"), (3e-5, "3e-05"), (0.0, "0"),
    ],
)  # fmt: skip
def test_numbers_have_few_digits(value: float, told: str) -> None:
    assert format_number(value) == told


def test_configurations_differ_by_dotted_keys() -> None:
    tree = {"model": {"attention": {"class_path": "a.b.Full", "init_args": {"k": 3}}, "lr": 1}}
    flat = flatten(tree)
    assert flat == {"model.attention": "Full", "model.attention.k": 3, "model.lr": 1}
    assert differences([flat, flat | {"model.lr": 2}]) == {"model.lr": [1, 2]}


def test_costs_are_means_of_columns_however_many_seeds_each_has() -> None:
    runs = [result("full", "mr", seed, 0.8, seconds_a_step=0.1) for seed in range(3)]
    runs += [result("full", "20news", 0, 0.8, seconds_a_step=0.9)]
    summary = summarise(runs)
    steps = runs[0].steps_an_epoch
    assert summary.costs["full"]["seconds an epoch"] == pytest.approx(0.5 * steps)
