"""What a comparison's file means, and what is wrong with it, in one line."""

from pathlib import Path

import pytest
import yaml

from clusterformer.cli.options import Options
from clusterformer.compare.plan import read_plan
from clusterformer.compare.sweep import sweep
from clusterformer.errors import InputError
from clusterformer.training.config_files import comparisons


def write(path: Path, content: dict) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_rows_columns_grid_and_seeds_multiply(tmp_path: Path) -> None:
    plan = read_plan(
        write(
            tmp_path / "my-test.yaml",
            {
                "config": "partner.yaml",
                "options": {"trainer.max_steps": 3},
                "rows": {"full": {"model.attention": "FullAttention"}, "ours": None},
                "columns": {"short": {"data.num_tokens": 32}, "long": {"data.num_tokens": 64}},
                "grid": {"model.lr": [0.1, 0.2]},
                "seeds": [3, 4],
            },
        )
    )
    assert plan.title == "my test"
    assert len({run.subfolder for run in plan.runs}) == len(plan.runs) == 2 * 2 * 2 * 2
    first = plan.runs[0]
    assert (first.row, first.column, first.seed) == ("full, lr=0.1", "short", 3)
    assert first.arguments() == [
        "--config",
        "partner.yaml",
        "--trainer.max_steps=3",
        "--model.attention=FullAttention",
        "--model.lr=0.1",
        "--data.num_tokens=32",
        "--seed_everything=3",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"rowz": {}}, "unknown key 'rowz'; allowed are title"),
        ({"rows": {}}, "rows is empty"),
        ({"rows": {"a": 3}}, "rows: a: must be dotted keys, got 3"),
        ({"grid": {"model.lr": []}}, "grid: model.lr: must be a list of values, got []"),
        ({"seeds": []}, "seeds must be a list of numbers from 0, got []"),
        ({"seeds": "012"}, "seeds has the wrong form: '012'"),
        ({"rows": {"a b": {}, "a-b": {}}}, "a b, seed 0 and a-b, seed 0 name one run directory"),
        ({"rows": {"a": {}}, "baseline": "b"}, "no row 'b' for a baseline; there are a"),
        ({"config": "mrr.yaml"}, "no configuration 'mrr.yaml'"),
    ],
)
def test_what_is_wrong_gets_one_line(content: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(write(tmp_path / "plan.yaml", content))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("rows:\n  a: {\n")
    with pytest.raises(InputError, match=r"plan.yaml:\d: not valid YAML"):
        read_plan(path)


@pytest.mark.parametrize("name", comparisons())
def test_shipped_comparisons_name_options_that_exist(name: str) -> None:
    plan = read_plan(comparisons()[name])
    for run in {(run.row, run.column): run for run in plan.runs}.values():
        Options(run.arguments(), fitting=True)


def test_a_sweep_runs_the_same_grid(tmp_path: Path) -> None:
    content = {
        "config": "partner.yaml",
        "rows": {"a": {"model.dropout": 0.1}, "b": {"model.dropout": 0.2}},
        "grid": {"model.lr": [0.1, 0.2, 0.3]},
        "seeds": [0, 1],
    }
    made = yaml.safe_load(sweep(read_plan(write(tmp_path / "plan.yaml", content)), "plan"))
    assert made["parameters"] == {
        "seed_everything": {"values": [0, 1]},
        "model.dropout": {"values": [0.1, 0.2]},
        "model.lr": {"values": [0.1, 0.2, 0.3]},
    }
    assert made["command"] == [
        "${env}", "WANDB_RUN_GROUP=plan", "${program}", "fit", "--config", "partner.yaml",
        "--wandb", "${args}",
    ]  # fmt: skip
    content["rows"]["b"] = {"model.d_ff": 8}
    with pytest.raises(InputError, match="a sweep is a grid"):
        sweep(read_plan(write(tmp_path / "plan.yaml", content)), "plan")
