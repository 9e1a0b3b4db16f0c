"""`--model.init_from`: what a run learnt starts another, with its tokenizer; never silent."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import clusterformer
from clusterformer.cli.main import main
from clusterformer.training.checkpoints import CHECKPOINT_KEY, read
from clusterformer.training.learnt import open_learnt, start_from

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "it", "there", "today"]
SHAPE = ["--model.attention=FullAttention", "--model.d_model=16", "--model.num_heads=2"]
SHAPE += ["--model.num_layers=2", "--trainer.accelerator=cpu", "--trainer.max_steps=1"]
ROWS = ["--data=Classification", "--data.train=rows.tsv", "--data.text_column=2"]
ROWS += ["--data.label_column=1", "--baselines=false"]
MASKED = ["--data=MaskedLanguageModeling", "--data.train=text.txt", "--data.context=24"]
MASKED += ["--data.tokenizer=bpe", "--data.vocab_size=290", "--data.lowercase=true"]


def fit(*options: str) -> int:
    return main(["fit", *options, *SHAPE])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, and a masked language model that learnt from them."""
    folder = tmp_path_factory.mktemp("learnt")
    lines = [" ".join(WORDS[(7 * i + j * j) % 11] for j in range(8)) for i in range(60)]
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "rows.tsv").write_text("".join(f"{i % 2}\t{t}\n" for i, t in enumerate(lines)))
    pairs = (f"{t}\t{t[4:]}\t{i % 2}\n" for i, t in enumerate(lines))
    (folder / "pairs.tsv").write_text("".join(pairs))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert fit(*MASKED, "--data.next_sentence=true", "--runs=first") == 0
    shutil.move(folder / "first/maskedlanguagemodeling/1", folder / "masked")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(made / "cache"))
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def weights(run: str, file: str = "last") -> dict[str, torch.Tensor]:
    return read(Path(run) / f"checkpoints/{file}.ckpt")["state_dict"]


def test_a_classifier_starts_from_a_masked_model_and_needs_it_no_more(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learning rate of 0 the weights at the end are those of the start."""
    start = [
        *ROWS,
        "--model.init_from=masked",
        "--model.lr=0",
        "--model.attention=ReformerAttention",
    ]
    assert main(["fit", *start, *SHAPE[1:]]) == 0
    told = capsys.readouterr().err
    assert "init_from masked: " in told
    assert "rotations, head.weight, head.bias; not used: " in told
    assert "bias, following." in told
    before, after = weights("masked", "best"), weights("runs/classification/1")
    same = [name for name in after if name in before and torch.equal(before[name], after[name])]
    assert "network.embedding.tokens.weight" in same
    assert {n for n in after if "encoder." in n and "core" not in n} <= set(same)
    report = json.loads(Path("runs/classification/1/results.json").read_text())["init_from"]
    assert 0 < report["taken"] < report["total"]
    assert report["path"] == "masked"

    there = clusterformer.load("masked").task.row_tokenizer
    shutil.rmtree("masked")
    model = clusterformer.load("runs/classification/1")
    [record] = model.predict(["The CAT sat"])
    assert record["label"] in ("0", "1")
    row = model.task.text_batch(["The CAT"]).tokens[0].tolist()
    assert row == [there.start, *there.encode("the cat"), there.separator]
    assert main(["export", "runs/classification/1", "given"]) == 0
    assert clusterformer.load("given").predict(["The CAT sat"])[0]["label"] == record["label"]
    assert "masked" not in Path("given/clusterformer.json").read_text()
    assert "started from the weights of another training" in Path("given/README.md").read_text()
    assert main(["export", "given", "again"]) == 0
    assert "random weights" not in Path("again/README.md").read_text()
    resume = ["fit", "--resume=runs/classification/1", "--trainer.max_steps=2"]
    assert main(resume) == 0
    assert "init_from" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--data=Matching", "--data.joint=true", "--data.train=pairs.tsv", "--baselines=false"],
        ["--data=Similarity", "--data.train=pairs.tsv", "--baselines=false"],
        ["--data=LanguageModeling", "--data.train=text.txt", "--data.context=24"],
        MASKED,
    ],
)
def test_every_task_on_text_starts_from_it(folder: Path, options: list[str], capsys) -> None:
    if "pairs.tsv" in " ".join(options):
        columns = ("first", "second", "label")
        options = [*options, *(f"--data.{n}_column={i}" for i, n in enumerate(columns, 1))]
    assert fit(*options, "--model.init_from=masked", "--model.lr=0") == 0
    assert "weights taken" in capsys.readouterr().err
    [run] = Path("runs").glob("*/1")
    before, after = weights("masked", "best"), weights(str(run))
    causal = type(clusterformer.load(run).task).__name__ == "LanguageModeling"
    stack = "decoder" if causal else "encoder"
    for name, weight in before.items():
        if ".encoder." in name:
            assert torch.equal(weight, after[name.replace("encoder", stack)])
    assert torch.equal(
        after["network.embedding.tokens.weight"][:280],
        before["network.embedding.tokens.weight"][:280],
    )


@pytest.mark.slow
def test_an_encoder_starts_from_a_causal_language_model(folder: Path, capsys) -> None:
    model = ["--data=LanguageModeling", "--data.train=text.txt", "--data.context=24"]
    assert fit(*model) == 0
    assert fit(*ROWS, "--model.init_from=runs/languagemodeling/1", "--model.lr=0") == 0
    assert "new: embedding.tokens.weight (3 of 261 rows), head.weight" in capsys.readouterr().err
    before, after = weights("runs/languagemodeling/1", "best"), weights("runs/classification/1")
    names = [name for name in before if "decoder." in name]
    assert all(torch.equal(before[n], after[n.replace("decoder", "encoder")]) for n in names)


@pytest.mark.parametrize(
    ("task", "length", "vocabulary", "embedding"),
    [
        ("Recall", "length", "vocab_size", "embedding"),
        ("Partner", "num_tokens", "num_pairs", "keys"),
    ],
)
def test_longer_texts_of_a_generated_task_start_from_short_ones(
    folder: Path, capsys, task: str, length: str, vocabulary: str, embedding: str
) -> None:
    """Tokens mean the same at any length, so all is taken; in another vocabulary they do not."""
    options = [f"--data={task}", "--data.batch_size=2", "--data.valid_texts=2"]
    options += ["--data.test_texts=2", "--data.epoch_steps=1", "--model.positions=rotary"]
    options += ["--data.num_pairs=2"] if task == "Recall" else []
    short = [*options, f"--data.{length}=8", f"--data.{vocabulary}=20"]
    assert fit(*short, "--runs=short") == 0
    capsys.readouterr()
    for size, taken in ((20, True), (22, False)):
        longer = [*options, f"--data.{length}=32", f"--data.{vocabulary}={size}"]
        longer += [f"--model.init_from=short/{task.lower()}/1", "--runs=long"]
        assert fit(*longer) == 0
        report = capsys.readouterr().err
        assert f"init_from short/{task.lower()}/1: " in report
        assert (f"new: {embedding}.tokens.weight" not in report) == taken


@pytest.mark.slow
def test_every_embedding_of_the_same_task_is_taken(folder: Path, capsys) -> None:
    """Those of a translation are tied, and those of pairs are of keys and of values."""
    texts = Path("text.txt").read_text()
    Path("upper.txt").write_text(texts.upper())
    translation = ["--data=Translation", "--data.train_source=text.txt", "--data.vocab_size=280"]
    translation += ["--data.train_target=upper.txt", "--data.valid_sentences=0"]
    translation += ["--data.source_lang=de", "--data.target_lang=en"]
    partner = ["--data=Partner", "--data.num_tokens=8", "--data.epoch_steps=1"]
    partner += ["--data.batch_size=2", "--data.valid_texts=2", "--data.test_texts=2"]
    for name, task in (
        ("translation", translation),
        ("partner", [*partner, "--model.positions=learned"]),
    ):
        assert fit(*task, "--runs=first") == 0
        capsys.readouterr()
        start = [f"--model.init_from=first/{name}/1", "--model.lr=0", "--seed_everything=1"]
        assert fit(*task, *start, "--runs=second") == 0
        [told] = [line for line in capsys.readouterr().err.splitlines() if "init_from" in line]
        assert "; new: " not in told
        before, after = weights(f"first/{name}/1", "best"), weights(f"second/{name}/1")
        assert all(torch.equal(before[n], after[n]) for n in before)
        report = json.loads(Path(f"second/{name}/1/results.json").read_text())
        assert report["init_from"]["taken"] == report["init_from"]["total"]
        assert report["init_from"]["total"] == report["parameters"]


@pytest.mark.slow
def test_word_vectors_of_another_width_are_taken_with_their_map(folder: Path, capsys) -> None:
    numbers = [" ".join(f"{(7 * i + j) % 5}.5" for j in range(6)) for i in range(len(WORDS))]
    rows = (f"{word} {row}\n" for word, row in zip(WORDS, numbers, strict=True))
    Path("vectors.txt").write_text("".join(rows))
    assert fit(*ROWS, "--data.vectors=vectors.txt", "--runs=first") == 0
    capsys.readouterr()
    assert fit(*ROWS, "--model.init_from=first/classification/1", "--model.lr=0") == 0
    assert "; new: " not in capsys.readouterr().err
    before, after = weights("first/classification/1", "best"), weights("runs/classification/1")
    assert before["network.embedding.project.weight"].shape == (16, 6)
    assert all(torch.equal(before[n], after[n]) for n in before if "embedding" in n)
    assert clusterformer.load("runs/classification/1").predict(["the cat"])


def test_a_run_that_weighs_labels_starts_another_that_does(folder: Path, capsys) -> None:
    weighed = [*ROWS, "--data.class_weights=balanced"]
    assert fit(*weighed, "--runs=first") == 0
    assert fit(*weighed, "--model.init_from=first/classification/1") == 0
    assert "; new: " not in capsys.readouterr().err


def test_options_by_which_the_same_weights_mean_something_else_are_named(
    folder: Path, capsys
) -> None:
    start = [*ROWS, "--model.init_from=masked"]
    assert fit(*start) == 0
    assert "other options" not in capsys.readouterr().err
    other = ["--model.norm=post", "--model.positions=none", "--model.num_heads=4"]
    other.append("--model.query_scale=1.5")
    assert main(["fit", *start, *SHAPE, *other]) == 0
    told = "norm post (there pre), num_heads 4 (there 2), positions none (there sinusoidal)"
    told += ", query_scale 1.5 (there 1.0)"
    assert f"; other options than the run's: {told}\n" in capsys.readouterr().err
    report = json.loads(Path("runs/classification/2/results.json").read_text())["init_from"]
    assert report["other_options"] == told.split(", ")


@pytest.mark.slow
def test_a_dense_warm_up_that_is_over_is_told(folder: Path, capsys) -> None:
    def fit_indexer(*options: str) -> str:
        indexer = ["--model.attention=IndexerAttention", *options]
        assert main(["fit", *ROWS, *SHAPE, *indexer]) == 0
        return capsys.readouterr().err

    fit_indexer("--model.attention.dense_steps=1")
    run, told = "--model.init_from=runs/classification/1", "; no dense warm-up (dense_steps): "
    assert f"{told}the run had it\n" in fit_indexer(run, "--model.attention.dense_steps=1")
    assert told not in fit_indexer(run, "--model.attention.dense_steps=2")
    assert told not in fit_indexer(run)


def test_what_does_not_fit_is_named(folder: Path) -> None:
    learnt = open_learnt("masked")
    network = clusterformer.load("masked").network
    shorter = {n: w for n, w in learnt.weights.items() if "layers.1" not in n}
    shorter["encoder.layers.0.feed_forward.0.weight"] = torch.zeros(5, 16)
    start = start_from(
        network, learnt._replace(weights=shorter), same_tokens=False, same_outputs=False
    )
    assert "encoder.layers.*.feed_forward.0.weight (5, 16) for (64, 16)" in start.misfits
    assert "embedding.tokens.weight" in start.new  # its numbers name other tokens
    assert "embedding.tokens.weight" in start.unused
    assert "encoder.layers.1.*" in start.new


def test_rows_that_are_left_are_named(folder: Path) -> None:
    learnt = open_learnt("masked")
    tokens = learnt.weights["embedding.tokens.weight"]
    longer = {**learnt.weights, "embedding.tokens.weight": torch.cat([tokens, tokens[:3]])}
    start = start_from(
        clusterformer.load("masked").network,
        learnt._replace(weights=longer),
        same_tokens=True,
        same_outputs=False,
    )
    assert f"embedding.tokens.weight (3 of {len(tokens) + 3} rows)" in start.unused


def test_a_run_of_words_and_a_task_of_bytes_do_not_fit(folder: Path, capsys) -> None:
    word = [*MASKED[:3], "--data.tokenizer=word", "--model.init_from=masked", "--runs=words"]
    assert fit(*word) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "data.tokenizer word is not that of this run; leave data.tokenizer out" in error


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.init_from=nowhere", "init_from: nowhere: no such run directory"),
        ("--model.init_from=.", "init_from: .: holds no config.yaml; a run directory looks like"),
        ("--model.init_from=text.txt", "init_from: text.txt: refused, not a whole checkpoint"),
    ],
)
def test_what_is_no_run_is_one_line(folder: Path, option: str, message: str, capsys) -> None:
    assert fit(*ROWS, option) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"error: {message}" in told
    assert not Path("runs/classification").exists()


def test_another_width_and_two_models_are_refused(folder: Path, capsys) -> None:
    assert main(["fit", *ROWS, "--model.init_from=masked", *SHAPE, "--model.d_model=8"]) == 2
    told = capsys.readouterr().err
    assert "nothing of this run of MaskedLanguageModeling fits the model: " in told
    assert "give the model options of that run" in told
    assert fit(*ROWS, "--model.init_from=masked", "--model.pretrained=x") == 2
    assert "give either pretrained or init_from, got 'x' and 'masked'" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["freeze=true", "pretrained_lr=0.01"])
def test_options_of_a_pretrained_model_are_refused(folder: Path, option: str, capsys) -> None:
    assert fit(*ROWS, "--model.init_from=masked", f"--model.{option}") == 2
    name = option.partition("=")[0]
    told = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {name} is for a pretrained model" in told
    assert f"leave model.{name} out" in told
    assert not Path("runs/classification/1").exists()


def test_a_damaged_tokenizer_is_refused(folder: Path, capsys) -> None:
    path = Path("masked/checkpoints/best.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    checkpoint[CHECKPOINT_KEY]["task"]["tokenizer"] = {"kind": "bpe", "json": "{"}
    torch.save(checkpoint, path)
    assert fit(*ROWS, "--model.init_from=masked") == 2
    assert "error: init_from masked: refused, task" in capsys.readouterr().err


def test_a_layer_that_the_run_does_not_have_is_named_by_its_number(folder: Path, capsys) -> None:
    deeper = [option.replace("num_layers=2", "num_layers=3") for option in SHAPE]
    assert main(["fit", *ROWS, "--model.init_from=masked", *deeper]) == 0
    told = capsys.readouterr().err
    assert "new: encoder.layers.2.*, head.weight, head.bias; not used: " in told
    assert "weights taken, and its tokenizer of 28" in told
    assert "has not ended" not in told


def test_a_run_of_another_width_is_refused(folder: Path, capsys) -> None:
    wider = [option.replace("d_model=16", "d_model=32") for option in SHAPE]
    wider += ["--model.attention=NeuralClusteringAttention"]
    assert main(["fit", *MASKED, *wider]) == 0
    narrow = "--model.init_from=runs/maskedlanguagemodeling/1"
    assert main(["fit", *ROWS, narrow, *wider, "--model.d_model=16"]) == 2
    told = capsys.readouterr().err
    assert "init_from runs/maskedlanguagemodeling/1: nothing but 258 weights of this run" in told
    assert "give the model options of that run, such as d_model" in told


def test_a_run_that_has_not_ended_is_told(folder: Path, capsys) -> None:
    Path("masked/results.json").unlink()
    assert fit(*ROWS, "--model.init_from=masked") == 0
    told = capsys.readouterr().err
    assert (
        "init_from masked: its training has not ended; these are the weights of its best.ckpt"
        in told
    )
