"""Named sets of pairs: counted protocols, parts of sets, what is dropped, what is missing."""

import pytest

from clusterformer.data import pair_corpora
from clusterformer.data.pair_corpora import hold_out_pairs, read_pair_corpus
from clusterformer.data.tables import Pair
from clusterformer.errors import InputError
from clusterformer.tasks.nli import Inference

SPLITS = ("train", "valid", "test")


@pytest.fixture
def tiny_snli(tmp_path, monkeypatch):
    monkeypatch.setitem(pair_corpora._PAIRS, "snli", {"train": 4, "dev": 60, "test": 3})
    folder = tmp_path / "snli"
    folder.mkdir()
    (folder / "train.tsv").write_text("a\tb\t0\nc\td\t-\nc\td\t2\ne\t\tneutral\ng\th\t1\n")
    (folder / "dev.tsv").write_text("".join(f"p{i // 3}\th{i}\t{i % 3}\n" for i in range(60)))
    (folder / "test.tsv").write_text("a\tb\t0\na\tb\t1\na\tb\t2\n")
    return tmp_path


def test_labels_get_their_names_and_pairs_without_one_are_dropped(tiny_snli):
    labels = [pair.label for pair in read_pair_corpus("snli", "train", root=tiny_snli)]
    assert labels == ["entailment", "contradiction", "neutral", "neutral"]


def test_a_part_trains_on_the_development_set(tiny_snli):
    parts = [read_pair_corpus("snli-part", split, root=tiny_snli) for split in SPLITS]
    assert [len(part) for part in parts] == [54, 6, 3]
    assert not {pair.first for pair in parts[0]} & {pair.first for pair in parts[1]}


def test_wrong_count_says_what_was_expected(tiny_snli):
    with (tiny_snli / "snli/train.tsv").open("a") as file:
        file.write("i\tj\t1\n")
    with pytest.raises(InputError, match=r"train.tsv: 5 pairs, expected 4"):
        read_pair_corpus("snli", "train", root=tiny_snli)


def test_a_missing_file_says_what_brings_it_and_what_else_there_is(tiny_snli):
    (tiny_snli / "snli/train.tsv").unlink()
    message = r"no file .*/snli/train.tsv; `clusterformer prepare snli` brings it, or .* snli-part"
    with pytest.raises(InputError, match=message):
        read_pair_corpus("snli", "train", root=tiny_snli)
    with pytest.raises(InputError, match=r"`clusterformer prepare sick` brings it; data\.root"):
        read_pair_corpus("sick", "train", root=tiny_snli)


def test_a_missing_test_file_is_told_before_training(tiny_snli):
    (tiny_snli / "snli/test.tsv").unlink()
    with pytest.raises(InputError, match=r"no file .*/snli/test.tsv"):
        read_pair_corpus("snli", "train", root=tiny_snli)


def test_questions_without_a_right_answer_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(pair_corpora._PAIRS, "wikiqa", {"dev": 5})
    monkeypatch.setitem(pair_corpora._QUESTIONS, "dev", 1)
    (tmp_path / "wikiqa").mkdir()
    for part in ("train", "test"):
        (tmp_path / f"wikiqa/{part}.tsv").touch()
    lines = ["1\tq\ta\t0", "1\tq\tb\t0", "2\tr\ta\t0", "2\tr\tb\t1", "2\tr\tc\t0"]
    (tmp_path / "wikiqa/dev.tsv").write_text("\n".join(lines) + "\n")
    found = read_pair_corpus("wikiqa", "valid", root=tmp_path)
    assert [(pair.group, pair.second) for pair in found] == [("2", "a"), ("2", "b"), ("2", "c")]
    monkeypatch.setitem(pair_corpora._QUESTIONS, "dev", 2)
    with pytest.raises(InputError, match="1 questions with a right answer, expected 2"):
        read_pair_corpus("wikiqa", "valid", root=tmp_path)


def test_held_out_pairs_partition_the_rest():
    pairs = [Pair(f"p{i % 40}", str(i), "ab"[i % 2], "") for i in range(200)]
    parts = [hold_out_pairs(pairs, split, ["valid", "test"]) for split in SPLITS]
    assert [len(part) for part in parts] == [160, 20, 20]
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    assert hold_out_pairs(pairs, "train", []) == pairs


REAL = {
    "snli-part": (8_850, 992, 9_824),
    "mnli-part": (2_702, 298, 7_469),
    "scitail-part": (1_042, 131, 131),
    "sick": (4_500, 500, 4_927),
    "quora-part": (10_713, 1_184, 10_000),
    "wikiqa-part": (7_894, 778, 1_130),
}


@pytest.mark.parametrize(("name", "sizes"), REAL.items())
def test_real_sets_are_complete(data_root, name, sizes):
    assert tuple(len(read_pair_corpus(name, split, root=data_root)) for split in SPLITS) == sizes


def test_real_sick_speaks_of_three_labels(data_root):
    task = Inference("sick", root=str(data_root))
    task.setup("fit")
    assert task.state()["labels"] == ["contradiction", "entailment", "neutral"]
