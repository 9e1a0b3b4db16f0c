"""A pretrained model in the trainer: tokenizer, positions, mechanism, rates, checkpoints."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import clusterformer
from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    NeuralClusteringAttention,
)
from clusterformer.cli.main import main
from clusterformer.cli.options import Options
from clusterformer.data.frames import Frame
from clusterformer.data.pretrained import open_pretrained
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.models.pretrained_model import read_num_positions
from clusterformer.models.pretrained_options import warn_of_ignored
from clusterformer.tasks.classification import Classification
from clusterformer.training.checkpoints import CHECKPOINT_KEY, read
from clusterformer.training.optimizer import make_optimizer

TRAINER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--baselines=false"]
SHORT = [*TRAINER, "--trainer.max_epochs=1", "--data.batch_size=10"]
SHORT += ["--trainer.log_every_n_steps=1"]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_rows_are_those_of_the_models_own_tokenizer(
    kind: str, request: pytest.FixtureRequest
) -> None:
    from transformers import AutoTokenizer

    folder = request.getfixturevalue(kind)
    theirs, ours = AutoTokenizer.from_pretrained(folder), open_pretrained(str(folder)).tokenizer
    u, v = "a fine film . and the plot", "how Dull is unknownword"
    segments = {"return_token_type_ids": True}
    encoded = [ours.encode(u), ours.encode(v)]
    assert ours.single.around(encoded[0]) == theirs(u, truncation=False)["input_ids"]
    for limit in (40, 12, 9, 7):
        expected = theirs(u, v, truncation="longest_first", max_length=limit, **segments)
        texts = ours.pair.cut(encoded, limit)
        row = ours.pair.around(*texts)
        assert row == expected["input_ids"]
        start = ours.pair.second_start(texts[0], row)
        if kind == "bert":
            assert [int(at >= start) for at in range(len(row))] == expected["token_type_ids"]
        else:
            assert start == len(row)


def test_a_row_without_room_for_a_text_is_refused() -> None:
    with pytest.raises(InputError, match=r"max_length must be at least 3.*got 2"):
        Frame((1,), (), (2,)).cut([[5, 6]], 2)


def test_positions_are_counted(bert: Path, roberta: Path) -> None:
    counts = [read_num_positions(open_pretrained(str(path)).config) for path in (bert, roberta)]
    assert counts == [32, 32]


@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2"])
def test_the_encoder_gives_the_models_own_values(kind: str, request: pytest.FixtureRequest) -> None:
    from transformers import AutoModel

    folder = request.getfixturevalue(kind)
    source = open_pretrained(str(folder))
    config = TransformerConfig(FullAttention)
    encoder = PretrainedEncoder(config, source.config, weights=source.folder).eval()
    row = torch.tensor([source.tokenizer.single.around(source.tokenizer.encode("a fine film"))])
    padded = torch.cat([row, torch.zeros(1, 4, dtype=torch.long)], 1)
    mask = torch.arange(padded.shape[1])[None] < row.shape[1]
    with torch.no_grad():
        expected = AutoModel.from_pretrained(folder).eval()(input_ids=row).last_hidden_state
        found = encoder(padded, mask).hidden[:, : row.shape[1]]
        empty = encoder(padded, torch.zeros_like(mask)).hidden
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert empty.isfinite().all()


def test_full_attention_drops_no_attention_weights_as_mechanisms_do(bert: Path) -> None:
    source = open_pretrained(str(bert))
    options = source.config | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.5}
    encoder = PretrainedEncoder(
        TransformerConfig(FullAttention), options, weights=source.folder
    ).train()
    row = torch.tensor([source.tokenizer.single.around(source.tokenizer.encode("a fine film"))])
    first, second = (encoder(row, torch.ones_like(row).bool()).hidden for _ in range(2))
    torch.testing.assert_close(first, second, atol=0, rtol=0)


def test_a_run_needs_nothing_but_its_checkpoint(
    bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Positions are extended, clusters measured; all goes on when the model has gone."""
    folder = shutil.copytree(bert, tmp_path / "model")
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        f"--data.train={texts}",
        f"--model.pretrained={folder}",
    ]
    fit += ["--data.max_length=40", "--model.attention.num_clusters=4", f"--runs={tmp_path}"]
    assert main([*fit, *SHORT]) == 0
    said = capsys.readouterr().err
    assert "positions extended from 32 to 40" in said
    assert re.search(r"clusters fitted to 48 training texts: .* of \d+ tokens a text", said)
    shutil.rmtree(folder)
    run = tmp_path / "classification" / "1"
    columns = (run / "metrics.csv").read_text().splitlines()[0]
    assert "train/clustering_loss" in columns
    assert "val/layer2/" in columns
    state = read(run / "checkpoints" / "best.ckpt")[CHECKPOINT_KEY]["task"]
    assert state["tokenizer"]["config"]["model_type"] == "bert"
    model = clusterformer.load(run)
    long = " ".join(["fine", *["film"] * 36])
    [record] = model.predict([long])
    assert record == model.predict([long, "a dull film"])[0]
    assert main(["test", f"--checkpoint={run}", "--trainer.accelerator=cpu"]) == 0
    assert main(["fit", f"--resume={run}", "--trainer.max_epochs=2"]) == 0


def test_a_longer_text_is_cut_and_counted(
    bert: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        f"--data.train={texts}",
        f"--model.pretrained={bert}",
    ]
    fit += ["--data.max_length=10", "--model.attention=FullAttention", f"--runs={tmp_path}"]
    assert main([*fit, *SHORT]) == 0
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("train: ")]
    rows = [line.split("\t")[0].split() for line in texts.read_text().splitlines()[1:]]
    assert len(printed) == 1
    assert "longer than max_length 10 tokens" in printed[0]
    assert int(printed[0].split()[1]) <= sum(len(row) > 8 for row in rows)


@pytest.mark.parametrize("trained", [10, 40])
def test_a_test_may_be_as_long_as_the_model_has_positions(
    trained: int, bert: Path, texts: Path
) -> None:
    task = Classification(train=str(texts), max_length=trained)
    task.pretrained = str(bert)
    task.setup("fit")
    for limit in (32, 40, 41):
        longer = Classification(train=str(texts), max_length=limit)
        longer.load_state(task.state())
        if limit <= max(32, trained):
            longer.setup("test")
            continue
        with pytest.raises(InputError, match=rf"max_length is {limit}, .* has (32|40) positions"):
            longer.setup("test")


@pytest.mark.parametrize(
    ("task", "joint"),
    [
        ("Matching", "true"),
        pytest.param("Inference", "false", marks=pytest.mark.slow),
        pytest.param("Matching", "false", marks=pytest.mark.slow),
        pytest.param("Inference", "true", marks=pytest.mark.slow),
    ],
)
def test_pairs_are_read(task: str, joint: str, bert: Path, pairs: Path, tmp_path: Path) -> None:
    fit = [
        "fit",
        "--pictures=false",
        f"--data={task}",
        f"--data.train={pairs}",
        f"--model.pretrained={bert}",
    ]
    fit += [f"--data.joint={joint}", "--model.attention.num_clusters=3", f"--runs={tmp_path}"]
    assert main([*fit, *SHORT]) == 0
    [record] = clusterformer.load(tmp_path / task.lower() / "1").predict([("a film", "a plot")])
    assert record["label"] in ("True", "False")


def _fitted(bert: Path, texts: Path, *options: str) -> clusterformer.ClusterFormer:
    arguments = ["--data=Classification", f"--data.train={texts}", f"--model.pretrained={bert}"]
    made = Options([*arguments, *options, "--trainer.accelerator=cpu"], fitting=True)
    made.task.setup("fit")
    made.model.network = made.task.build(made.model.transformer_config)
    return made.model


def test_old_and_new_weights_have_their_own_rates(bert: Path, texts: Path) -> None:
    model = _fitted(bert, texts, "--model.lr=0.5", "--model.pretrained_lr=0.1")
    optimizer = make_optimizer(
        model, lr=0.5, weight_decay=0.0, betas=(0.9, 0.999), pretrained_lr=0.1
    )
    rates = {
        id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]
    }
    network = model.network
    assert isinstance(network, torch.nn.Module)
    cores = [part for part in network.modules() if isinstance(part, AttentionCore)]
    assert len(cores) == 2
    new = {id(weight) for part in (*cores, network.head) for weight in part.parameters()}
    assert {rates[weight] for weight in new} == {0.5}
    assert {rate for weight, rate in rates.items() if weight not in new} == {0.1}
    assert len(rates) == sum(1 for _ in network.parameters())


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_the_matrices_of_all_layers_decay(kind: str, request: pytest.FixtureRequest) -> None:
    source = open_pretrained(str(request.getfixturevalue(kind)))
    config = TransformerConfig(FullAttention)
    encoder = PretrainedEncoder(config, source.config, weights=source.folder)
    optimizer = make_optimizer(
        encoder, lr=0.5, weight_decay=0.1, betas=(0.9, 0.999), pretrained_lr=0.1
    )
    groups = optimizer.param_groups
    decayed = {id(w) for group in groups if group["weight_decay"] for w in group["params"]}
    tables = {id(m.weight) for m in encoder.modules() if isinstance(m, torch.nn.Embedding)}
    assert decayed == {id(w) for w in encoder.parameters() if w.dim() == 2} - tables


@pytest.mark.slow
def test_a_frozen_encoder_does_not_move(bert: Path, texts: Path, tmp_path: Path) -> None:
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        f"--data.train={texts}",
        f"--model.pretrained={bert}",
    ]
    fit += ["--model.freeze=true", "--model.attention.num_clusters=3", f"--runs={tmp_path}"]
    assert main([*fit, *SHORT]) == 0
    weights = read(tmp_path / "classification" / "1" / "checkpoints" / "last.ckpt")["state_dict"]
    source = open_pretrained(str(bert))
    config = TransformerConfig(NeuralClusteringAttention)
    before = PretrainedEncoder(config, source.config, weights=source.folder).model.state_dict()
    moved = {
        name
        for name, weight in before.items()
        if weight.shape != (found := weights[f"network.encoder.model.{name}"]).shape
        or not torch.equal(weight, found)
    }
    assert moved
    assert all(".clusterformer." in name for name in moved)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, ""),
        ({"d_model": 64, "d_ff": 256}, "d_model"),
        ({"d_ff": 100, "norm": "post"}, "norm, d_ff"),
    ],
)
def test_options_that_the_model_decides_on_are_named(
    options: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_ignored(TransformerConfig(NeuralClusteringAttention, **options))
    told = f"the pretrained model has its own {named}; those given are ignored"
    assert caplog.messages == ([told] if named else [])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, ""),
        ({"lowercase": True}, "data.lowercase"),
        ({"lowercase": False}, "data.lowercase"),
        ({"tokenizer": "bpe", "vocab_size": 300}, "data.tokenizer, data.vocab_size"),
        ({"min_count": 2}, "data.min_count"),
    ],
)
def test_options_of_a_tokenizer_that_is_not_learnt_are_named(
    options: dict[str, Any], named: str, bert: Path, texts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = Classification(train=str(texts), **options)
    task.pretrained = str(bert)
    task.setup("fit")
    told = f"the pretrained model has its own tokenizer; ignored: {named}"
    assert caplog.messages == ([told] if named else [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.pretrained=/no/folder"], "no such folder"),
        (["--model.pretrained=no/such-model-anywhere"], "pretrained no/such-model-anywhere: "),
        (["--model.pretrained=EMPTY"], "holds no config.json"),
        (["--model.pretrained=BROKEN"], "no model that transformers loads"),
        (["--model.pretrained=DEEPER"], "no weights for encoder.layer.2."),
        (["--model.pretrained=WIDER"], "bias is (32,) in its files, but (48,) by its config.json"),
        (["--model.pretrained=WORDLESS"], "no tokenizer; save it beside the model"),
        (["--data.max_length=2"], "max_length must be at least 3"),
        (["--model.outer_attention=LocalAttention"], "outer_attention is not for a pretrained"),
        (["--model.attention.num_heads=3"], "has no option 'num_heads'"),
        (["--data.vectors=x.txt"], "has its own vectors"),
        (["--data=Partner"], "Partner cannot start from a pretrained"),
        (["--data=LanguageModeling"], "LanguageModeling cannot start from a pretrained"),
    ],
)
def test_what_cannot_be_is_one_line(
    options: list[str],
    message: str,
    bert: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    shutil.copytree(bert, tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing")
    shutil.copytree(bert, tmp_path / "wordless", ignore=shutil.ignore_patterns("tokenizer*"))
    for name, change in [
        ("deeper", {"num_hidden_layers": 3}),
        ("wider", {"intermediate_size": 48}),
    ]:
        config = Path(shutil.copytree(bert, tmp_path / name)) / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | change))
    names = {name.upper(): name for name in ("empty", "broken", "deeper", "wider", "wordless")}
    for name, folder in names.items():
        options = [option.replace(name, str(tmp_path / folder)) for option in options]
    data = ["--data=Classification", f"--data.train={texts}"]
    if options[0].startswith("--data="):
        data = []
        options = [*options, *([f"--data.train={texts}"] if "Language" in options[0] else [])]
    fit = ["fit", "--pictures=false", *data, *options, f"--runs={tmp_path}"]
    if not any("pretrained" in option for option in options):
        fit.append(f"--model.pretrained={bert}")
    capsys.readouterr()
    assert main([*fit, *TRAINER]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1], lines
    assert sum(line.startswith("clusterformer: error") for line in lines) == 1
