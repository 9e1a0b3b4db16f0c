"""`bench kernels`: checked before it is timed, and a model that the kernels' docstrings share."""

import json
from pathlib import Path

import pytest
import torch

from clusterformer.bench import kernels, roofline
from clusterformer.bench.plots import plot_kernels
from clusterformer.bench.problems import Problem
from clusterformer.bench.recording import relative_error
from clusterformer.bench.roofline import DATA_SHEETS, Size
from clusterformer.cli.main import main
from clusterformer.kernels.dispatch import VARIABLE

TINY = ["bench", "kernels", "--device", "cpu", "--dtype", "fp32", "--repeats", "1"]
TINY += ["--num_heads", "1", "--width", "16", "--tokens", "9", "--lengths", "9"]
SIZE = Size(B=2, N=4096, H=8, D=64, A=16, F=16, C=64, Y=1, S=64, J=3, i=2)


@pytest.fixture
def interpreted(monkeypatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv(VARIABLE, "triton")


@pytest.mark.slow
def test_it_runs_from_end_to_end_through_the_kernels(interpreted, tmp_path: Path, capsys) -> None:
    out = tmp_path / "kernels.json"
    assert main([*TINY, "--forms", "paper", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    mechanisms = {"mechanism", "ReformerAttention", "RoutingAttention"}
    assert {row["what"] for row in rows} >= {"assign", "sort", "chunk attention", *mechanisms}
    assert all(row["correct"] and row["median_ms"] > 0 for row in rows)
    assert out.with_suffix(".png").stat().st_size > 1000
    assert "full, flash" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_result_is_not_timed(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(Problem, "_check_sort", lambda _: (3.0, 0.0))
    out = tmp_path / "kernels.json"
    assert main([*TINY, "--forms", "neural", "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert "WRONG: error 3" in told.out
    assert "wrong results, not timed: sort" in told.err
    (row,) = [row for row in json.loads(out.read_text())["rows"] if row["what"] == "sort"]
    assert "median_ms" not in row


def test_checks_find_what_is_wrong(monkeypatch) -> None:
    problem = Problem("paper", roofline.size_of("paper", 36, 36, 1, 16), torch.float32, "cpu")
    for check in (problem._check_assign, problem._check_sort, problem._check_attention):
        error, limit = check()
        assert error <= limit
    monkeypatch.setattr(Problem, "_assign", lambda self: (self.assignment + 1) % self.size.C)
    error, limit = problem._check_assign()
    assert error > limit
    module = "clusterformer.bench.problems.chunk_attention"
    monkeypatch.setattr(module, lambda q, k, v, *_, **__: q + k + v)
    error, limit = problem._check_attention()
    assert error > limit


def test_gradients_of_the_means_are_timed_for_the_whole_batch() -> None:
    problem = Problem("neural", roofline.size_of("neural", 16, 48, 1, 16), torch.float32, "cpu")
    both = problem.operations()["assign"].both
    assert both is not None
    means, of_points, _ = both()  # its work is that of all sequences
    assert means.shape[0] == of_points.shape[0] == 3
    assert of_points.abs().sum((1, 2)).all()


def test_flex_attention_sees_the_same_blocks() -> None:
    problem = Problem("paper", roofline.size_of("paper", 64, 64, 2, 16), torch.float32, "cpu")
    timed = problem.flex()
    assert timed.check is not None
    error, limit = timed.check()
    assert error <= limit
    assert relative_error(problem._attend().detach(), problem.v.detach()) > limit


def test_the_model_is_that_of_the_docstrings() -> None:
    pytest.importorskip("triton")
    from clusterformer.kernels import _chunk_kernels_triton, _grouping_triton, _means_triton

    for module in (_chunk_kernels_triton, _grouping_triton, _means_triton):
        for name, kernel in vars(module).items():
            if name.endswith("_kernel"):
                told = " ".join((getattr(kernel, "__doc__", None) or kernel.fn.__doc__).split())
                traffic, *operations = (part for part in roofline.MODEL[name][:2] if part != "0")
                assert f"{traffic} bytes" in told, name
                for formula in operations:
                    assert formula.replace("12 B N C F", "2 B N C F") in told, name


def test_full_attention_is_drawn_beside_the_default_alone(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"form": "neural", "direction": "forward", "length": 64, "correct": True}
    rows = [{**common, "what": what, "median_ms": 1.0} for what in ("mechanism", "full, flash")]
    pictures = [tmp_path / f"{number}.png" for number in range(2)]
    for number, picture in enumerate(pictures, start=1):
        plot_kernels(rows[:number], picture, title="")
    assert pictures[0].read_bytes() != pictures[1].read_bytes()


def test_formulas_are_evaluated_as_they_read() -> None:
    work = roofline.work("forward_kernel", SIZE)
    tokens = 2 * 8 * 4096
    assert work.bytes == tokens * ((4 * 64 + 2 * 16) * 2 + 8)
    assert work.matrix == tokens * 3 * 64 * (4 * 64 + 2 * 16)
    assert roofline.seconds(work, DATA_SHEETS["h200"]) == max(
        work.bytes / 4.8e12, work.matrix / 989e12
    )


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2)])
def test_bytes_are_those_of_the_data_type(dtype: str, size: int) -> None:
    ceilings = roofline.Ceilings(1e10, 1e11, 1e11)
    sizes = {"tokens": 16, "num_heads": 2, "width": 8, "device": "cpu", "repeats": 1}
    rows = kernels.measure([16], ["paper"], ceilings, dtype=dtype, **sizes)
    found = {row["what"]: row["bytes"] for row in rows if row["direction"] == "forward"}
    assert found["full, flash"] == 4 * 16 * 2 * 8 * size  # q, k, v and values
    assert found["chunk attention"] == 16 * 2 * (4 * 8 * size + 8)


def test_a_prediction_is_called_one_and_needs_no_gpu(tmp_path: Path, capsys) -> None:
    out = tmp_path / "predicted.json"
    arguments = ["--predict", "h200", "--lengths", "4096", "65536", "--out", str(out)]
    assert main(["bench", "kernels", *arguments]) == 0
    assert "nothing here was measured" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["predicted"] == "h200"
    ratios = [row["ratio"] for row in report["rows"] if row["form"] == "neural"]
    assert ratios[1] > 4 * ratios[0] > 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "0"], "--lengths must be in 1..--tokens"),
        (["--width", "0"], "--width must be at least 1, got 0"),
        (["--predict", "abacus"], "invalid choice: 'abacus'"),
        (["--forms", "half"], "invalid choice: 'half'"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main(["bench", "kernels", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
