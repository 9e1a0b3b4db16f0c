"""`bench parallel`: a sequence over processes, against one process."""

import json
from pathlib import Path

import pytest

from clusterformer.cli.main import main


@pytest.mark.slow
def test_processes_agree_with_one_and_send_what_they_say(tmp_path: Path) -> None:
    out = tmp_path / "parallel.json"
    sizes = ["--length", "1024", "--d_model", "16", "--num_heads", "2", "--num_clusters", "8"]
    assert main(["bench", "parallel", *sizes, "--repeats", "1", "--full", f"--out={out}"]) == 0
    report = json.loads(out.read_text())
    assert report["settings"]["threads"] == 1
    rows = report["rows"]
    assert [row["mechanism"] for row in rows] == ["neural clustering", "full attention"]
    for row in rows:
        assert row["largest_difference"] < 1e-5
        assert row["ring_mib"] == pytest.approx(6 * 512 * 16 * 4 / 2**20)
        assert row["peak_mib_alone"] < 80  # torch._dynamo, 150 MiB, is not counted
        assert 0 < row["sent_mib"] < 2 * row["ring_mib"]


@pytest.mark.slow
def test_a_short_sequence_needs_no_memory_to_compare_with(tmp_path: Path) -> None:
    out = tmp_path / "parallel.json"
    sizes = ["--length", "64", "--d_model", "16", "--num_heads", "2", "--num_clusters", "4"]
    assert main(["bench", "parallel", *sizes, "--repeats", "1", f"--out={out}"]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["peak_ratio"] is None) == (row["peak_mib_alone"] == 0)


def test_threads_that_no_process_would_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "parallel", "--threads", "2"]) == 2
    assert "--threads must be 1, that of each process, got 2" in capsys.readouterr().err


def test_a_count_below_one_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "parallel", "--processes", "0"]) == 2
    assert "--processes must be at least 1, got 0" in capsys.readouterr().err


def test_heads_that_the_processes_do_not_divide_are_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "parallel", "--full", "--processes", "3", "--num_heads", "4"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        "clusterformer: error: --processes must divide --num_heads with --full, got 3 and 4"
    ]
