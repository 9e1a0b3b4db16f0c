"""Needles: the answer stands in the text once, away from the question, in text of another split."""

import re
from itertools import islice
from pathlib import Path

import lightning
import pytest
import torch

from clusterformer.attention import FullAttention
from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.tasks.generated.needle import Needle


@pytest.fixture
def books(tmp_path: Path) -> dict[str, str]:
    files = {}
    for split, word in (("train", "apple "), ("valid", "river "), ("test", "mountain ")):
        files[split] = str(tmp_path / f"{split}.txt")
        Path(files[split]).write_text(word * 400)
    return files


@pytest.mark.parametrize("needles", [1, 4])
def test_the_asked_number_stands_beside_its_key(books, needles: int) -> None:
    task = Needle(**books, length=400, needles=needles)
    texts = task.texts(0, 7)
    for index in range(20):
        text = texts.text(texts.generator(index)).decode()
        assert len(text) == 401
        told = dict(re.findall(r"The number of (\w{4}) is (\d{5})\. ", text))
        assert len(told) == needles
        ((key, answer),) = re.findall(r"The number of (\w{4}) is (\d{5})$", text)
        assert told[key] == answer


def test_variables_lead_to_the_number(books) -> None:
    texts = Needle(**books, length=400, form="variables", needles=3).texts(2)
    first_is_right = []
    for index in range(20):
        text = texts.text(texts.generator(index)).decode()
        value = dict(re.findall(r"Let (\w{4}) be (\w+)\. ", text))
        ((at, answer),) = re.findall(r"The value of (\w{4}) is (\d{5})$", text)
        steps = 0
        while at in value:
            at, steps = value[at], steps + 1
        assert (at, steps) == (answer, 3)
        numbers = [number for number in value.values() if number.isdecimal()]
        assert len(set(numbers)) == 2
        first_is_right.append(numbers[0] == answer)
    assert 2 < sum(first_is_right) < 18  # no number answers by its position


def test_the_target_is_what_follows_each_asking_byte(books) -> None:
    texts = Needle(**books, length=300).texts(0)
    batch = texts[[5, 6]]
    for row, index in enumerate((5, 6)):
        text = texts.text(texts.generator(index))
        assert bytes((batch.tokens[row] - 1).tolist()) == text[:-1]
        for at, byte in zip(batch.asked[row].tolist(), batch.target[row].tolist(), strict=True):
            assert text[at + 1] == byte - 1


def test_batches_of_other_lengths_take_turns(books) -> None:
    task = Needle(**books, length=600, also_train=[150], batch_size=4, short_batches=2)
    lightning.seed_everything(0, verbose=False)
    batches = list(islice(task.train_dataloader(), 4))
    short, whole = (16, 150), (4, 600)
    assert [tuple(batch.tokens.shape) for batch in batches] == [short, short, whole, short]
    assert len({tuple(text) for text in batches[0].tokens.tolist()}) == 16
    for batch in batches:
        asked = torch.arange(batch.tokens.shape[1])[-5:]
        assert torch.equal(batch.asked, asked.expand(len(batch.tokens), -1))


def test_texts_of_training_hold_each_number_of_sentences_that_has_room(books) -> None:
    task = Needle(
        **books, length=400, also_needles=[2, 5], also_train=[200], batch_size=9, test_texts=9
    )
    lightning.seed_everything(0, verbose=False)
    whole, short, *_ = islice(task.train_dataloader(), 2)
    task.setup("test")
    (tested,) = task.test_dataloader()
    for batch, expected in ((whole, {1, 2, 5}), (short, {1, 2}), (tested, {1})):
        texts = (bytes((tokens - 1).tolist()) for tokens in batch.tokens)
        assert {text.count(b"The number of") - 1 for text in texts} == expected


def test_each_part_has_its_own_books(books) -> None:
    task = Needle(**books, length=300)
    for stream, word in ((0, "apple"), (1, "river"), (2, "mountain")):
        texts = task.texts(stream)
        assert texts.text(texts.generator(0)).decode().count(word) > 10


def test_it_trains_and_is_tested_on_longer_texts(books, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    fit = [
        "fit",
        "--pictures=false",
        "--data=Needle",
        *(f"--data.{split}={file}" for split, file in books.items()),
    ]
    fit += ["--data.batch_size=2", "--data.test_texts=2", "--data.valid_texts=2"]
    fit += ["--data.epoch_steps=2", "--data.length=200", "--trainer.max_steps=2"]
    fit += ["--model.attention=FullAttention", "--model.d_model=8", "--model.num_heads=2"]
    assert main([*fit, "--model.positions=rotary", "--trainer.accelerator=cpu"]) == 0
    checkpoint = sorted(tmp_path.rglob("*.ckpt"))[0]
    assert main(["test", f"--checkpoint={checkpoint}", "--data.length=800"]) == 0
    assert "test/digits" in capsys.readouterr().out


def test_learned_positions_reach_the_longest_texts_of_training(books) -> None:
    task = Needle(**books, length=700, also_train=[900], batch_size=2)
    config = TransformerConfig(FullAttention, positions="learned")
    network = task.build(config)
    assert network.embedding.num_positions == 900
    assert network(task.train_texts(0)[[2, 3]]).logits.isfinite().all()
    tested = Needle(**books, length=1200)
    for state, expected in ((task.state(), 900), ({}, 512)):  # one of before has none
        tested.load_state(state)
        assert tested.build(config).embedding.num_positions == expected
    assert Needle(**books, length=200).build(config).embedding.num_positions == 512


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 100}, r"at least 64 \* \(needles \+ 1\) = 128, got 100"),
        ({"form": "poems"}, 'form must be "numbers" or "variables"'),
        ({"short_batches": 3}, "short_batches needs also_train"),
        ({"needles": 0}, "needles must be at least 1, got 0"),
        ({"also_needles": [2, 0]}, "also_needles must be at least 1, got 0"),
        ({"needles": 6400, "length": 10**6}, "needles must be at most 3200, got 6400"),
        (
            {"form": "variables", "needles": 1601, "length": 10**6},
            "needles must be at most 1600, got 1601",
        ),
        ({"valid": None}, "give either a named set"),
        ({"name": "gutenberg", "train": None}, "give either a named set"),
    ],
)
def test_bad_options_are_refused(books, options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Needle(**(books | options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"also_train": [100]}, "also_train: a length must be at least 128, got 100"),
        ({"also_needles": [5]}, "also_needles: 5 need a length of 384, got 300"),
    ],
)
def test_sizes_of_training_without_room_are_refused_in_training(books, options, message) -> None:
    task = Needle(**books, length=300, **options)
    assert len(task.texts(2)[[0]].tokens)
    with pytest.raises(InputError, match=message):
        task.train_texts(0)


def test_too_little_text_is_named_with_its_part(books) -> None:
    with pytest.raises(InputError, match=rf"{books['test']}: \d+ bytes in all, fewer than length"):
        Needle(**books, length=10**7).texts(2)


def test_too_little_text_for_another_length_of_training(books) -> None:
    task = Needle(**books, length=300, also_train=[10**7])
    assert task.texts(2)
    with pytest.raises(InputError, match=rf"{books['train']}: \d+ bytes .* than length 10000000"):
        task.train_texts(0)
