"""`bench mass`: full attention's mass on the keys that others select."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    LocalAttention,
    MultiHeadAttention,
)
from clusterformer.bench import mass
from clusterformer.cli.main import main
from clusterformer.data.translation_batches import Reference, TranslationBatch
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import self_attention
from clusterformer.tasks.generated.recall import Recall

OPTIONS = ["--config=mqar.yaml", "--data.length=24", "--data.num_pairs=3", "--data.vocab_size=32"]


def network(task: Recall, kind: type[AttentionCore], **options: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = TransformerConfig(attention=partial(kind, **options), d_model=16, num_heads=2)
    return task.build(config).eval()


@pytest.fixture
def task() -> Recall:
    return Recall(length=24, num_pairs=3, vocab_size=32, batch_size=2, test_texts=4)


def test_all_keys_hold_all_mass_and_a_window_that_of_its_keys(task: Recall) -> None:
    full = network(task, FullAttention)
    window = network(task, LocalAttention, window=4)
    (batch, _) = mass.read_batches(task, 2)
    rows = list(mass.measure(full, {"full": full, "window": window}, batch))
    assert [(row["run"], row["layer"]) for row in rows] == [
        ("full", 1), ("full", 2), ("window", 1), ("window", 2),
    ]  # fmt: skip
    for row in rows[:2]:
        assert (row["keys"], row["mass"]) == pytest.approx((1, 1))
    position = torch.arange(24)
    distance = position[:, None] - position
    near = (distance >= 0) & (distance < 4)
    for row, weights in zip(rows[2:], mass.layer_weights(full, batch), strict=True):
        share = near.sum(-1) / (position + 1)
        assert row["keys"] == pytest.approx(float(share.mean()), abs=1e-6)
        expected = (weights * near).sum(-1).mean()
        assert row["mass"] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("peaked", ["full", "window"])
def test_keys_whose_weight_vanishes_count(peaked: str, task: Recall) -> None:
    full, window = network(task, FullAttention), network(task, LocalAttention, window=4)
    (batch, _) = mass.read_batches(task, 2)
    before = [row["keys"] for row in mass.measure(full, {"window": window}, batch)]
    with torch.no_grad():
        for layer in {"full": full, "window": window}[peaked].modules():
            if isinstance(layer, MultiHeadAttention):
                layer.q_proj.weight.mul_(1e3)
    assert [row["keys"] for row in mass.measure(full, {"window": window}, batch)] == before


def test_a_batch_counts_by_its_tokens(task: Recall) -> None:
    full, window = network(task, FullAttention), network(task, LocalAttention, window=4)
    batch, other = mass.read_batches(task, 2)
    both = type(batch)(*(torch.cat(pair) for pair in zip(batch, other, strict=True)))
    small = type(batch)(*(part[:1] for part in both))
    rest = type(batch)(*(part[1:] for part in both))
    whole = list(mass.measure(full, {"window": window}, both))
    parts = [list(mass.measure(full, {"window": window}, part)) for part in (small, rest)]
    for row, expected in zip(mass.mean_over_tokens(parts), whole, strict=True):
        assert row["tokens"] == expected["tokens"] == 4 * 24
        assert row["keys"] == pytest.approx(expected["keys"], abs=1e-6)
        assert row["mass"] == pytest.approx(expected["mass"], abs=1e-6)


def test_the_weights_of_full_attention_come_out(task: Recall) -> None:
    full = network(task, FullAttention)
    (batch,) = mass.read_batches(task, 1)
    for core, weights in zip(self_attention(full), mass.layer_weights(full, batch), strict=True):
        assert weights.shape == (2, core.num_heads, 24, 24)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, core.num_heads, 24))
        assert not weights.triu(1).any()


def test_a_reference_that_selects_is_refused(task: Recall) -> None:
    window = network(task, LocalAttention, window=4)
    (batch,) = mass.read_batches(task, 1)
    with pytest.raises(InputError, match="must have FullAttention, got LocalAttention"):
        next(mass.measure(window, {}, batch))


def test_a_model_of_transformers_or_with_a_decoder_is_refused() -> None:
    with pytest.raises(InputError, match="FullAttention, got no layers of ours"):
        next(mass.measure(torch.nn.Linear(2, 2), {}, None))
    pair = TranslationBatch.make([[4, 5, 1]], [[6, 1]])
    assert mass.same_texts([pair], [pair])
    assert not mass.same_texts([pair], [pair._replace(references=[Reference("a", "a")])])
    with pytest.raises(InputError, match="got encoder and decoder"):
        next(mass.measure(torch.nn.Linear(2, 2), {}, pair))


@pytest.mark.slow
def test_the_command_measures_runs_of_one_data_set(tmp_path: Path, capsys) -> None:
    small = ["--data.also_train=null", "--data.short_batches=0", "--data.batch_size=2"]
    steps = ["--data.epoch_steps=1", "--data.valid_texts=2", "--data.test_texts=4"]
    train = [*OPTIONS, *small, *steps, "--trainer.max_steps=1", "--pictures=false"]
    kinds = ["FullAttention", "BlockTopKAttention"]
    for kind in kinds:
        folder = str(tmp_path / kind)
        assert main(["fit", *train, f"--model.attention={kind}", f"--runs={folder}"]) == 0
    other = [*train, "--model.attention=FullAttention", f"--runs={tmp_path / 'other'}"]
    assert main(["fit", *other, "--data.vocab_size=40"]) == 0
    full, blocks, other = (str(tmp_path / kind / "mqar" / "1") for kind in (*kinds, "other"))
    out = tmp_path / "mass.json"
    command = ["bench", "mass", "--reference", full, "--runs"]
    assert main([*command, blocks, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["layer"] for row in rows] == [1, 2]
    assert all(0 < row["keys"] <= 1 and 0 < row["mass"] <= 1 + 1e-6 for row in rows)
    capsys.readouterr()
    assert main([*command, other]) == 2
    assert "its test texts are not those of" in capsys.readouterr().err
    assert main(["bench", "mass", "--runs", blocks]) == 2
    assert "give --reference RUN and --runs RUN" in capsys.readouterr().err
