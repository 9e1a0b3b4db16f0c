"""Cloze: candidates are names of the passage, the right one far away; fresh names tell nothing."""

from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Trainer

from clusterformer.cli.main import main
from clusterformer.data.book_names import RECENT, more_questions, parse, questions
from clusterformer.data.cloze_words import BLANK, FIRST_NAME, BookWords
from clusterformer.errors import InputError
from clusterformer.tasks.generated.cloze import Cloze

NAMES = [a + b for a in ("Bar", "Ken", "Lom", "Tis") for b in ("da", "ro", "mil", "na", "su", "vi")]
LENGTH = 160


def story(seed: int) -> str:
    generator = np.random.default_rng(seed)
    return " ".join(f"then the {NAMES[i]} went home." for i in generator.integers(24, size=300))


@pytest.fixture
def books(tmp_path: Path) -> dict[str, str]:
    files = {}
    for seed, split in enumerate(("train", "valid", "test")):
        files[split] = str(tmp_path / f"{split}.txt")
        Path(files[split]).write_text(story(seed))
    return files


def test_names_are_capitalised_within_sentences() -> None:
    book = parse("Then Anna saw Bert. And Then Bert saw Anna go. Will you, Will? said Anna. will")
    names = {w for w, is_name in zip(book.words, book.name, strict=True) if is_name}
    assert names == {"Anna", "Bert"}
    assert "then" in book.words


def test_the_right_name_stands_in_the_text_but_not_near_its_end() -> None:
    book = parse(story(0))
    found = questions(book, 0, LENGTH)
    assert len(found) > 10
    for question in found:
        assert book.words[question.at : question.end] == [
            question.candidates[0],
            "went",
            "home",
            ".",
        ]
        passage = book.words[question.end - LENGTH : question.at]
        assert not set(question.candidates) & set(passage[-LENGTH // 4 :])
        assert len(set(question.candidates)) == 10
        assert set(question.candidates) <= set(passage)


def test_a_sentence_without_an_end_is_cut() -> None:
    book = parse(story(0).replace("home.", "home") + " the" * 100)
    ends = {question.end - question.at for question in questions(book, 0, LENGTH)}
    assert max(ends) == 32


def test_no_answer_stands_behind_the_text() -> None:
    book = parse(story(0).replace("home.", "home"))
    for last in questions(book, 0, 400)[:50]:
        others = more_questions(book, last, 400, 16, np.random.default_rng(0))
        assert others
        assert all(question.end < last.end for question in others)


def test_further_names_are_seen_elsewhere_but_not_near() -> None:
    book = parse(story(0))
    last = questions(book, 0, 600)[0]
    start = last.end - 600
    text = book.words[start : last.end]
    found = more_questions(book, last, 600, 12, np.random.default_rng(0))
    assert len(found) == 12
    assert len({question.end for question in (*found, last)}) == 13  # one of a sentence
    asked = {question.at - start for question in found}
    seen = {word for i, word in enumerate(text) if i not in asked}
    for question in found:
        at = question.at - start
        assert question.candidates[0] == text[at]
        assert len(set(question.candidates)) == 10
        assert set(question.candidates) <= seen
        near = 600 // 4 // 4
        assert RECENT > 600 // 4
        assert not set(question.candidates) & {*text[at - near : at], *text[at + 1 : at + near + 1]}
    assert len(more_questions(book, last, 600, 3, np.random.default_rng(0))) == 3


@pytest.mark.parametrize("fresh", [0.0, 1.0])
def test_the_target_is_the_candidate_that_is_missing(books, fresh: float) -> None:
    texts = Cloze(**books, length=LENGTH, fresh=fresh).texts(0)
    batch = texts[list(range(20))]
    assert batch.tokens.shape == (20, LENGTH)
    assert ((batch.tokens == BLANK).sum(-1) == 1).all()
    assert (batch.tokens[:, -4] == BLANK).all()  # . went home .
    assert (batch.asked == LENGTH - 1).all()
    assert (batch.missing == LENGTH - 4).all()
    assert batch.asked.shape == batch.target.shape == (20, 1)
    for tokens, (candidates,) in zip(batch.tokens, batch.candidates, strict=True):
        assert len(set(candidates.tolist())) == 10
        assert set(candidates.tolist()) <= set(tokens.tolist())
        assert not set(candidates.tolist()) & set(tokens[-LENGTH // 4 : -4].tolist())
        assert candidates.min() >= FIRST_NAME
    assert len(set(batch.target.flatten().tolist())) > 3
    numbers = {int(n) for row in batch.candidates for n in row.flatten()}
    assert (len(numbers) > 24) == bool(fresh)  # by spelling the 24 names have one number each


@pytest.mark.parametrize("fresh", [0.0, 1.0])
def test_of_more_names_than_token_ids_those_with_one_are_asked_for(books, fresh: float) -> None:
    many = [a + b + c for a in NAMES for b in ("ba", "ke") for c in ("l", "s", "t")]
    draw = np.random.default_rng(0)
    chosen = [many[i] for i in draw.integers(len(many), size=1500)]
    Path(books["train"]).write_text(" ".join(f"then the {name} went home." for name in chosen))
    task = Cloze(**books, length=4000, num_names=100, fresh=fresh, asked_names=64)
    batch = task.train_texts(0)[list(range(4))]
    real = batch.target >= 0
    assert real[:, 0].all()
    assert 4 < real.sum() < 4 * 64
    for candidates in batch.candidates[real].tolist():
        assert len(set(candidates)) == 10
        assert FIRST_NAME <= min(candidates) <= max(candidates) < FIRST_NAME + 100


def test_training_asks_for_further_names(books) -> None:
    task = Cloze(**books, length=600, fresh=0.0, asked_names=5)
    batch = task.train_texts(0)[list(range(8))]
    plain = task.texts(0)[list(range(8))]
    real = batch.target >= 0
    assert real[:, 0].all()
    assert real.sum(-1).max() == 5
    assert ((batch.tokens == BLANK).sum(-1) == real.sum(-1)).all()
    for row, whole in zip(range(8), plain.tokens, strict=True):
        for i in real[row].nonzero().flatten().tolist():
            at = int(batch.missing[row, i])
            assert batch.asked[row, i] == at + 3  # the answer stands at the end: . went home .
            assert batch.tokens[row, at] == BLANK
            right = batch.candidates[row, i, batch.target[row, i]]
            assert i == 0 or whole[at] == right
            assert right in batch.tokens[row]
    assert task.texts(2)[[0, 1]].asked.shape == (2, 1)


def test_places_alone_tell_little(books) -> None:
    task = Cloze(**books, length=LENGTH, test_texts=60)
    found = {name: run().measures["accuracy"] for name, run in task.baselines().items()}
    assert found.keys() == {
        "candidate seen last",
        "commonest candidate",
        "candidate with like neighbours",
    }
    batch = task.texts(2)[list(range(60))]
    right = 0
    for tokens, candidates, target in zip(
        batch.tokens.tolist(),
        batch.candidates[:, 0].tolist(),
        batch.target[:, 0].tolist(),
        strict=True,
    ):
        last = [max(i for i, token in enumerate(tokens) if token == name) for name in candidates]
        right += last.index(max(last)) == target
    assert found["candidate seen last"] == pytest.approx(right / 60)
    assert max(found.values()) < 0.5


def test_neighbours_tell_the_name_where_each_has_its_own(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    told = [f"then the n{i} {NAMES[i]} w{i} home." for i in generator.integers(24, size=300)]
    letters = str.maketrans("0123456789", "abcdefghij")
    for split in ("train", "valid", "test"):
        text = " ".join(line.translate(letters) for line in told)
        (tmp_path / f"{split}.txt").write_text(text)
    own = {split: str(tmp_path / f"{split}.txt") for split in ("train", "valid", "test")}
    found = Cloze(**own, length=LENGTH, test_texts=60).baselines()
    assert found["candidate with like neighbours"]().measures["accuracy"] > 0.9
    assert found["commonest candidate"]().measures["accuracy"] < 0.7


def test_every_question_comes_once_before_any_comes_twice(books) -> None:
    count = len(questions(parse(story(0)), 0, LENGTH))
    texts = Cloze(**books, length=LENGTH, fresh=0.0).texts(0, 3)
    for begin in (0, count):
        batch = texts[list(range(begin, begin + count))]
        assert len({tuple(tokens) for tokens in batch.tokens.tolist()}) == count


def test_words_are_numbered_by_the_training_books_alone(books) -> None:
    Path(books["test"]).write_text(story(5).replace("home", "abroad"))
    task = Cloze(**books, length=LENGTH)
    task.texts(2)
    assert isinstance(task._words, BookWords)
    assert "home" in task._words.ids
    assert "abroad" not in task._words.ids


def test_a_network_learns_and_tests(books, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    fit = [
        "fit",
        "--pictures=false",
        "--data=Cloze",
        *(f"--data.{split}={file}" for split, file in books.items()),
    ]
    fit += ["--data.batch_size=2", "--data.test_texts=4", "--data.valid_texts=2"]
    fit += ["--data.epoch_steps=2", f"--data.length={LENGTH}", "--trainer.max_steps=2"]
    fit += ["--model.attention=FullAttention", "--model.d_model=8", "--model.num_heads=2"]
    assert main([*fit, "--trainer.accelerator=cpu"]) == 0
    assert "test/accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 20}, "length must be at least 64, got 20"),
        ({"fresh": 2.0}, "fresh must be in 0..1, got 2.0"),
        ({"num_names": 5}, "num_names must be at least 100, got 5"),
        ({"test": None}, "give either a named set"),
        ({"name": "gutenberg", "train": None}, "give either a named set"),
    ],
)
def test_bad_options_are_refused(books, options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Cloze(**(books | options))


def test_texts_without_such_a_passage_are_refused(books) -> None:
    with pytest.raises(InputError, match="train: no passage of 5000 tokens with 10 names"):
        Cloze(**books, length=5000).texts(0)


def test_baselines_of_one_of_several_processes_are_measured_on_all_texts(books) -> None:
    def measured(processes: int) -> list[float]:
        task = Cloze(**books, length=LENGTH, fresh=0.0, batch_size=4, test_texts=90)
        task.trainer = Trainer(accelerator="cpu", devices=processes, strategy="ddp", logger=False)
        assert task.world_size == processes
        return [method().measures["accuracy"] for method in task.baselines().values()]

    assert measured(2) == measured(1)
