"""The figure of merit of mechanisms that approximate full attention, by hand."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from clusterformer.attention import OracleTopAttention, PartlyLocalAttention
from clusterformer.bench.approximation import forms_of, measure
from clusterformer.bench.recording import Inputs, record, relative_error
from clusterformer.cli.main import main
from clusterformer.errors import InputError


def test_the_error_is_a_share_of_what_full_attention_gives() -> None:
    values, exact = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0, 4.0], [0.0, 0.0]])
    assert relative_error(values, exact) == pytest.approx((4 + 1) / (1 + 16))


def test_the_error_of_a_mechanism_is_the_mean_of_its_layers() -> None:
    layers = [Inputs(*torch.randn(3, 2, 4, 9, 8)) for _ in range(2)]
    full, row = measure(layers, [("OracleTopAttention", {"top_k": 3})], repeats=1)
    core, expected = OracleTopAttention(32, 4, top_k=3), []
    for q, k, v in layers:
        exact = F.scaled_dot_product_attention(q, k, v)
        values, _ = core(q, k, v, hidden=q)
        expected.append(float((values - exact).square().sum() / exact.square().sum()))
    assert full["of_layers"] == [0, 0]
    assert row["of_layers"] == pytest.approx(expected)
    assert row["relative_squared_error"] == pytest.approx(sum(expected) / 2)
    assert min(expected) > 0.1


def test_a_cap_goes_with_all_iterations_where_it_is_named() -> None:
    usual = [options for _, options in forms_of("MultipoleAttention", [64], [1, 3, 5, 7])[:4]]
    assert [(o["iterations"], o["cap"]) for o in usual] == [(1, 1.5), (3, 2), (5, 4), (7, 4)]
    every = [options for _, options in forms_of("MultipoleAttention", [64], [1, 5], [1.5, 4])[:4]]
    assert [(o["iterations"], o["cap"]) for o in every] == [(1, 1.5), (1, 4), (5, 1.5), (5, 4)]


def test_heads_that_differ_in_number_are_refused() -> None:
    layers = [Inputs(*torch.randn(3, 2, heads, 9, 8)) for heads in (4, 2)]
    with pytest.raises(InputError, match=r"equal numbers of heads .* got 4, 2"):
        list(measure(layers, [], repeats=1))


@pytest.mark.parametrize("near", [0, 1, 2])
def test_heads_with_a_window_are_left_out(near: int) -> None:
    core = PartlyLocalAttention(16, 2, local_heads=near, local_window=2)
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    found = record(core, lambda: core(q, k, v, hidden=q))
    assert len(found) == (near < 2)
    for inputs in found:
        assert all(x.equal(y[:, near:]) for x, y in zip(inputs, (q, k, v), strict=True))


@pytest.mark.parametrize("central", ["FullAttention", "LocalAttention"])
def test_layers_with_a_window_are_left_out(tmp_path: Path, central: str, capsys) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "found.json"
    text.write_text("to be or not to be, that is the question\n" * 20, encoding="utf-8")
    data = ["--data=LanguageModeling", f"--data.train={text}", "--data.context=16"]
    small = ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=3", "--model.d_ff=8"]
    kinds = [f"--model.attention={central}", "--model.outer_attention=LocalAttention"]
    quick = ["--trainer.max_steps=1", "--trainer.accelerator=cpu", "--pictures=false"]
    assert main(["fit", *data, *small, *kinds, *quick, f"--runs={tmp_path}"]) == 0
    (run,) = tmp_path.glob("*/1")
    capsys.readouterr()
    options = ["--length", "16", "--repeats", "1", "--num_clusters", "4", "--out", str(out)]
    files = ["--model", str(run), "--text", str(text)]
    found = main(["bench", "approximation", *files, *options])
    if central == "FullAttention":
        assert found == 0
        assert {len(row["of_layers"]) for row in json.loads(out.read_text())["rows"]} == {1}
    else:
        assert found == 2
        assert "each head has a window" in capsys.readouterr().err
