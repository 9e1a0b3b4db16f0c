"""`choose` of a comparison: validation chooses among values, and the test has no part in it."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from toy_results import result

from clusterformer.compare.choosing import choose_by_validation
from clusterformer.compare.page import page
from clusterformer.compare.plan import read_plan
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.results import Result
from clusterformer.compare.statistics import summarise
from clusterformer.errors import InputError

CONTENT = {
    "config": "partner.yaml",
    "rows": {"full": {"model.attention": "FullAttention"}, "ours": {}},
    "columns": {"short": {"data.num_tokens": 32}},
    "choose": {"model.lr": [0.1, 0.2]},
}


def write(folder: Path, content: dict) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def finished(row: str, seed: int, choice: str, val: float, test: float) -> tuple:
    measures = {"val/accuracy": val, "test/accuracy": test}
    made = result(row, "c", seed, test, measures=measures)
    return PlannedRun(row, "c", seed, {}, (), choice), replace(made, monitor="val/accuracy")


def test_every_choice_is_trained_under_the_name_of_its_row(tmp_path: Path) -> None:
    runs = read_plan(write(tmp_path, CONTENT)).runs
    assert [(run.row, run.choice) for run in runs[:2]] == [("full", "lr=0.1"), ("full", "lr=0.2")]
    assert [run.options["model.lr"] for run in runs] == [0.1, 0.2, 0.1, 0.2]
    assert len({run.subfolder for run in runs}) == 4
    assert runs[1].name == "full, lr=0.2 on short, seed 0"


def test_a_simple_method_has_no_validation_and_so_no_choice(tmp_path: Path) -> None:
    rows = {**CONTENT["rows"], "SVM": {"method": "TF-IDF + linear SVM"}}
    runs = read_plan(write(tmp_path, {**CONTENT, "rows": rows})).runs
    (run,) = [run for run in runs if run.row == "SVM"]
    assert (run.choice, "model.lr" in run.options) == ("", False)
    assert len(runs) == 5
    kept, choices = choose_by_validation([(run, result("SVM", "short", 0, 0.7))])
    assert len(kept) == 1
    assert not choices


def test_the_best_in_validation_is_kept_and_not_the_best_in_the_test() -> None:
    found = [
        finished("a", 0, "lr=1", val=0.9, test=0.1), finished("a", 1, "lr=1", val=0.7, test=0.2),
        finished("a", 0, "lr=2", val=0.6, test=0.8), finished("a", 1, "lr=2", val=0.8, test=0.9),
        finished("b", 0, "lr=1", val=0.2, test=0.9), finished("b", 0, "lr=2", val=0.3, test=0.5),
    ]  # fmt: skip
    kept, choices = choose_by_validation(found)
    assert kept == [found[0][1], found[1][1], found[5][1]]
    assert [(c.cell, c.chosen, c.missing) for c in choices] == [
        ("a on c", "lr=1", []), ("b on c", "lr=2", [])
    ]  # fmt: skip
    assert choices[0].scores == {"lr=1": pytest.approx(0.8), "lr=2": pytest.approx(0.7)}


def test_only_seeds_that_all_choices_have_decide() -> None:
    found = [
        finished("a", 0, "lr=1", val=0.5, test=0.5), finished("a", 1, "lr=1", val=0.9, test=0.5),
        finished("a", 0, "lr=2", val=0.6, test=0.5),
    ]  # fmt: skip
    assert choose_by_validation(found)[0] == [found[2][1]]


def test_a_choice_without_a_finished_run_is_not_chosen() -> None:
    last = finished("a", 0, "lr=2", val=0.6, test=0.5)
    unfinished = PlannedRun("a", "c", 0, {}, (), "lr=1"), None
    for found in ([unfinished, last], [last, unfinished]):
        kept, (choice,) = choose_by_validation(found)
        assert kept == [last[1]]
        assert (choice.chosen, choice.missing) == ("lr=2", ["lr=1"])


def test_lower_is_better_where_the_monitor_is_a_loss_and_nan_is_never_chosen() -> None:
    def of(value: float) -> Result:
        made = result("a", "c", 0, 1.0, measures={"val/loss": value})
        return replace(made, monitor="val/loss", mode="min")

    choices = {"lr=1": of(float("nan")), "lr=2": of(2.0), "lr=3": of(3.0)}
    found = [(PlannedRun("a", "c", 0, {}, (), name), r) for name, r in choices.items()]
    kept, (choice,) = choose_by_validation(found)
    assert kept == [choices["lr=2"]]
    assert (choice.measure, choice.scores["lr=3"]) == ("val/loss", 3.0)


def test_a_choice_without_a_finished_run_is_named() -> None:
    found = [finished("a", 0, "lr=1", 0.5, 0.5), (PlannedRun("a", "c", 0, {}, (), "lr=2"), None)]
    kept, (choice,) = choose_by_validation(found)
    assert kept == [found[0][1]]
    assert choice.missing == ["lr=2"]


def test_the_page_shows_every_choice_and_the_chosen_one_bold() -> None:
    found = [finished("a", 0, "lr=1", 0.9, 0.1), finished("a", 0, "lr=2", 0.625, 0.8)]
    found.append((PlannedRun("a", "c", 0, {}, (), "lr=3"), None))
    kept, choices = choose_by_validation(found)
    shown = page(summarise(kept, choices=choices), "title", "command")
    assert "<td><b>0.900</b></td><td>0.625</td><td>-</td>" in shown
    assert "Chosen by validation" not in page(summarise(kept), "title", "command")


def test_options_of_one_row_in_one_column_go_over_both(tmp_path: Path) -> None:
    column = {"data.num_tokens": 32, "model.d_model": 16, "rows": {"ours": {"model.d_model": 8}}}
    content = {**CONTENT, "columns": {"short": column, "long": {"data.num_tokens": 64}}}
    runs = read_plan(write(tmp_path, {**content, "grid": {"model.dropout": [0.1]}})).runs
    widths = {(run.row, run.column): run.options.get("model.d_model") for run in runs}
    assert widths == {
        ("full, dropout=0.1", "short"): 16, ("ours, dropout=0.1", "short"): 8,
        ("full, dropout=0.1", "long"): None, ("ours, dropout=0.1", "long"): None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"theirs": {"model.lr": 1}}, "columns: short: no row 'theirs'; there is full, ours"),
        ({"ours": 3}, "columns: short: ours: must be dotted keys of fit"),
        ({"ours": {"config": "mr.yaml"}}, "columns: short: ours: must be dotted keys of fit"),
        ([1], r"columns: short: rows must be row: dotted keys, got \[1\]"),
    ],
)
def test_wrong_options_of_a_row_in_a_column_are_refused(tmp_path, rows, message) -> None:
    content = {**CONTENT, "columns": {"short": {"rows": rows}}}
    with pytest.raises(InputError, match=rf"plan.yaml:\d+: {message}"):
        read_plan(write(tmp_path, content))
