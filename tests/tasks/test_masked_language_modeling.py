"""Masked language modelling end to end: it learns, resumes exactly, and fills blanks."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import clusterformer
from clusterformer.attention import FullAttention, LocalAttention, mechanisms
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.task import Output
from clusterformer.tasks.masked_language_modeling import MaskedLanguageModeling
from clusterformer.training.checkpoints import CHECKPOINT_KEY, read
from clusterformer.training.evaluation import Evaluation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "it", "there", "today"]
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(words), (60, 8), generator=generator).tolist()
    lines = (" ".join(words[pick] for pick in line) for line in picks)
    (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def command(*more: str) -> list[str]:
    return [
        *("fit", "--data=MaskedLanguageModeling", "--data.train=text.txt", "--data.context=24"),
        *("--data.next_sentence=true", "--model.attention=NeuralClusteringAttention"),
        *("--model.d_model=16", "--model.num_heads=2"),
        *("--model.num_layers=1", "--model.warmup=5", "--trainer.accelerator=cpu", *more),
    ]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return read(run / "checkpoints/last.ckpt")["state_dict"]


def test_it_trains_and_fills_blanks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--data.tokenizer=wordpiece", "--data.vocab_size=520"]
    assert main(command(*options, "--trainer.max_epochs=1", "--data.batch_size=30")) == 0
    told = capsys.readouterr().out
    for measure in ("bits_per_masked_token", "masked_accuracy", "next_sentence_accuracy"):
        assert f"test/{measure}" in told
    assert "test/keys_seen" in told
    assert "fill each <mask>: clusterformer predict --checkpoint" in told
    model = clusterformer.load("runs/maskedlanguagemodeling/1")
    [record] = model.predict(["the cat <mask> on a mat"])
    assert record["text"].startswith("the cat")
    assert "<mask>" not in record["text"]
    with pytest.raises(InputError, match="input 1: no <mask> in 'the cat'"):
        model.predict(["the cat"])
    rows = ["text", *["a <mask>"] * 70, '""', "the cat", "a <mask>"]
    (folder / "lines.csv").write_text("".join(f"{row}\n" for row in rows))
    run = "--checkpoint=runs/maskedlanguagemodeling/1"
    assert main(["predict", run, "--input=lines.csv", "--text_column=text"]) == 2
    out, error = capsys.readouterr()
    assert "lines.csv:73: no <mask> in 'the cat'" in error
    assert len(out.splitlines()) == 72  # the header, and the rows before it


@pytest.mark.parametrize(
    ("tokenizer", "size", "line", "hidden"),
    [
        ("bytes", None, "the <mask>at sat on <mask> mat", [5, 16]),
        ("bpe", 300, "the <mask> sat on <mask> mat", [1, 4]),
        ("wordpiece", 600, "the <mask> sat on <mask> mat", [1, 4]),
        ("word", None, "<mask> <mask> sat on a mat\n", [0, 1]),
        ("bpe", 300, "<mask> <mask> sat on a mat\n", [0, 1]),
    ],
)
def test_a_text_with_blanks_is_running_text_with_masked_tokens(
    folder: Path, tokenizer, size, line: str, hidden: list[int]
) -> None:
    task = MaskedLanguageModeling(
        train="text.txt", tokenizer=tokenizer, vocab_size=size, context=16
    )
    task.setup("fit")
    row = task.row_tokenizer
    tokens = row.encode("the cat sat on a mat")
    for index in hidden:
        tokens[index] = row.blank
    batch = task.text_batch([line])
    assert batch.tokens.tolist() == [[row.start, *tokens, row.separator]]
    assert batch.asked.tolist() == [[1 + index for index in hidden]]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_text_beyond_learned_positions_is_refused_by_itself(folder: Path, positions: str) -> None:
    task = MaskedLanguageModeling(train="text.txt", tokenizer="word", context=16)
    task.setup("fit")
    task.build(TransformerConfig(FullAttention, d_model=8, num_heads=2, positions=positions))
    task.check_text(" ".join(["<mask>"] * 14))
    long = " ".join(["<mask>"] * 15)
    if positions == "rotary":
        task.check_text(long)
        return
    with pytest.raises(InputError, match=r"^a text of 17 tokens is longer than the 16 learned"):
        task.check_text(long)


def test_fewer_tokens_than_asked_for_are_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The vocabulary of a small text, and a text shorter than one row."""
    small = {"tokenizer": "bpe", "vocab_size": 5000}
    task = MaskedLanguageModeling(train="text.txt", context=4000, **small)
    with caplog.at_level("INFO"):
        task.setup("fit")
    size, total = task.tokenizer.vocab_size, len(task._streams["train"])
    assert f"tokenizer bpe: {size} subwords, all that the training text gives" in caplog.text
    assert f"train: {total} tokens in all, fewer than context 4,000" in caplog.text
    caplog.clear()
    enough = MaskedLanguageModeling(train="text.txt", context=8, tokenizer="bpe", vocab_size=size)
    with caplog.at_level("INFO"):
        enough.setup("fit")
    assert not caplog.text


def test_an_empty_file_is_called_empty(folder: Path) -> None:
    Path("empty.txt").touch()
    with pytest.raises(InputError, match=r"empty\.txt: no text in it$"):
        MaskedLanguageModeling(train="empty.txt").setup("fit")


@pytest.mark.slow
def test_word_pieces_go_from_pretraining_to_a_task(folder: Path) -> None:
    pieces = ["--data.tokenizer=wordpiece", "--data.lowercase=true", "--data.vocab_size=520"]
    assert main(command(*pieces, "--trainer.max_steps=2", "--data.batch_size=30")) == 0
    run = "runs/maskedlanguagemodeling/1"
    model = clusterformer.load(run)
    text = model.predict(["The #1 naïve <mask> sat\u3000on ☃"])[0]["text"]
    assert text.startswith("the #1 naïve")
    assert text.endswith(" sat\u3000on ☃")

    lines = (folder / "text.txt").read_text().splitlines()
    rows = [f"{line}\t{'cat' in line}" for line in lines]
    (folder / "rows.tsv").write_text("".join(f"{row}\n" for row in ("text\tlabel", *rows)))
    fit = command(f"--model.init_from={run}", "--trainer.max_steps=2", "--baselines=false")
    taken = [option for option in fit if not option.startswith("--data")]
    assert main([*taken, "--data=Classification", "--data.train=rows.tsv"]) == 0
    first, second = (
        read(folder / run / "checkpoints/last.ckpt")[CHECKPOINT_KEY]["task"]["tokenizer"]
        for run in (run, "runs/classification/1")
    )
    assert first["kind"] == "wordpiece"
    assert second == {"kind": "row", "inner": first}
    records = clusterformer.load("runs/classification/1").predict(["the cat sat"])
    assert records[0]["label"] in ("True", "False")


@pytest.mark.slow
def test_a_stopped_training_goes_on_exactly(folder: Path) -> None:
    assert main(command("--trainer.max_epochs=2", "--seed_everything=3")) == 0
    stopped = command("--checkpoint_every=3", "--trainer.max_steps=13", "--seed_everything=3")
    assert main(stopped) == 0
    first, second = (folder / f"runs/maskedlanguagemodeling/{number}" for number in (1, 2))
    resume = ["fit", f"--resume={second}", "--trainer.max_steps=-1", "--trainer.max_epochs=2"]
    assert main(resume) == 0
    whole, resumed = weights(first), weights(second)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.slow
def test_what_both_sides_tell_is_learnt(folder: Path) -> None:
    """A letter between two: only a model that reads both sides knows it."""
    (folder / "text.txt").write_text(("ab" * 12 + "\n" + "cd" * 12 + "\n") * 160)
    options = ["--data.context=16", "--model.lr=0.01", "--data.next_sentence=false"]
    options += ["--model.attention=FullAttention", "--model.num_layers=2"]
    assert main(command(*options, "--trainer.max_epochs=20", "--data.batch_size=16")) == 0
    results = json.loads(Path("runs/maskedlanguagemodeling/1/results.json").read_text())["results"]
    assert results["test/masked_accuracy"] > 0.6  # without reading at most 0.25
    [record] = clusterformer.load("runs/maskedlanguagemodeling/1").predict(["cdcdcd<mask>dcdcdc"])
    assert set(record["text"]) <= {"c", "d"}


@pytest.mark.parametrize("kind", mechanisms(), ids=lambda kind: kind.__name__)
def test_every_mechanism_reads_masked_rows(folder: Path, kind) -> None:
    task = MaskedLanguageModeling(train="text.txt", context=24, next_sentence=True)
    task.setup("test")
    network = task.build(TransformerConfig(kind, d_model=16, num_heads=2, num_layers=1))
    batch = next(iter(task.test_dataloader()))
    loss, count = task.loss(network.eval()(batch), batch, 0.0)
    assert (loss / count).item() == pytest.approx(math.log(261), abs=2)


def measured(task: MaskedLanguageModeling, network: torch.nn.Module) -> dict[str, torch.Tensor]:
    task.setup("test")
    evaluation = Evaluation(task, torch.device("cpu"))
    with torch.no_grad():
        for batch in task.test_dataloader():
            evaluation.add(network, network(batch), batch)
    return evaluation.compute()


def test_an_even_guess_needs_the_bits_of_the_vocabulary(folder: Path) -> None:
    class Even(torch.nn.Module):
        def forward(self, batch) -> Output:
            found = network(batch)
            return found._replace(logits=torch.zeros_like(found.logits))

    task = MaskedLanguageModeling(train="text.txt", context=24)
    task.setup("test")
    network = task.build(TransformerConfig(FullAttention, d_model=8, num_heads=1))
    found = measured(task, Even())
    assert found["bits_per_masked_token"].item() == pytest.approx(math.log2(261))


def test_evaluation_hides_the_same_tokens_whatever_the_seed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for seed in ("1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        task = MaskedLanguageModeling(train="text.txt", context=24)
        task.setup("test")
        found.append(next(iter(task.test_dataloader())))
    assert torch.equal(found[0].tokens, found[1].tokens)


def test_segments_share_the_weight_of_tokens(folder: Path) -> None:
    """The loss is the mean over masked tokens plus that over rows, however rows are shared out."""
    task = MaskedLanguageModeling(train="text.txt", context=24, next_sentence=True)
    task.setup("test")
    config = TransformerConfig(LocalAttention, d_model=8, num_heads=1, dropout=0.0)
    network = task.build(config).eval()
    batch = next(iter(task.test_dataloader()))
    total, count = task.loss(network(batch), batch, 0.0)
    parts = [type(batch)(*(field[part] for field in batch)) for part in (slice(3), slice(3, None))]
    sums = [task.loss(network(part), part, 0.0) for part in parts]
    assert count == sum(counted for _, counted in sums)
    torch.testing.assert_close(total, sums[0][0] + sums[1][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_share": 0.0}, "mask_share must be between 0 and 1, got 0.0"),
        ({"lowercase": True}, "lowercase is for tokenizers bpe and wordpiece, got .* bytes"),
        ({"context": 7}, "context must be at least 8, got 7"),
        ({"name": ["wikitext2"]}, "either a named set"),
    ],
)
def test_bad_options_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedLanguageModeling(**{"train": "text.txt", **options})


@pytest.mark.slow
def test_a_killed_training_goes_on_exactly(folder: Path) -> None:
    """Kill -9 at three random moments, then go on: the weights are those of a run left in peace."""
    options = ["--trainer.max_steps=60", "--checkpoint_every=5", "--data.batch_size=4"]
    program = [sys.executable, "-m", "clusterformer"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    subprocess.run(
        [*program, *command(*options, "--runs=peace")], check=True, env=environment,
        capture_output=True,
    )  # fmt: skip
    arguments, run = command(*options, "--runs=killed"), folder / "killed/maskedlanguagemodeling/1"
    for kill in range(3):
        child = subprocess.Popen(
            [*program, *arguments], env=environment, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        before = (run / "checkpoints/last.ckpt").stat().st_mtime_ns if kill else 0
        deadline = time.monotonic() + 120
        while child.poll() is None and time.monotonic() < deadline:
            last = run / "checkpoints/last.ckpt"
            if last.exists() and last.stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(0.05 * kill)
        child.send_signal(signal.SIGKILL)
        child.wait()
        arguments = ["fit", f"--resume={run}"]
    done = subprocess.run([*program, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peace, killed = weights(folder / "peace/maskedlanguagemodeling/1"), weights(run)
    assert read(run / "checkpoints/last.ckpt")["global_step"] == 60
    assert all(torch.equal(peace[name], killed[name]) for name in peace)
