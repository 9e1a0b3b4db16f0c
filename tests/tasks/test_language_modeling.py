"""Language modelling end to end: measures, resume, honesty of the causal models, generation."""

import csv
import gzip
import math
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import clusterformer
from clusterformer.attention import (
    LocalAttention,
    NeuralClusteringAttention,
)
from clusterformer.cli.main import main
from clusterformer.data import documents
from clusterformer.data.stream_tokenizers import ByteTokenizer, StreamBytePairTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.errors import InputError
from clusterformer.generation import Sampling, TextGenerator
from clusterformer.models.config import TransformerConfig
from clusterformer.models.embeddings import PAD
from clusterformer.models.language_model import LanguageModel
from clusterformer.models.transformer import Output, StackOutput
from clusterformer.task import IGNORE, Batch
from clusterformer.tasks.language_modeling import LanguageModeling
from clusterformer.training.checkpoints import read
from clusterformer.training.evaluation import Evaluation

NEURAL = partial(
    NeuralClusteringAttention, num_clusters=4, chunk_size=4, local_heads=1, local_window=4
)
SPACE = BOS + 1 + ord(" ")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "–", "Zoë", "saw", "it", "there", "today"]


def text(lines: int) -> str:
    generator = torch.Generator().manual_seed(lines)
    picks = torch.randint(len(WORDS), (lines, 8), generator=generator).tolist()
    return "".join(" ".join(WORDS[pick] for pick in line) + "\n" for line in picks)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(text(40), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"train": "books"}, "books: too few files, 4, to hold some out; give data.valid and"),
        ({"train": "text.txt", "valid": "none.txt"}, "none.txt: no such file"),
        ({"train": "text.txt", "test": "none.txt"}, "none.txt: no such file"),
    ],
)
def test_a_missing_part_is_told_before_a_tokenizer_is_learnt(
    options: dict[str, str], told: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("long work before the check")

    (folder / "books").mkdir()
    for number in range(4):
        (folder / "books" / f"{number}.txt").write_text(text(10), encoding="utf-8")
    monkeypatch.setattr(StreamBytePairTokenizer, "train", never)
    with pytest.raises(InputError, match=told):
        LanguageModeling(tokenizer="bpe", **options).setup("fit")


def test_files_that_are_in_the_training_part_too_are_told(folder: Path, caplog) -> None:
    def told(stages: list[str], **files: str) -> list[str]:
        caplog.clear()
        task = LanguageModeling(**files)
        for stage in stages:
            task.setup(stage)
        return [message for message in caplog.messages if "training part" in message]

    (folder / "books").mkdir()
    for number in range(4):
        (folder / "books" / f"{number}.txt").write_text(text(10), encoding="utf-8")
    inside = {"train": "books", "valid": "text.txt", "test": "books/../books/2.txt"}
    assert told(["fit", "test", "test"], **inside) == [
        "test: 1 of 1 files are in the training part too, and a model that was trained on them "
        "is not measured fairly"
    ]
    assert not told(["test"], **inside)  # the training files may be gone
    assert len(told(["test"], train="text.txt", test="text.txt")) == 1
    assert not told(["fit", "test"], train="text.txt")


class Uniform(nn.Module):
    """Gives every byte the same probability."""

    def forward(self, batch: Batch) -> Output:
        logits = torch.full((*batch.tokens.shape, 258), float("-inf"))
        logits[..., BOS + 1 :] = 0.0
        return Output(logits, StackOutput(logits, []))


class Spaces(nn.Module):
    """Gives a space half of the probability, and other bytes the rest."""

    def forward(self, batch: Batch) -> Output:
        logits = torch.full((*batch.tokens.shape, 258), float("-inf"))
        logits[..., BOS + 1 :] = 0.0
        logits[..., SPACE] = math.log(255)
        return Output(logits, StackOutput(logits, []))


def evaluated(task: LanguageModeling, model: nn.Module) -> dict[str, Tensor]:
    task.setup("test")
    evaluation = Evaluation(task, torch.device("cpu"))
    for batch in task.test_dataloader():
        evaluation.add(model, model(batch), batch)
    return evaluation.compute()


@pytest.mark.parametrize(("context", "stride"), [(64, None), (64, 17), (10_000, None)])
def test_a_uniform_model_needs_eight_bits_a_byte(folder: Path, context: int, stride) -> None:
    task = LanguageModeling(train="text.txt", test="text.txt", context=context, stride=stride)
    found = evaluated(task, Uniform())
    content = (folder / "text.txt").read_bytes()
    assert found["bits_per_byte"].item() == pytest.approx(8)
    assert found["loss"].item() == pytest.approx(math.log(256))
    expected = len(content) / len(content.split()) * math.log(256)
    assert found["word_perplexity"].log().item() == pytest.approx(expected)


def test_each_text_of_a_prediction_has_its_own_code_length(folder: Path) -> None:
    task = LanguageModeling(train="text.txt")
    task.setup("fit")
    found = task.predictions(Uniform(), task.text_batch(["cat", "a longer text"]))
    assert [record["bits"] for record in found] == pytest.approx([8 * 3, 8 * 13])
    assert [record["tokens"] for record in found] == [3, 13]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_text_beyond_learned_positions_is_refused_by_itself(folder: Path, positions: str) -> None:
    task = LanguageModeling(train="text.txt", context=16)
    task.setup("fit")
    config = TransformerConfig(LocalAttention, d_model=8, num_heads=2, positions=positions)
    network = task.build(config)
    assert len(task.predictions(network, task.text_batch(["a" * 16]))) == 1
    task.check_text("a" * 16)
    if positions == "rotary":
        task.check_text("a" * 17)
        return
    with pytest.raises(InputError, match=r"^a text of 17 tokens is longer than the 16 learned"):
        task.check_text("a" * 17)


@pytest.mark.parametrize("stride", [None, 50])
def test_far_bytes_are_found_among_bytes_that_another_window_counts(folder: Path, stride) -> None:
    far, length = 64, 5
    task = LanguageModeling(
        train="text.txt", test="text.txt", context=400, stride=stride, far=far, far_length=length
    )
    found = evaluated(task, Spaces())
    bits = []
    for batch in task.test_dataloader():
        for tokens, target, mask in zip(batch.tokens, batch.target, batch.mask, strict=True):
            here = [*tokens[mask].tolist(), int(target[mask][-1])]
            for at in range(length, len(here)):
                gram = here[at - length + 1 : at + 1]
                ends = [i for i in range(length - 1, at) if here[i - length + 1 : i + 1] == gram]
                if ends and at - ends[-1] > far and target[at - 1] != IGNORE:
                    bits.append(1.0 if here[at] == SPACE else 1 + math.log2(255))
    assert len(bits) > 100
    assert float(found["bits_per_byte_far"]) == pytest.approx(sum(bits) / len(bits))


def test_the_first_windows_of_an_evaluation_are_a_sample_of_all_documents(folder: Path) -> None:
    (folder / "many").mkdir()
    for letter in "abcd":
        (folder / "many" / f"{letter}.txt").write_text(letter * 1000)
    task = LanguageModeling(train="text.txt", test="many", context=50, batch_size=4)
    task.setup("test")
    batches = [batch.target.tolist() for batch in task.test_dataloader()]
    assert batches == [batch.target.tolist() for batch in task.test_dataloader()]
    windows = [window for batch in batches for window in batch]
    assert len({window[-1] for window in windows[:20]}) == 4
    assert sum(len(window) - window.count(IGNORE) for window in windows) == 4 * 1001 - 1


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe", "wordpiece", "word"])
def test_measures_do_not_depend_on_the_windows(folder: Path, tokenizer) -> None:
    """A model that sees only one token gives the same measures for any context and stride."""
    size = {"bpe": 300, "wordpiece": 600}.get(tokenizer)
    options = {"tokenizer": tokenizer, "vocab_size": size}
    found = []
    for context, stride in ((8, None), (50, 3), (5000, None)):
        task = LanguageModeling(
            train="text.txt", test="text.txt", context=context, stride=stride, **options
        )
        task.setup("test")
        torch.manual_seed(3)
        one = partial(LocalAttention, window=1)
        config = TransformerConfig(
            one, positions="none", d_model=16, num_heads=2, num_layers=1, d_ff=32, dropout=0.0
        )
        model = LanguageModel(config, vocab_size=task.tokenizer.vocab_size).eval()
        with torch.no_grad():
            found.append(evaluated(task, model))
    for other in found[1:]:
        for name, value in found[0].items():
            if not name.endswith("keys_seen"):  # one token, as a share of the context
                torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-4)
    assert ("bits_per_byte" in found[0]) == (tokenizer != "word")


def test_word_perplexity_of_words_counts_line_ends_and_no_starts(folder: Path) -> None:
    texts = [text(1), text(2), text(3)]
    (folder / "many").mkdir()
    for number, document in enumerate(texts):
        (folder / "many" / f"{number}.txt").write_text(document, encoding="utf-8")
    task = LanguageModeling(train="text.txt", test="many", tokenizer="word", context=32)
    assert task.monitor == "val/word_perplexity"
    task.setup("test")
    size = task.tokenizer.vocab_size

    class Even(nn.Module):
        def forward(self, batch: Batch) -> Output:
            logits = torch.zeros(*batch.tokens.shape, size)
            return Output(logits, StackOutput(logits, []))

    words = sum(len(document.split()) + document.count("\n") for document in texts)
    predicted = words + 2  # the starts of the second and the third document too
    found = evaluated(task, Even())["word_perplexity"].log().item()
    assert found == pytest.approx(predicted / words * math.log(size))
    assert sum((batch.target != IGNORE).sum() for batch in task.test_dataloader()) == predicted


@pytest.mark.parametrize("name", ["wikitext2", ["wikitext2"]])
def test_line_ends_of_wikitext2_are_words_however_it_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name
) -> None:
    (folder / "wikitext2").mkdir()
    for split in ("train", "valid", "test"):
        with gzip.open(folder / "wikitext2" / f"{split}.txt.gz", "wt", encoding="utf-8") as file:
            file.write(text(40))
        monkeypatch.setitem(documents._WIKITEXT2, split, (40, 320))
    expected = len(text(40).encode()) / (320 + 40) * math.log(256)
    for source in ({"name": name}, {"train": "text.txt"}):  # a test may have another text
        trained = LanguageModeling(**source, root=str(folder), context=64)
        trained.setup("fit")
        task = LanguageModeling(name, root=str(folder), context=64)
        task.load_state(trained.state())
        found = evaluated(task, Uniform())
        assert found["word_perplexity"].log().item() == pytest.approx(expected)


@pytest.mark.parametrize("lowercase", [False, True])
def test_a_tokenizer_without_case_is_told(
    folder: Path, lowercase: bool, caplog: pytest.LogCaptureFixture
) -> None:
    learnt = StreamBytePairTokenizer.train(["A a\n"], vocab_size=258, lowercase=lowercase)
    task = LanguageModeling(train="text.txt", tokenizer="bpe", context=64)
    task.load_state({"tokenizer": learnt.state()})
    for stage in ("validate", "test"):
        task.setup(stage)
    assert caplog.text.count("of the text in lower case") == lowercase  # said once


def command(*more: str) -> list[str]:
    return [
        *(
            "fit",
            "--pictures=false",
            "--data=LanguageModeling",
            "--data.train=text.txt",
            "--data.context=16",
        ),
        *("--model.attention=NeuralClusteringAttention", "--model.attention.num_clusters=4"),
        *("--model.attention.chunk_size=4", "--model.d_model=16", "--model.num_heads=2"),
        *("--model.num_layers=2", "--model.warmup=5", "--model.positions=rotary"),
        *("--trainer.accelerator=cpu", "--trainer.max_epochs=1", *more),
    ]


def test_a_limited_validation_reads_the_same_windows_in_every_epoch(folder: Path) -> None:
    limits = [f"--trainer.limit_{part}_batches=1" for part in ("train", "val", "test")]
    limits += ["--model.lr=0", "--data.batch_size=1", "--trainer.max_epochs=3"]
    assert main(command(*limits)) == 0
    with Path("runs/languagemodeling/1/metrics.csv").open() as file:
        found = [row["val/loss"] for row in csv.DictReader(file) if row["val/loss"]]
    assert len(found) == 3
    assert len(set(found)) == 1  # as the weights stay


def test_it_trains_resumes_and_generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command()) == 0
    assert main(command("--checkpoint_every=3", "--trainer.max_steps=7")) == 0
    run = folder / "runs/languagemodeling/2"
    assert read(run / "checkpoints/last.ckpt")["global_step"] == 7
    assert main(["fit", f"--resume={run}", "--trainer.max_steps=-1"]) == 0
    whole, resumed = (
        read(folder / f"runs/languagemodeling/{number}/checkpoints/last.ckpt")["state_dict"]
        for number in (1, 2)
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert main(["test", f"--checkpoint={run}"]) == 0
    assert "test/bits_per_byte\t" in capsys.readouterr().out

    prompt = ["--prompt", "the Zoë", "--tokens", "40"]
    generate = ["generate", "--checkpoint", str(run), *prompt]
    written = []
    for options in (["--seed=1"], ["--seed=1"], ["--seed=2"], ["--temperature=0"]):
        assert main([*generate, *options]) == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1] != written[2]
    assert all(piece.startswith("the Zoë") for piece in written)
    assert main(["generate", f"--checkpoint={run}", "--prompt=", "--tokens=3"]) == 0
    capsys.readouterr()
    (folder / "some.txt").write_text("the cat sat\nsat – the Zoë\n", encoding="utf-8")
    assert main(["predict", f"--checkpoint={run}", "--input=some.txt"]) == 0
    bits, tokens = capsys.readouterr().out.splitlines()[1].split("\t")
    assert float(bits) > 0
    assert int(tokens) == len("sat – the Zoë".encode())

    with pytest.raises(InputError, match="tokens must be at least 1, got 0"):
        clusterformer.load(run).generate("x", tokens=0)
    for wrong, message in (
        (["--top_p=2"], "top_p must be above 0 and at most 1, got 2.0"),
        (["--tokens=many"], "--tokens is a number (int), got 'many'"),
        (["--length=3"], "no option --length"),
        (["--prompt=caf\udce9"], "is no character; is the text UTF-8?"),
        (["--prompt=a", f"--seed={10**20}"], "seed must be a number of 64 bits"),
    ):
        assert main(["generate", f"--checkpoint={run}", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_text_is_streamed_in_whole_characters(folder: Path) -> None:
    """A model that has learnt a text of long characters by heart says them whole."""

    class Parrot(nn.Module):
        embedding = nn.Module()

        def prefill(self, tokens: Tensor) -> tuple[Tensor, int]:
            return self.step(tokens, 0)

        def step(self, tokens: Tensor, state: int) -> tuple[Tensor, int]:
            logits = F.one_hot(torch.tensor([answer[state]]), 258) * 100.0
            logits[:, PAD] = 1000.0  # is never drawn
            return logits, state + 1

    answer = [*ByteTokenizer().encode("é🌊東 x"), BOS]
    model = Parrot()
    model.embedding.tokens = nn.Embedding(1, 1)
    pieces = list(TextGenerator(model, ByteTokenizer()).stream("", Sampling()))  # type: ignore[arg-type]
    assert pieces == ["é", "🌊", "東", " ", "x"]
    answer[4:] = [BOS]  # cut within a character
    pieces = list(TextGenerator(model, ByteTokenizer()).stream("", Sampling()))  # type: ignore[arg-type]
    assert pieces == ["é", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a named set"),
        ({"name": "wikitext2", "train": "x.txt"}, "either a named set"),
        ({"name": "wikitext2", "valid": "x.txt"}, "either a named set .* and valid 'x.txt'"),
        ({"train": "x.txt", "context": 8, "stride": 9}, r"1..context \(8\), got 9"),
        ({"train": "x.txt", "vocab_size": 300}, "there is none for bytes, got 300"),
        ({"train": "x.txt", "tokenizer": "bpe", "vocab_size": 257}, "at least 258, got 257"),
        ({"train": "x.txt", "tokenizer": "wordpiece", "vocab_size": 512}, "at least 513, got 512"),
    ],
)
def test_bad_options_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LanguageModeling(**options)


def test_generate_refuses_a_classifier(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows.tsv").write_text("".join(f"{i % 2}\tword {i}\n" for i in range(40)))
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        "--data.train=rows.tsv",
        "--data.text_column=2",
    ]
    fit += ["--data.label_column=1", "--model.d_model=8", "--model.num_heads=2"]
    assert main([*fit, "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]) == 0
    assert main(["generate", "--checkpoint=runs/classification/1"]) == 2
    assert "generate needs a run of LanguageModeling" in capsys.readouterr().err
