"""First parts: what is trained before, and the runs that go on from it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from clusterformer.cli.main import main
from clusterformer.compare.jobs import Job, find_run
from clusterformer.compare.plan import Plan, read_plan
from clusterformer.compare.runner import split_into_shards
from clusterformer.compare.sweep import sweep
from clusterformer.errors import InputError

TINY: dict[str, Any] = {
    "config": "partner.yaml",
    "options": {
        "data.batch_size": 2,
        "data.epoch_steps": 2,
        "data.valid_texts": 2,
        "data.test_texts": 2,
        "model.d_model": 8,
        "model.d_ff": 8,
        "model.attention.num_clusters": 2,
        "trainer.max_steps": 2,
        "trainer.enable_progress_bar": False,
    },
    "rows": {"coupled": {}, "not coupled": {"model.attention.coupling": False}},
    "first": {"short": {"data.num_tokens": 8}},
    "columns": {
        "long": {"data.num_tokens": 16, "after": "short", "model.lr": 1e-30},
        "longer": {"data.num_tokens": 32, "after": "short"},
        "alone": {"data.num_tokens": 16},
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


def test_each_first_part_is_trained_once_and_before_what_goes_on_from_it(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert {run.column for run in plan.runs} == {"long", "longer", "alone"}
    assert cells(plan.part(rows=["coupled"])) == [
        *("coupled/short/0", "coupled/long/0", "coupled/longer/0", "coupled/alone/0"),
        *("coupled/short/1", "coupled/long/1", "coupled/longer/1", "coupled/alone/1"),
    ]
    assert cells(plan.part(columns=["alone"], seeds=1)) == [
        "coupled/alone/0",
        "not coupled/alone/0",
    ]
    assert cells(plan.part(columns=["long"], rows=["coupled"], seeds=1)) == [
        *("coupled/short/0", "coupled/long/0"),
    ]


def test_rows_whose_first_parts_have_the_same_options_share_one(tmp_path: Path) -> None:
    columns = {"long": {"after": "short", "rows": {"b": {"model.attention.look_ahead": 0}}}}
    rows = {"a": {}, "b": {}, "c": {"model.attention.coupling": False}}
    plan = planned(tmp_path, rows=rows, columns=columns)
    assert cells(plan.part(seeds=1)) == [
        "a/short/0",
        "a/long/0",
        "b/long/0",
        "c/short/0",
        "c/long/0",
    ]
    assert cells(plan.part(rows=["b"], seeds=1)) == ["a/short/0", "b/long/0"]


def test_a_first_part_has_what_its_run_has_of_row_and_choice(tmp_path: Path) -> None:
    rows = {"a": {"model.dropout": 0.1, "model.init_from": "there"}, "b": {"method": "majority"}}
    first = {"short": {"rows": {"a": {"model.d_ff": 4}}, "trainer.max_steps": 9}}
    plan = planned(
        tmp_path,
        rows=rows,
        first=first,
        columns={"long": {"after": "short"}},
        choose={"model.lr": [1, 2]},
        seed_options=["data.fold"],
    )
    ours = next(run for run in plan.runs if (run.choice, run.seed) == ("lr=2", 1))
    assert ours.after
    expected = {"model.dropout": 0.1, "model.lr": 2, "data.fold": 1, "model.d_ff": 4}
    assert expected.items() <= ours.after.options.items()
    assert ours.after.options["trainer.max_steps"] == 9
    assert ours.after.options["model.init_from"] == "there"
    assert ours.options["trainer.max_steps"] == 2
    assert "model.init_from" not in ours.options
    assert (ours.after.row, ours.after.seed, ours.after.choice) == ("a", 1, "lr=2")
    assert [run.after for run in plan.runs if run.row == "b"] == [None, None]


@pytest.mark.usefixtures("forked")
def test_a_run_goes_on_from_the_weights_of_its_row_and_seed(tmp_path: Path, capfd) -> None:
    planned(tmp_path)
    command = ["compare", "tiny.yaml", "--columns", "long", "--rows", "coupled", "--jobs", "2"]
    assert main(command) == 0
    printed = capfd.readouterr()
    assert "4 runs to train" in printed.out
    assert "differ in" not in printed.err
    assert "short" not in Path("comparisons/tiny/table.md").read_text()
    assert len(Path("comparisons/tiny/runs.csv").read_text().splitlines()) == 3
    for run in planned(tmp_path).part(["coupled"], ["long"]).runs:
        job = Job(Path("comparisons/tiny"), run)
        begin, end = (torch.load(found.run.chosen)["state_dict"] for found in (job.before, job))
        shared = [name for name in begin if "layers" in name and begin[name].is_floating_point()]
        assert len(shared) > 10
        for name in shared:
            torch.testing.assert_close(end[name], begin[name])
    assert main([*command, "--dry-run"]) == 0
    assert "4 of 4 are finished" in capfd.readouterr().out
    assert main(command) == 0
    assert "to train" not in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_first_part_that_fails_is_the_reason_of_those_behind_it(tmp_path: Path, capfd) -> None:
    first = {"short": {"data.num_tokens": 8, "rows": {"coupled": {"model.num_heads": 3}}}}
    planned(tmp_path, first=first, seeds=[0])
    assert main(["compare", "tiny.yaml", "--columns", "long"]) == 2
    told = capfd.readouterr().err
    assert "2 of 4 runs failed: coupled on short, seed 0: num_heads must divide d_model" in told
    assert "coupled on long, seed 0: goes on from coupled on short, seed 0, which is not" in told
    assert "not coupled" in Path("comparisons/tiny/table.md").read_text()
    assert find_run(Path("comparisons/tiny/coupled/long/seed-0")) is None


def test_a_run_of_another_first_part_is_refused(tmp_path: Path) -> None:
    (run,) = planned(tmp_path).part(["coupled"], ["long"], 1).runs
    Job(tmp_path, run).record()
    first = {"short": {}, "other": {}}
    columns = {"long": {**TINY["columns"]["long"], "after": "other"}, "x": {"after": "short"}}
    (run,) = planned(tmp_path, first=first, columns=columns).part(["coupled"], ["long"], 1).runs
    with pytest.raises(InputError, match=r"of other after, \S+short\S+ instead of \S+other\S+;"):
        Job(tmp_path, run).refuse_other()
    columns = {"long": {"data.num_tokens": 16, "model.lr": 1e-30}}
    (run,) = planned(tmp_path, first=None, columns=columns).part(["coupled"], None, 1).runs
    with pytest.raises(InputError, match=r"of other after, \S+short\S+ instead of none;"):
        Job(tmp_path, run).refuse_other()


def test_a_shard_has_the_first_parts_of_its_runs(tmp_path: Path) -> None:
    jobs = [Job(tmp_path, run) for run in planned(tmp_path).all_runs]
    for number in (1, 2, 3, 4, 20):
        shards = split_into_shards(jobs, number)
        assert sorted(j.folder for shard in shards for j in shard) == sorted(j.folder for j in jobs)
        for shard in shards:
            seen: set[Path] = set()
            for job in shard:
                seen.add(job.folder)
                assert not job.before or job.before.folder in seen
    alone = [job for job in jobs if job.planned.column == "alone"]
    assert split_into_shards(alone, 3) == [alone[::3], alone[1::3], alone[2::3]]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"first": None},
            ":19: columns: long: after must name a first part, got 'short'; there is",
        ),
        ({"first": {"short": {}, "other": {}}}, "first: no column stands after 'other'"),
        ({"first": {"short": {"after": "short"}}}, "first: only a column can stand after a first"),
        ({"rows": {"a": {"after": "short"}}}, "rows: only a column can stand after a first part"),
        ({"first": {"short": {}, "alone": {}}}, "first: alone is the name of a column too"),
        ({"first": {"short": {"rows": {"z": {}}}}}, "first: short: no row 'z'; there is coupled"),
        ({"first": 3}, "first has the wrong form: 3"),
        ({"columns": {"long": {"after": ["short"]}}}, "must name a first part, got ['short']"),
        (
            {"columns": {"long": {"after": "short", "model.init_from": "x"}}},
            "columns: long: after and model.init_from are two starts",
        ),
    ],
)
def test_what_is_wrong_gets_one_line(changed: dict, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        planned(tmp_path, **changed)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sweep_has_no_first_parts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a sweep has neither first parts"):
        sweep(planned(tmp_path), "tiny")
