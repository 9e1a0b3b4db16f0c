"""What a comparison's file means, and what is wrong with it, in one line."""

import random
from datetime import date
from pathlib import Path

import pytest
import yaml

from clusterformer.cli.options import Options
from clusterformer.compare.plan import read_plan
from clusterformer.compare.sweep import sweep
from clusterformer.errors import InputError
from clusterformer.tasks.similarity import TF_IDF
from clusterformer.training.config_files import comparisons, shipped
from clusterformer.training.text_baselines import MAJORITY, SECOND, SVM


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
    assert [run.seed for run in plan.runs] == [3] * 8 + [4] * 8
    first = plan.runs[0]
    assert (first.row, first.column, first.seed) == ("full, lr=0.1", "short", 3)
    assert first.arguments() == [
        "--config",
        "partner.yaml",
        "--data.num_tokens=32",
        "--model.attention=FullAttention",
        "--model.lr=0.1",
        "--seed_everything=3",
        "--trainer.max_steps=3",
    ]


def test_the_configuration_of_a_row_is_laid_over_that_of_its_column(tmp_path: Path) -> None:
    content = {
        "rows": {"ours": {}, "theirs": {"config": "paper-form.yaml", "model.lr": 1}},
        "columns": {"MR": {"config": "mr.yaml"}, "CR": {"config": "cr.yaml"}},
    }
    plan = read_plan(write(tmp_path / "overlay.yaml", content))
    assert [run.configs for run in plan.runs] == [
        ("mr.yaml",),
        ("mr.yaml", "paper-form.yaml"),
        ("cr.yaml",),
        ("cr.yaml", "paper-form.yaml"),
    ]


def test_configurations_may_be_chosen_among(tmp_path: Path) -> None:
    content = {"config": "mr.yaml", "choose": {"config": ["quickstart.yaml", "paper-form.yaml"]}}
    plan = read_plan(write(tmp_path / "choice.yaml", content))
    assert [run.configs[1:] for run in plan.runs] == [("quickstart.yaml",), ("paper-form.yaml",)]


def test_a_row_may_stand_in_some_columns_alone(tmp_path: Path) -> None:
    content = {
        "rows": {"ours": {}, "second text": {"method": "second text alone", "columns": ["SICK"]}},
        "columns": {"MR": {"config": "mr.yaml"}, "SICK": {"config": "sick.yaml"}},
    }
    plan = read_plan(write(tmp_path / "some.yaml", content))
    cells = [(run.row, run.column) for run in plan.runs]
    assert cells == [("ours", "MR"), ("ours", "SICK"), ("second text", "SICK")]
    assert plan.runs[-1].options == {"method": "second text alone"}


def test_folds_follow_the_seeds(tmp_path: Path) -> None:
    content = {"config": "mr.yaml", "seeds": [0, 7], "seed_options": ["data.fold"]}
    first, second = read_plan(write(tmp_path / "folds.yaml", content)).runs
    assert {"--data.fold=0", "--seed_everything=0"} < set(first.arguments())
    assert {"--data.fold=7", "--seed_everything=7"} < set(second.arguments())


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ({"seed_options": [3]}, "seed_options must be options of fit, such as data.fold, got 3"),
        ({"seed_options": ["runs"]}, "runs is set by compare; remove it"),
        ({"rowz": {}}, "unknown key 'rowz'; allowed are title"),
        ({"rows": {}}, "rows is empty"),
        ({"rows": {"a": 3}}, "rows: a: must be dotted keys, got 3"),
        ({"grid": {"model.lr": []}}, "grid: model.lr: must be a list of values, got []"),
        ({"seeds": []}, "seeds must be a list of whole numbers from 0 to 4294967295, got []"),
        ({"seeds": "012"}, "seeds has the wrong form: '012'"),
        ({"rows": {"a b": {}, "a-b": {}}}, "a b, seed 0 and a-b, seed 0 name one run directory"),
        ({"rows": {"a": {}}, "baseline": "b"}, "no row 'b' for a baseline; there is a"),
        ({"config": "mrr.yaml"}, ":1: no configuration 'mrr.yaml'"),
        ({"config": [None]}, "config must be a name or a list of names, got [None]"),
        ({"seeds": [-1]}, "from 0 to 4294967295, got [-1]"),
        ({"seeds": [2**70]}, "from 0 to 4294967295, got [1180591620717411303424]"),
        ({"seeds": ["0"]}, "from 0 to 4294967295, got ['0']"),
        ({"seeds": [True]}, "from 0 to 4294967295, got [True]"),
        ({"seeds": [1, 1]}, "run, seed 1 and run, seed 1 name one run directory"),
        ({"rows": {"A": {}, "a": {}}}, "A, seed 0 and a, seed 0 name one run directory"),
        ({"rows": {"x" * 201: {}}}, "a name of 201 characters; allowed are 200"),
        ({"rows": {"\x1b[31m": {}}}, "has control characters"),
        ({"rows": {None: {}}}, "a name must be text; write it in quotes"),
        ({"rows": {"a": {"runs": "/"}}}, "runs is set by compare; remove it"),
        ({"rows": {"a": {"--lr": 1}}}, "'--lr' is no option of fit, such as model.lr"),
        ({"options": {"model.lr": date(2026, 1, 2)}}, "is no plain value; write it in quotes"),
        ({"grid": {"a": list(range(99)), "b": list(range(99))}}, "9,801 runs are more than 5,000"),
        ({"grid": {"model.lr": [1, "1"]}}, "two rows are named 'lr=1'"),
        ({"paper": {"a": {"MR": "high"}}}, "paper: a: must be column: number, got {'MR': 'high'}"),
        ({"rows": {"a": {}}, "paper": {"b": {"": 1}}}, "paper: no row 'b'; there is a"),
        ({"rows": {"coupled": {}}, "baseline": "couple"}, "did you mean coupled? there is coupled"),
        ({"paper": {"run": {"MR": 1}}}, "paper: run: no column 'MR'; there is ''"),
        (
            {"rows": {"a": {"columns": "MR"}}, "columns": {"MR": {}}},
            "must be a list of MR, got 'MR'",
        ),
        ({"rows": {"a": {"columns": ["CR"]}}, "columns": {"MR": {}}}, "list of MR, got ['CR']"),
        ({"options": {"columns": ["MR"]}}, "options: only a row can name its columns"),
        ({"title": None}, "title has the wrong form: None"),
    ],
)
def test_what_is_wrong_gets_one_line(content: dict, printed: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_plan(write(tmp_path / "plan.yaml", content))
    assert printed in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"choose": {"model.lr": [0.3]}}, "choose"),
        ({"rows": {"ours": {"model.lr": 0.3}}}, "rows: ours"),
        ({"seed_options": ["model.lr"]}, "seed_options"),
        ({"columns": {"a": {}, "b": {"model.lr": 0.3}}}, "columns: b"),
        ({"columns": {"b": {"rows": {"ours": {"model.lr": 0.3}}}}}, "columns: b: rows: ours"),
    ],
)
def test_a_row_is_trained_with_the_value_that_it_is_named_by(
    other: dict, named: str, tmp_path: Path
) -> None:
    content = {"config": "partner.yaml", "rows": {"ours": {}}, "grid": {"model.lr": [0.1, 0.2]}}
    path = write(tmp_path / "grid.yaml", content)
    assert [run.options["model.lr"] for run in read_plan(path).runs] == [0.1, 0.2]
    with pytest.raises(InputError, match=f"grid: model.lr names rows, and {named} sets it too"):
        read_plan(write(path, content | other))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"rows": {"ours": {"model.lr": 0.3}}}, "rows: ours"),
        ({"seed_options": ["model.lr"]}, "seed_options"),
        ({"columns": {"b": {"model.lr": 0.3}}}, "columns: b"),
        ({"columns": {"b": {"rows": {"ours": {"model.lr": 0.3}}}}}, "columns: b: rows: ours"),
    ],
)
def test_what_validation_chooses_is_set_nowhere_else(
    other: dict, named: str, tmp_path: Path
) -> None:
    content = {"config": "partner.yaml", "rows": {"ours": {}}, "choose": {"model.lr": [0.1, 0.2]}}
    with pytest.raises(InputError, match=f"choose: model.lr is chosen .*, and {named} sets it too"):
        read_plan(write(tmp_path / "plan.yaml", content | other))


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"rows": {"ours": {"data.fold": 3}}}, "rows: ours"),
        ({"columns": {"b": {"data.fold": 3}}}, "columns: b"),
    ],
)
def test_what_follows_the_seed_is_set_nowhere_else(other: dict, named: str, tmp_path: Path) -> None:
    content = {"config": "mr.yaml", "seeds": [0, 1], "seed_options": ["data.fold"]}
    with pytest.raises(InputError, match=f"data.fold follows the seed, and {named} sets it too"):
        read_plan(write(tmp_path / "plan.yaml", content | other))


def test_a_comparison_is_no_configuration_of_its_own(tmp_path: Path, monkeypatch) -> None:
    """A file in the working folder hides the shipped configuration of its name."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "mr.yaml", {"columns": {"MR": {"config": "mr.yaml"}}})
    with pytest.raises(InputError, match=r"mr\.yaml:\d: config mr\.yaml is this comparison itself"):
        read_plan(path)


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ("", "plan.yaml: holds no comparison"),
        ("rows:\n  a: {}\n  a: {}\n", "plan.yaml:3: not valid YAML: 'a' is given twice"),
        ("rows:\n  a: {}\n  b: 3\n", "plan.yaml:3: rows: b: must be dotted keys"),
        ("rows: &r\n  a: *r\n", "plan.yaml:1: not valid YAML: an alias stands inside its own"),
        ("rows: {? [1, 2] : 3}", "plan.yaml:1: a name must be text"),
        ("seeds: [" * 3000, "nested too deeply"),
        (f"seeds: [{'9' * 5000}]", "plan.yaml:1: not a YAML file"),
        ("title: !!python/object/apply:os.system [ls]", "plan.yaml:1: not valid YAML"),
        (
            "options:\n" + "".join(f"  {a}: &{a} [{f'*{b},' * 9}]\n" for a, b in
                                   zip("bcdefghi", "abcdefgh", strict=True)).replace("*a", "1"),
            "more than 100,000 values",
        ),
    ],
)  # fmt: skip
def test_a_hostile_file_gets_one_line(content: str, printed: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_plan(path)
    assert printed in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "name",
    ["..", "../..", "/etc/passwd", "a/b", "a\\b", ".", "", " ", "~", "-", "C:\\x", "x" * 200],
)
def test_no_name_leaves_the_directory_of_the_comparison(name: str, tmp_path: Path) -> None:
    content = {"rows": {name: {}}, "columns": {name: {}}}
    (run,) = read_plan(write(tmp_path / "plan.yaml", content)).runs
    assert len(run.subfolder.parts) == 3
    assert (tmp_path / run.subfolder).resolve().is_relative_to(tmp_path.resolve())
    assert not any(part.startswith(".") or len(part) > 120 for part in run.subfolder.parts)


SEED = """\
title: x
config: [partner.yaml]
options: &o {trainer.max_steps: 3, model.lr: 1e-3}
rows: {full: {model.attention: FullAttention}, ours: }
columns: {short: {data.num_tokens: 32}, long: {<<: *o}}
grid: {model.dropout: [0.1, 0.2]}
seeds: [3, 4]
metric: test/accuracy
baseline: ours, dropout=0.1
paper: {"ours, dropout=0.1": {short: 0.5}}
"""
PARTS = [
    *("null", "[]", "{}", "*o", "&o", "-1", "1e999", ".nan", "..", "/", "\0", "\ud800", "true"),
    ":",
    *("- ", "'", "{{", "!!binary", "<<: *o", "2026-01-02", "\n", "\t", "?", "|", "%", "0x", "\x1b"),
]


def test_mutated_files_give_a_plan_or_one_line(tmp_path: Path) -> None:
    draw = random.Random(14)
    path = tmp_path / "plan.yaml"
    lines: list[str] = []
    plans = 0
    for _ in range(400):
        text = SEED
        for _ in range(draw.randint(1, 3)):
            start = draw.randrange(len(text))
            end = start + draw.choice([0, 1, 5, 20])
            text = text[:start] + draw.choice(["", draw.choice(PARTS)]) + text[end:]
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            runs = read_plan(path).runs
        except InputError as error:
            lines.append(str(error))
        else:
            assert all(run.arguments() and len(run.subfolder.parts) == 3 for run in runs)
            plans += 1
    assert min(plans, len(lines)) > 50
    assert not any("\n" in line for line in lines)


def test_no_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("rows:\n  a: {\n")
    with pytest.raises(InputError, match=r"plan.yaml:\d: not valid YAML"):
        read_plan(path)


@pytest.mark.parametrize("path", comparisons().values(), ids=lambda path: path.stem)
def test_every_shipped_column_of_texts_has_its_simple_methods(path: Path) -> None:
    of_pairs = {SVM, MAJORITY, SECOND}
    needed = {"Classification": {SVM, MAJORITY}, "Similarity": {TF_IDF}}
    needed |= {"Inference": of_pairs, "Matching": of_pairs}
    methods: dict[str, set[str]] = {}
    kinds: dict[str, str] = {}
    for run in read_plan(path).runs:
        if run.trained:  # a simple method has no model to test
            continue
        methods.setdefault(run.column, set()).add(run.options.get("method", ""))
        if run.column not in kinds:
            config = yaml.safe_load(shipped()[run.configs[0]].read_text())
            kinds[run.column] = config["data"]["class_path"]
    for column, kind in kinds.items():
        if kind in needed:
            assert methods[column] - {""} == needed[kind], column


def test_shipped_comparisons_name_options_that_exist() -> None:
    """Cells are built until each option has been; those of a mechanism, for each mechanism."""
    cells = []
    for path in comparisons().values():
        for run in read_plan(path).all_runs:
            mechanism = run.options.get("model.attention")
            names = {
                (mechanism if "model.attention." in name else None, name) for name in run.options
            }
            cells.append((names, run.arguments_of_model()))
    left = set().union(*(names for names, _ in cells))
    assert len(left) > 60
    while left:
        names, arguments = max(cells, key=lambda cell: len(cell[0] & left))
        Options(arguments, fitting=True)
        left -= names


@pytest.mark.slow
@pytest.mark.parametrize("name", comparisons())
def test_shipped_comparisons_name_options_that_fit(name: str) -> None:
    """Of cells that differ in a number one stands for all."""
    runs = read_plan(comparisons()[name]).all_runs
    kinds = {
        (run.configs, run.options.get("model.attention"), *sorted(run.options)): run for run in runs
    }
    for run in kinds.values():
        Options(run.arguments_of_model(), fitting=True)


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
