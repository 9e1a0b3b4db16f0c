"""`bench steps`: whole training steps of a configuration, and their parts."""

import json
import re

import pytest
from tiny_audio import write_table
from tiny_pretrained import write_bert

from clusterformer.cli import bench_steps
from clusterformer.cli.main import main


def test_whole_training_steps_of_a_configuration_are_measured(capsys) -> None:
    arguments = ["--config", "quickstart.yaml", "--repeats", "1", "--no-memory"]
    assert main(["bench", "steps", *arguments]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [["1024", "FullAttention"], ["1024", "configured"]]


def test_steps_of_speech_are_measured_in_the_frames_that_the_encoder_reads(tmp_path) -> None:
    write_table(tmp_path, 12)
    out = tmp_path / "steps.json"
    code = main(
        ["bench", "steps", "--config", "spoken-digits.yaml", "--data.name", "null",
         "--data.train", str(tmp_path / "train.tsv"), "--data.subsampling", "4", "--repeats", "1",
         "--mechanisms", "configured", "--no-memory", "--out", str(out)]
    )  # fmt: skip
    assert code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert 1 < row["length"] < 40  # words of 0.12 seconds, and four frames of 10 ms as one


@pytest.mark.slow
def test_attention_of_a_pretrained_models_own_has_no_time(tmp_path, capsys) -> None:
    pytest.importorskip("transformers")
    model, table = write_bert(tmp_path / "bert"), tmp_path / "texts.tsv"
    rows = "".join(f"a fine film {i}\tgood\nthe plot is dull {i}\tbad\n" for i in range(8))
    table.write_text(f"text\tlabel\n{rows}")
    code = main(
        ["bench", "steps", "--config", "classify.yaml", "--repeats", "1", "--no-memory",
         "--data.train", str(table), "--model.pretrained", str(model)]
    )  # fmt: skip
    assert code == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    times = {row[1]: row[3] for row in rows if len(row) > 3 and row[0].isdecimal()}
    assert times["FullAttention"] == "-"
    assert float(times["configured"]) > 0


def test_long_turns_are_told_at_once(capsys, monkeypatch) -> None:
    monkeypatch.setattr(bench_steps, "LONG_TURN", 0)
    arguments = ["--config", "quickstart.yaml", "--repeats", "1", "--no-memory"]
    assert main(["bench", "steps", *arguments]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"turn {n} of 3" for n in (1, 2, 3)]
    assert re.fullmatch(r"turn 3 of 3: FullAttention \d+ ms, configured \d+ ms", lines[-1])


def test_more_options_change_the_configuration_of_steps_and_are_kept(tmp_path, capsys) -> None:
    out = tmp_path / "steps.json"
    arguments = ["--config", "quickstart.yaml", "--repeats", "1", "--no-memory", "--out", str(out)]
    assert main(["bench", "steps", *arguments, "--data.num_tokens", "128"]) == 0
    report = json.loads(out.read_text())
    assert [row["length"] for row in report["rows"]] == [128, 128]
    for row in report["rows"]:
        assert min(row["attention_ms"], row["optimizer_ms"], row["data_ms"]) > 0
        assert row["attention_ms"] + row["optimizer_ms"] < row["median_ms"]
    full, clusters = report["rows"]
    assert clusters["keys_seen"] < full["keys_seen"] == 1
    assert report["settings"]["changes"] == ["--data.num_tokens", "128"]
    assert main(["bench", "steps", *arguments, "--repeat", "2"]) != 0
    assert "--repeat" in capsys.readouterr().err


def test_a_network_that_cannot_be_built_gets_one_line(capsys) -> None:
    arguments = ["--config", "quickstart.yaml", "--mechanisms", "configured", "--no-memory"]
    assert main(["bench", "steps", *arguments, "--model.num_heads", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("clusterformer: error: the network: num_heads must divide d_model")
    assert error.count("\n") == 1
