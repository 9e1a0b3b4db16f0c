"""Cloze texts that a pretrained model reads: its own tokens, and names among them."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_pretrained import write_bert, write_gpt2

pytest.importorskip("transformers")

from clusterformer.cli.main import main
from clusterformer.data.pretrained import open_pretrained
from clusterformer.errors import InputError
from clusterformer.tasks.generated.cloze import Cloze

NAMES = [a + b for a in ("Bar", "Ken", "Lom", "Tis") for b in ("da", "ro", "mil", "na", "su", "vi")]
WORDS = ["then", "the", "went", ".", *(name.lower() for name in NAMES)]
LENGTH = 160


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "bert", words=WORDS)


@pytest.fixture
def books(tmp_path: Path) -> dict[str, str]:
    files = {}
    for seed, split in enumerate(("train", "valid", "test")):
        chosen = np.random.default_rng(seed).integers(24, size=300)
        files[split] = str(tmp_path / f"{split}.txt")
        Path(files[split]).write_text(" ".join(f"then the {NAMES[i]} went home." for i in chosen))
    return files


@pytest.mark.parametrize("fresh", [0.0, 1.0])
def test_texts_have_the_tokens_of_the_model(books, bert: Path, fresh: float) -> None:
    task = Cloze(**books, length=LENGTH, fresh=fresh)
    task.pretrained = str(bert)
    tokenizer = open_pretrained(str(bert)).tokenizer
    batch = task.texts(0)[list(range(20))]
    assert batch.tokens.shape == (20, LENGTH)
    names = {name.lower() for name in NAMES}
    for tokens, asked, candidates in zip(batch.tokens, batch.asked, batch.candidates, strict=True):
        words = tokenizer.ids_to_tokens(tokens.tolist())
        end = ["[UNK]", "went", "[UNK]", ".", "[SEP]"]  # it has neither [MASK] nor "home"
        assert (words[0], words[-5:]) == ("[CLS]", end)
        assert asked.tolist() == [LENGTH - 5]
        assert set(words[1:-2]) <= {*WORDS, "[UNK]"}
        offered = tokenizer.ids_to_tokens(candidates[0].tolist())
        assert len(set(offered)) == 10
        assert set(offered) <= names & set(words)
        assert not set(offered) & set(words[-LENGTH // 4 : -5])
    missing = [int(row[0, i]) for row, i in zip(batch.candidates, batch.target, strict=True)]
    by_spelling = Cloze(**books, length=LENGTH, fresh=0.0)
    by_spelling.pretrained = str(bert)
    same = by_spelling.texts(0)[list(range(20))]
    spelt = [int(row[0, i]) for row, i in zip(same.candidates, same.target, strict=True)]
    assert (missing == spelt) == (fresh == 0.0)


def test_names_keep_their_own_tokens_by_spelling(books, bert: Path) -> None:
    task = Cloze(**books, length=LENGTH, fresh=0.0)
    task.pretrained = str(bert)
    texts = task.texts(0)
    words = texts._words
    tokenizer = open_pretrained(str(bert)).tokenizer
    for name in NAMES:
        assert tokenizer.ids_to_tokens([words.names[words.name(name)]]) == [name.lower()]


def test_a_pretrained_model_learns_and_its_run_needs_it_no_more(
    books, bert: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "--pictures=false", "--data=Cloze", "--trainer.accelerator=cpu"]
    fit += [f"--data.{split}={file}" for split, file in books.items()]
    fit += ["--data.batch_size=2", "--data.test_texts=4", "--data.valid_texts=2"]
    fit += ["--data.epoch_steps=2", f"--data.length={LENGTH}", "--trainer.max_steps=2"]
    fit += [f"--model.pretrained={bert}", "--model.attention=NeuralClusteringAttention"]
    fit += ["--model.attention.num_clusters=4", "--model.attention.dense_length=0"]
    assert main(fit) == 0
    loss = re.findall(r"test/loss\W+([\d.]+)", capsys.readouterr().out)
    shutil.rmtree(bert)
    assert main(["test", "--checkpoint", "runs/cloze/1"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"test/loss\W+([\d.]+)", printed) == loss, printed
    assert len(loss) == 1
    assert main(["test", "--checkpoint", "runs/cloze/1", "--data.length=128"]) == 0
    assert main(["test", "--checkpoint", "runs/cloze/1", "--data.length=200"]) == 2
    assert "the pretrained model of this run has 160 positions" in capsys.readouterr().err


def test_a_pretrained_decoder_answers_when_it_has_read_the_sentence(books, tmp_path: Path) -> None:
    task = Cloze(**books, length=LENGTH)
    task.pretrained = str(write_gpt2(tmp_path / "gpt2", words=WORDS))
    batch = task.texts(0)[list(range(4))]
    tokenizer = open_pretrained(task.pretrained).tokenizer
    for tokens, missing, asked in zip(batch.tokens, batch.missing, batch.asked, strict=True):
        sentence = tokenizer.ids_to_tokens(tokens[int(missing) : int(asked) + 1].tolist())
        assert sentence == ["[UNK]", "went", "[UNK]", "."]


def test_a_model_that_knows_few_names_is_refused(books, tmp_path: Path) -> None:
    folder = write_bert(tmp_path / "few", words=["then", "the", "went", "barda"])
    task = Cloze(**books, length=LENGTH)
    task.pretrained = str(folder)
    with pytest.raises(InputError, match="only 1 of the training books' names"):
        task.texts(0)
