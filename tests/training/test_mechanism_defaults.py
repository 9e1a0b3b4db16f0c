"""What a mechanism takes over from the one that it replaces."""

import json

import pytest
import yaml

from clusterformer.attention import QueryKeyClusteringAttention, RoutingAttention
from clusterformer.cli.options import Options

FILE = {"model": {"attention": {"class_path": "NeuralClusteringAttention", "init_args": {}}}}
ROUTING = {"class_path": "RoutingAttention"}


def chosen(tmp_path, given: dict, *arguments: str, option: str = "attention") -> dict:
    """Options of the mechanism that a file with `given` and a command line describe."""
    file = json.loads(json.dumps(FILE))
    file["model"]["attention"]["init_args"] = given
    file |= {"data": {"class_path": "Recall"}}
    path = tmp_path / "file.yaml"
    path.write_text(json.dumps(file))
    options = Options(["--config", str(path), *arguments], fitting=True)
    return dict(options.config["model"][option]["init_args"])


def test_defaults_are_those_of_the_new_mechanism(tmp_path) -> None:
    found = chosen(tmp_path, {}, "--model.attention", "RoutingAttention")
    assert found["local_heads"] is None  # 0 in neural clustering
    found = chosen(tmp_path, {}, "--model.attention=QueryKeyClusteringAttention")
    core = QueryKeyClusteringAttention(32, 4, **found)
    assert (core.alpha, core.dense_length, core.local_heads) == (7.0, 128, 2)


def test_values_of_the_file_are_kept(tmp_path) -> None:
    given = {"local_heads": 1, "local_window": 5}
    found = chosen(tmp_path, given, "--model.attention", "RoutingAttention")
    assert (found["local_heads"], found["local_window"]) == (1, 5)
    assert RoutingAttention(32, 4, **found).local_heads == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model.attention.local_heads=0"],
        ["--model.attention.init_args.local_heads", "0"],
        ["--model.attention.init_args", '{"local_heads": 0}'],
        ["--model.attention", "{class_path: RoutingAttention, init_args: {local_heads: 0}}"],
        ["--model.attention", "class_path: RoutingAttention\ninit_args:\n  local_heads: 0\n"],
        ["--model", json.dumps({"attention": {**ROUTING, "init_args": {"local_heads": 0}}})],
        ["--config", json.dumps({"model": {"attention": {"init_args": {"local_heads": 0}}}})],
    ],
    ids=["short", "long", "all", "class", "lines", "model", "file"],
)
def test_values_of_the_command_line_are_kept(tmp_path, arguments: list[str]) -> None:
    if arguments[0] == "--config":
        arguments[1] = str(tmp_path / "more.yaml")
        tree = {"model": {"attention": {"init_args": {"local_heads": 0}}}}
        (tmp_path / "more.yaml").write_text(json.dumps(tree))
    found = chosen(tmp_path, {}, "--model.attention", "RoutingAttention", *arguments)
    assert found["local_heads"] == 0


def test_a_whole_mechanism_on_the_command_line(tmp_path) -> None:
    tree = {"class_path": "RoutingAttention", "init_args": {"local_heads": 3}}
    found = chosen(
        tmp_path, {}, "--model.decoder_attention", json.dumps(tree), option="decoder_attention"
    )
    assert (found["local_heads"], found["local_window"]) == (3, 64)


def test_the_printed_configuration_is_the_one_that_trains(capsys) -> None:
    arguments = ["--config", "mr.yaml", "--model.attention", "RoutingAttention", "--print_config"]
    with pytest.raises(SystemExit):
        Options(arguments, fitting=True)
    printed = yaml.safe_load(capsys.readouterr().out)["model"]["attention"]["init_args"]
    assert printed["local_heads"] is None


def test_another_command_line_changes_nothing(tmp_path) -> None:
    data = ["--data", "Recall", "--model.attention"]
    options = Options([*data, "RoutingAttention", "--model.attention.local_heads=3"], fitting=True)
    Options([*data, "FullAttention"], fitting=True)
    assert options.resolved()["model"]["attention"]["init_args"]["local_heads"] == 3
