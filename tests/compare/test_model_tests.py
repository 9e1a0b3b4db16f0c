"""Columns that test the models of another column: on longer texts, or with other options."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from toy_results import result

import clusterformer
from clusterformer.cli.main import main
from clusterformer.compare.jobs import Job
from clusterformer.compare.model_tests import make_jobs
from clusterformer.compare.plan import Plan, read_plan
from clusterformer.compare.runner import split_into_shards
from clusterformer.compare.statistics import summarise
from clusterformer.errors import InputError

TINY: dict[str, Any] = {
    "config": "partner.yaml",
    "options": {
        "data.num_tokens": 16,
        "data.num_pairs": 32,
        "data.batch_size": 2,
        "data.epoch_steps": 2,
        "data.valid_texts": 2,
        "data.test_texts": 4,
        "model.d_model": 8,
        "model.d_ff": 8,
        "model.attention.num_clusters": 4,
        "model.attention.dense_length": 0,
        "trainer.max_steps": 2,
        "trainer.enable_progress_bar": False,
    },
    "rows": {"coupled": {}, "not coupled": {"model.attention.coupling": False}},
    "columns": {
        "long": {
            "trained_on": "short",
            "data.num_tokens": 64,
            "rows": {"coupled": {"model.attention.block_size": 8}},
        },
        "short": {},
    },
    "seeds": [0, 1],
}


def planned(folder: Path, **changed: Any) -> Plan:
    path = folder / "tiny.yaml"
    content = {key: value for key, value in {**TINY, **changed}.items() if value is not None}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return read_plan(path)


def cells(plan: Plan) -> list[str]:
    return [f"{run.row}/{run.column}/{run.seed}" for run in plan.all_runs]


def test_a_model_is_trained_before_it_is_tested(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert len(plan.runs) == 8
    assert cells(plan.part(rows=["coupled"])) == [
        *("coupled/short/0", "coupled/long/0", "coupled/short/1", "coupled/long/1"),
    ]
    alone = plan.part(rows=["coupled"], columns=["long"], seeds=1)
    assert cells(alone) == ["coupled/short/0", "coupled/long/0"]
    assert [run.column for run in alone.runs] == ["long"]
    long, short = (
        next(run for run in plan.runs if run.column == name) for name in ("long", "short")
    )
    assert long.trained == short
    assert long.arguments() == ["--data.num_tokens=64", "--model.attention.block_size=8"]
    other = next(run for run in plan.runs if (run.row, run.column) == ("not coupled", "long"))
    assert other.arguments() == ["--data.num_tokens=64"]


def test_models_of_a_first_part_may_be_tested_and_a_simple_method_has_none(tmp_path: Path) -> None:
    rows = {"a": {}, "majority": {"method": "majority label"}}
    columns = {"long": {"trained_on": "short"}, "alone": {}}
    plan = planned(tmp_path, rows=rows, columns=columns, first={"short": {}}, seeds=[0])
    assert cells(plan) == ["a/short/0", "a/long/0", "a/alone/0", "majority/alone/0"]


def test_each_shard_tests_the_models_that_it_trains(tmp_path: Path) -> None:
    first = {"begun": {}}
    columns = {"short": {"after": "begun"}, "long": {"trained_on": "short"}}
    jobs = make_jobs(tmp_path, planned(tmp_path, first=first, columns=columns).all_runs)
    assert len(jobs) == 12
    for shard in split_into_shards(jobs, 4):
        assert [job.planned.column for job in shard] == ["begun", "short", "long"]
        assert len({(job.planned.row, job.planned.seed) for job in shard}) == 1


@pytest.mark.usefixtures("forked")
def test_the_table_has_what_test_measures_and_nothing_is_trained_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path, seeds=[0])
    command = ["compare", "tiny.yaml", "--rows", "coupled"]
    assert main([*command, "--dry-run"]) == 0
    assert (
        "0 of 2 are finished; 1 run to train, and 1 further test of models\n"
        in capfd.readouterr().out
    )
    assert main([*command, "--columns", "long"]) == 0
    printed = capfd.readouterr()
    assert "1 run to train, and 1 further test of models;" in printed.out
    assert "short" not in Path("comparisons/tiny/table.md").read_text()
    assert main(command) == 0
    assert "to train" not in capfd.readouterr().out
    head = Path("comparisons/tiny/table.md").read_text().splitlines()[0]
    assert head.startswith("|  | long | short | average | p | keys seen |")

    jobs = make_jobs(Path("comparisons/tiny"), plan.part(["coupled"]).all_runs)
    short, long = (job.result for job in jobs)
    assert short
    assert long
    model = clusterformer.load(jobs[0].run.folder)
    options = ["--data.num_tokens=64", "--model.attention.block_size=8"]
    out = tmp_path / "by hand.json"
    assert main(["test", f"--checkpoint={model.path}", *options, f"--out={out}"]) == 0
    by_hand = json.loads(out.read_text())["results"]
    assert {name: long.measures[name] for name in by_hand} == by_hand
    assert long.measures["test/keys_seen"] != short.measures["test/keys_seen"]
    assert long.measures["val/accuracy"] == short.measures["val/accuracy"]
    assert long.config["data.num_tokens"] == 64
    assert long.config["model.attention.num_clusters"] == 4
    page = Path("comparisons/tiny/index.html").read_text()
    assert "1 run, 1 seed" in page


@pytest.mark.usefixtures("forked")
def test_a_test_that_is_damaged_or_older_than_its_model_is_made_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = planned(tmp_path, seeds=[0])
    command = ["compare", "tiny.yaml", "--rows", "coupled"]
    assert main(command) == 0
    trained, tested = make_jobs(Path("comparisons/tiny"), plan.part(["coupled"]).all_runs)
    file = tested.folder / "test.json"
    whole = file.read_text()
    for damaged in (whole[: len(whole) // 2], '{"results": {"test/loss": "low"}}', "[]"):
        file.write_text(damaged)
        assert trained.finished
        assert not tested.finished
        assert main(command) == 0
        assert json.loads(file.read_text())["results"] == json.loads(whole)["results"]
    assert main([*command, "--dry-run"]) == 0
    assert capfd.readouterr().out.endswith("2 of 2 are finished\n")
    os.utime(file, (1e9, 1e9))
    assert not tested.finished
    assert main([*command, "--dry-run"]) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("1 of 2 are finished; 1 further test of models")
    assert main([*command, "--dry-run"]) == 0
    assert "to do            1,708 parameters  coupled on long" in capfd.readouterr().out
    assert main(command) == 0
    assert tested.finished


def test_tests_of_one_model_are_one_pair(tmp_path: Path) -> None:
    """Three tests of three models are no nine independent differences."""
    results = [
        result(row, column, seed, value + (row == "b") * seed / 10, trained_on=trained)
        for seed in range(1, 4)
        for column, trained, value in (("16", None, 0.5), ("64", "16", 0.6), ("256", "16", 0.3))
        for row in ("a", "b")
    ]
    summary = summarise(results)
    assert summary.significance["b"].num_pairs == 3
    assert summary.significance["b"].p == 0.25
    assert summary.num_runs == 6
    separate = [result(r.row, r.column, r.seed, r.measures["test/accuracy"]) for r in results]
    assert summarise(separate).significance["b"].num_pairs == 9


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"long": {"trained_on": "short"}},
            ":21: columns: long: trained_on must name what models are trained on, got 'short'; "
            "there is ",
        ),
        ({"a": {"trained_on": ["b"]}, "b": {}}, "got ['b']; there is b"),
        ({"a": {"trained_on": "b"}, "b": {"trained_on": "c"}, "c": {}}, "got 'b'; there is c"),
        (
            {"a": {"trained_on": "b", "config": "partner.yaml"}, "b": {}},
            "columns: a: config: its models are only tested",
        ),
        (
            {"a": {"trained_on": "b", "after": "b"}, "b": {}},
            "columns: a: after: its models are only tested",
        ),
    ],
)
def test_what_is_wrong_gets_one_line(columns: dict, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        planned(tmp_path, columns=columns)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_a_column_tests_models_of_another(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows: only a column can test models of another"):
        planned(tmp_path, rows={"a": {"trained_on": "short"}})


def test_a_test_of_another_training_is_refused(tmp_path: Path) -> None:
    columns = {"one": {}, "two": {"data.num_tokens": 32}, "long": {"trained_on": "one"}}
    run = planned(tmp_path, columns=columns, seeds=[0]).part(["coupled"], ["long"]).runs[0]
    Job(tmp_path, run).record()
    columns["long"] = {"trained_on": "two"}
    run = planned(tmp_path, columns=columns, seeds=[0]).part(["coupled"], ["long"]).runs[0]
    with pytest.raises(InputError, match=r"of other trained, \S+one\S+ instead of \S+two"):
        Job(tmp_path, run).refuse_other()
