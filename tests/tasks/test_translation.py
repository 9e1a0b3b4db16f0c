"""Translation: learns, resumes, filters text, and scores alike on any number of processes."""

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

import clusterformer
from clusterformer.attention import FullAttention
from clusterformer.cli.main import main
from clusterformer.data.batches import BucketPlan, DistributedBatchSampler
from clusterformer.data.tokenizers import BOS_EOS, SubwordTokenizer
from clusterformer.data.translation_batches import TranslationBatch
from clusterformer.errors import InputError
from clusterformer.models.alignment import alignment
from clusterformer.models.config import TransformerConfig
from clusterformer.module import ClusterFormer
from clusterformer.task import IGNORE
from clusterformer.tasks.translation import Translation
from clusterformer.training.checkpoint_callbacks import LastCheckpoint

OWN = dict.fromkeys(("train_source", "train_target", "valid_source", "valid_target"), "a")
WORDS = ["ein", "hund", "katze", "rot", "blau", "haus", "baum", "geht"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Parallel files whose translation is the sentence in upper case."""
    named = {}
    for split, count in (("train", 500), ("valid", 30)):
        rng = random.Random(split)
        lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 5))) for _ in range(count)]
        for side, texts in (("source", lines), ("target", [line.upper() for line in lines])):
            path = tmp_path / f"{split}.{side}"
            path.write_text("\n".join(texts) + "\n", encoding="utf-8")
            named[f"{split}_{side}"] = str(path)
    return named


def task(files: dict[str, str], **options) -> Translation:
    options = {"vocab_size": 400, "tokens_per_batch": 150, **options}
    return Translation(**files, **options)


def network(**options) -> ClusterFormer:
    options = {"dropout": 0.0, **options}
    return ClusterFormer(FullAttention, d_model=32, d_ff=64, num_layers=1, **options)


def trainer(folder: Path, **options) -> Trainer:
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        **options,
    )


def arguments(files: dict[str, str]) -> list[str]:
    options = [f"--data.{name}={path}" for name, path in files.items()]
    return [
        *("--data", "Translation", *options, "--data.vocab_size=400"),
        *("--data.tokens_per_batch=150", "--model.attention=FullAttention", "--model.d_model=64"),
        *("--model.num_layers=1", "--model.d_ff=64", "--model.dropout=0", "--model.warmup=50"),
        *("--model.lr=0.005", "--trainer.accelerator=cpu"),
    ]


def scored(printed: str) -> dict[str, float]:
    lines = [line.split() for line in printed.splitlines() if "test/" in line]
    return {line[0]: float(line[1]) for line in lines}


def test_pairs_that_are_in_the_training_part_too_are_told(files, tmp_path, caplog):
    def told(stages: list[str], **others: str) -> list[str]:
        caplog.clear()
        made = task(files | others)
        for stage in stages:
            made.setup(stage)
        messages = [message for message in caplog.messages if "training part too" in message]
        return [message for message in messages if message.startswith("test")]

    lines = Path(files["train_target"]).read_text().splitlines(keepends=True)
    (tmp_path / "other.target").write_text("".join(line.lower() for line in lines[:40]))
    (tmp_path / "part.source").write_text("ganz neu\n" * 10 + "".join(lines[:40]).lower())
    (tmp_path / "part.target").write_text("GANZ NEU\n" * 10 + "".join(lines[:40]))
    (tmp_path / "few.source").write_text("".join(lines[:40]).lower())
    part = {f"test_{side}": str(tmp_path / f"part.{side}") for side in ("source", "target")}
    same = {f"test_{side}": files[f"train_{side}"] for side in ("source", "target")}
    other = {
        "test_source": str(tmp_path / "few.source"),
        "test_target": str(tmp_path / "other.target"),
    }
    found = told(["fit", "test"], **part)
    assert found == [
        "test: 40 of 50 pairs are in the training part too, and a model that was trained on "
        "them is not measured fairly"
    ]
    assert [message[:22] for message in told(["test"], **same)] == ["test: 500 of 500 pairs"]
    assert not told(["test"], **part)  # the training files may be gone
    assert not told(["fit", "test"], **other)  # other translations


SELDOM = ["--trainer.max_epochs=16", "--trainer.check_val_every_n_epoch=8"]


@pytest.mark.slow
def test_it_learns_and_then_filters_text(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--pictures=false", *arguments(files), *SELDOM]) == 0
    printed = capsys.readouterr().out
    assert scored(printed)["test/tokenised_bleu"] > 80
    assert scored(printed)["test/accuracy"] > 0.9
    assert "tok:13a" in printed
    assert "clusterformer translate --checkpoint runs/translation/1" in printed
    results = json.loads(Path("runs/translation/1/results.json").read_text())
    assert 0 < results["seconds_validating"] < results["seconds"]
    assert "tok:13a" in results["signatures"]["sacrebleu"]
    Path("in").write_text("ein hund\nrot rot haus\n", encoding="utf-8")
    run = ["--checkpoint", "runs/translation/1", "--input", "in"]
    assert main(["predict", *run, "--format", "jsonl"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["translation"] for record in records] == ["EIN HUND", "ROT ROT HAUS"]
    assert records[0]["score"] < 0
    assert main(["translate", *run]) == 0
    assert capsys.readouterr().out == "EIN HUND\nROT ROT HAUS\n"
    assert main(["translate", *run, "--nbest", "3", "--beam", "4", "--format", "tsv"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6
    assert lines[0][0] == "EIN HUND"
    assert float(lines[0][1]) >= float(lines[1][1]) >= float(lines[2][1])
    model = clusterformer.load("runs/translation/1", device="cpu")
    assert model.translate(["ein hund"]) == ["EIN HUND"]
    for long, count in (("ein " * 4000, r"\d,\d+ tokens"), ("x" * 200_000, "200,000 characters")):
        with pytest.raises(InputError, match=rf"input 2: a sentence of {count}; allowed are 1,024"):
            model.translate(["ein hund", long])
    [best] = model.translate(["ein hund"], beam=3, nbest=2)
    assert best[0]["translation"] == "EIN HUND"
    assert best[0]["score"] >= best[1]["score"]
    assert model.translate(["", "ein hund"]) == ["", "EIN HUND"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"de": ["ein hund", ""]})
    assert model.translate(frame) == ["EIN HUND", ""]
    model.task.search = replace(model.task.search, nbest=3)  # as of data.nbest
    records = model.predict(["ein hund", "rot rot haus"])
    assert [record["translation"] for record in records] == ["EIN HUND", "ROT ROT HAUS"]
    for wrong, message in (("\ud800", "input 1: character 1 of"), (("ein", "hund"), "2 columns")):
        with pytest.raises(InputError, match=message):
            model.translate([wrong])
    assert main(["translate", *run, "--data.nbest=2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["translate", *run, "--nbest", "9"]) == 2
    assert "nbest must be at most beam (5), got 9" in capsys.readouterr().err
    wrong = ["--data", "Classification", "--data.train", "x.tsv"]
    assert main(["predict", *run, *wrong]) == 2
    assert "a checkpoint of Translation, not of Classification" in capsys.readouterr().err


def test_target_follows_what_the_decoder_reads():
    batch = TranslationBatch.make([[5, 6, BOS_EOS], [7, BOS_EOS]], [[8, BOS_EOS], [9, 10, BOS_EOS]])
    assert batch.tokens.tolist() == [[5, 6, BOS_EOS], [7, BOS_EOS, 0]]
    assert batch.target.tolist() == [[8, BOS_EOS, IGNORE], [9, 10, BOS_EOS]]
    assert batch.decoder_input.tolist() == [[BOS_EOS, 8, 0], [BOS_EOS, 9, 10]]
    assert batch.decoder_mask.tolist() == [[True, True, False], [True, True, True]]


def test_a_dummy_row_counts_nothing(files):
    prepared = task(files)
    prepared.setup("fit")
    network = prepared.build(TransformerConfig(FullAttention, d_model=16, num_layers=1))
    batch = prepared._pairs["train"][[]]
    total, count = prepared.loss(network(batch), batch, 0.1)
    assert (total.item(), count.item()) == (0, 0)
    metrics = prepared.metrics()
    prepared.update(metrics, network(batch), batch, network)
    assert not metrics["sacrebleu"].statistics.any()


@pytest.mark.parametrize("world_size", [2, 3])
def test_scores_do_not_depend_on_the_number_of_processes(files, world_size):
    prepared = task(files, valid_sentences=20)
    prepared.setup("fit")
    network = prepared.build(TransformerConfig(FullAttention, d_model=16, num_layers=1)).eval()
    pairs = prepared._pairs["valid"]
    plan = BucketPlan(pairs.lengths, tokens_per_batch=150, shuffle=False)

    def counted(size: int) -> list[list[float]]:
        states = []
        for rank in range(size):
            metrics = prepared.metrics()
            for indices in DistributedBatchSampler(plan, rank=rank, world_size=size):
                batch = pairs[indices]
                with torch.no_grad():
                    prepared.update(metrics, network(batch), batch, network)
            states.append([metrics[name].statistics for name in ("sacrebleu", "chrf")])
        return [sum(parts).tolist() for parts in zip(*states, strict=True)]

    assert counted(world_size) == counted(1)
    references = [reference for reference in pairs[list(range(30))].references if reference]
    assert len(references) == 20
    assert counted(1)[0][1] == sum(len(reference.plain.split()) for reference in references)


def test_the_checkpoint_alone_translates(files, tmp_path):
    prepared = task(files)
    fitted = network()
    trainer(tmp_path, max_steps=2).fit(fitted, prepared)
    for path in files.values():
        Path(path).unlink()
    again = task(files)
    again.load_state(json.loads(json.dumps(prepared.state())))
    rebuilt = again.build(fitted.transformer_config)
    rebuilt.load_state_dict(fitted.network.state_dict())
    found = []
    for one, translator in ((prepared, fitted.network), (again, rebuilt)):
        batch = next(iter(one.text_dataloader(["ein hund"])))
        with torch.no_grad():
            found.append(one.predictions(translator.eval(), batch))
    assert found[0] == found[1]


def test_a_killed_run_goes_on_as_if_nothing_had_happened(files, tmp_path):
    def run(steps: int, ckpt: Path | None = None) -> ClusterFormer:
        torch.manual_seed(0)
        model = network(dropout=0.1, warmup=200)  # not a share: the runs differ in length
        saving = [LastCheckpoint(tmp_path / f"{steps}", 1000)]
        one = trainer(tmp_path, max_steps=steps, limit_val_batches=0, callbacks=saving)
        one.fit(model, task(files), ckpt_path=ckpt, weights_only=True)
        return model

    run(20)
    resumed, whole = run(30, tmp_path / "20" / "last.ckpt"), run(30)
    for ours, theirs in zip(resumed.parameters(), whole.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("beam", [1, 2])
def test_a_translation_ends_where_learned_positions_do(files, beam):
    own = task(files, beam=beam)
    own.setup("validate")
    sizes = {"d_model": 8, "d_ff": 8, "num_heads": 1, "num_layers": 1}
    config = TransformerConfig(attention=FullAttention, positions="learned", **sizes)
    network = own.build(config).eval()
    with torch.no_grad():
        network.target.tokens.weight[BOS_EOS] = 0.0  # it never ends a text before it must
        network.target.tokens.weight[BOS_EOS + 1 :, 0] = 1.0
        network.decoder.norm.bias[0] = 50.0
    batch = own.text_batch(["ein hund " * 150, "ein"])
    assert 2 * batch.mask[0].sum() + 10 > 512
    state = network.start(batch)
    [[long], [short]] = own._decode(network, state, batch.mask, own.search)
    assert len(long.tokens) == 511
    assert len(short.tokens) == 2 * batch.mask[1].sum() + 10


@pytest.mark.parametrize("max_length", [250, None])
def test_a_sentence_beyond_learned_positions_is_refused_by_itself(files, max_length):
    own = task(files, max_length=max_length)
    own.setup("validate")
    sizes = {"d_model": 8, "d_ff": 8, "num_heads": 1, "num_layers": 1}
    own.build(TransformerConfig(FullAttention, positions="learned", **sizes))
    longest, beyond = (" ".join(["ein"] * words) for words in (511, 512))
    own.check_text(longest)
    with pytest.raises(InputError, match=r"^a sentence of 513 tokens; allowed are 512 tokens"):
        own.check_text(beyond)


def test_pictures_show_the_weights_of_the_last_layer(files):
    prepared = task(files)
    prepared.setup("fit")
    shape = TransformerConfig(FullAttention, d_model=16, num_layers=2)
    network = prepared.build(shape).eval()
    batch = prepared._pairs["valid"][list(range(6))]
    weights = alignment(network, batch)
    assert weights.shape == (*batch.decoder_input.shape, batch.tokens.shape[1])
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)
    assert not weights.masked_select(~batch.mask[:, None]).any()
    layer = network.decoder.layers[-1].cross
    with torch.no_grad():
        for projection in (layer.q_proj, layer.k_proj):
            projection.weight.zero_()
    even = alignment(network, batch)[0, 0][batch.mask[0]]
    assert torch.allclose(even, torch.full_like(even, 1 / len(even)), atol=1e-5)
    _, shown = prepared.alignment(network.bfloat16(), batch, 0)  # as after a training in bf16-true
    assert np.asarray(shown).shape == shown.shape


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ({}, "give a named set"),
        ({"name": "multi30k", "train_source": "a"}, "one of them"),
        (OWN | {"valid_target": None}, "valid_source and valid_target"),
        ({"train_source": "a"}, "train_source and train_target"),
        (
            {"name": "multi30k", "length_penalty": float("nan")},
            "length_penalty must be from -10 to 10",
        ),
        ({"name": "multi30k", "length_penalty": float("inf")}, "length_penalty must be from -10"),
        ({"name": "multi30k", "max_ratio": float("nan")}, "max_ratio must be at least 1"),
        ({"name": "multi30k", "max_ratio": float("inf")}, "max_ratio must be finite"),
        ({"name": "multi30k", "beam": 2, "nbest": 3}, r"nbest must be at most beam"),
        ({"name": "multi30k", "max_ratio": 0.5}, "max_ratio must be at least 1"),
        ({"name": "multi30k", "source_lang": "xx"}, "no language 'xx'"),
        ({"name": "multi30k", "vocab_size": 258}, "vocab_size must be at least 259, got 258"),
        ({"moses": True, **OWN}, r"Moses tokens need data\.source_lang and data\.target_lang"),
        ({"raw": True, **OWN}, r"data\.raw needs data\.name multi30k, got own files"),
        ({"name": "tatoeba", "tokenised": True}, r"tokenised needs own files"),
        ({"name": "multi30k", "moses": False}, "hold Moses tokens"),
        (
            {"name": "multi30k", "split_hyphens": True},
            "multi30k holds Moses tokens without split_hyphens",
        ),
    ],
)
def test_wrong_options_are_told(options, printed):
    with pytest.raises(InputError, match=printed):
        Translation(**options)


@pytest.mark.parametrize(
    ("options", "compounds"),
    [
        ({"name": "wmt14"}, True),
        ({"name": "wmt14", "split_hyphens": True}, False),
        ({"name": "wmt14", "source_lang": "de", "target_lang": "en"}, False),
        ({"name": "multi30k", "source_lang": "en", "target_lang": "de"}, False),
        ({"name": "multi30k", "raw": True, "split_hyphens": True}, False),
    ],
)
def test_compounds_are_scored_where_the_guide_says_so(options, compounds: bool):
    expected = {"tokenised_bleu", "sacrebleu", "chrf"} | ({"compound_bleu"} if compounds else set())
    assert set(Translation(**options).signatures()) == expected


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_missing_part_is_told_before_a_tokenizer_is_learnt(part, files, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("long work before the check")

    monkeypatch.setattr("clusterformer.data.parallel.ParallelText.learn_tokenizer", never)
    absent = {f"{part}_source": "none.de", f"{part}_target": files["valid_target"]}
    with pytest.raises(InputError, match=r"none\.de: no such file"):
        task(files | absent).setup("fit")


def test_a_table_that_is_read_as_lines_is_told(files, caplog):
    path = Path(files["train_source"]).rename(Path(files["train_source"]).with_suffix(".csv"))
    task(files | {"train_source": str(path)}).setup("fit")
    told = [message for message in caplog.messages if "all that makes it a table" in message]
    assert len(told) == 1
    assert told[0].startswith(f"{path}: read as plain text")


def test_an_empty_side_of_validation_is_told(files):
    path = Path(files["valid_target"])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], " ", *lines[2:], ""]))
    with pytest.raises(InputError, match=r"valid\.target:2: empty side"):
        task(files).setup("fit")


def test_named_sets_are_set_up(data_root):
    prepared = Translation("iwslt14", root=str(data_root), valid_sentences=5)
    prepared._tokenizer = SubwordTokenizer(["ein"])
    prepared.setup("validate")
    assert len(prepared._pairs["valid"].lengths) == 7_283


def test_training_files_are_enough(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = [f"--data.train_{side}={files[f'train_{side}']}" for side in ("source", "target")]
    small = ["--model.d_model=16", "--model.d_ff=16", "--model.num_layers=1"]
    small += ["--model.attention=FullAttention", "--model.decoder_attention=FullAttention"]
    steps = ["--trainer.max_steps=2", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    options = [*given, "--data.vocab_size=300", *small, *steps]
    assert main(["fit", "--pictures=false", "--config", "translate.yaml", *options]) == 0
    assert "test/sacrebleu" in capsys.readouterr().out
    source = Translation(
        **{f"train_{side}": files[f"train_{side}"] for side in ("source", "target")}
    )
    train, valid = (source.source._text(split).bitext for split in ("train", "valid"))
    assert len([*train, *valid]) == 500
    assert not {pair.source for pair in train} & {pair.source for pair in valid}


def test_an_empty_line_translates_to_an_empty_line(files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--pictures=false", *arguments(files), "--trainer.max_steps=1"]) == 0
    (tmp_path / "in.txt").write_text("ein hund\n\n  \nkatze\n\n")
    (run,) = (tmp_path / "runs").glob("*/1")
    capsys.readouterr()
    command = ["translate", f"--checkpoint={run}", "--input=in.txt", "--device=cpu"]
    assert main([*command, "--format=tsv", "--nbest=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line == "\t0.0000" for line in lines] == [False] * 2 + [True] * 2 + [False] * 2 + [True]
