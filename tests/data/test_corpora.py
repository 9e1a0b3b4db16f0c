"""Named sets of texts and pairs: splits that partition, checked counts, what is missing."""

import gzip
import itertools
import json
import random
import re
from collections import Counter

import pytest

from clusterformer.data import corpora
from clusterformer.data.corpora import read_corpus, read_pair_corpus, strip_post
from clusterformer.data.holding_out import deal, hold_out, hold_out_pairs
from clusterformer.data.labelled_text import Row, TextPair
from clusterformer.errors import InputError
from clusterformer.tasks.nli import Inference

SPLITS = ("train", "valid", "test")


@pytest.fixture
def tiny_mr(tmp_path, monkeypatch):
    monkeypatch.setitem(corpora._NUM_SENTENCES, "mr", {"0": 60, "1": 40})
    file = tmp_path / "mr" / "mr.tsv"
    file.parent.mkdir()
    file.write_text("".join(f"{int(i >= 60)}\tsentence {i}\n" for i in range(100)))
    return tmp_path


def test_folds_partition_the_data_and_keep_the_labels_shares(tiny_mr):
    tested = []
    for fold in range(10):
        parts = [read_corpus("mr", split, root=tiny_mr, fold=fold) for split in SPLITS]
        assert Counter(row.text for part in parts for row in part) == Counter(
            f"sentence {i}" for i in range(100)
        )
        ones = [sum(row.label == "1" for row in part) for part in parts]
        assert ones in ([32, 4, 4], [33, 3, 4])
        tested += parts[2]
    assert len({row.text for row in tested}) == 100


def test_splits_are_always_the_same(tiny_mr):
    first, again = (read_corpus("mr", "test", root=tiny_mr, fold=3) for _ in range(2))
    assert first == again


def test_wrong_count_says_what_was_expected(tiny_mr):
    with (tiny_mr / "mr" / "mr.tsv").open("a") as file:
        file.write("1\tone more\n")
    with pytest.raises(InputError, match="41 sentences with label 1, expected 40"):
        read_corpus("mr", "train", root=tiny_mr)


def test_unexpected_label_is_a_wrong_count(tiny_mr):
    with (tiny_mr / "mr" / "mr.tsv").open("a") as file:
        file.write("2\tone more\n")
    with pytest.raises(InputError, match="101 sentences, expected 100"):
        read_corpus("mr", "train", root=tiny_mr)


@pytest.mark.parametrize("name", ["cr", "20news"])
def test_missing_set_says_where_it_was_looked_for(tmp_path, name):
    with pytest.raises(InputError, match=rf"no file {tmp_path}/{name}/.*CLUSTERFORMER_DATA"):
        read_corpus(name, "train", root=tmp_path)


def test_root_defaults_to_the_environment_then_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CLUSTERFORMER_DATA", str(tmp_path / "data"))
    with pytest.raises(InputError, match=r"/data/mr/mr.tsv"):
        read_corpus("mr", "train")
    monkeypatch.delenv("CLUSTERFORMER_DATA")
    with pytest.raises(InputError, match=r"/cache/clusterformer/mr/mr.tsv"):
        read_corpus("mr", "train")


def test_news_is_split_by_date_and_stripped_if_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "_NUM_POSTS", {"train": 20, "test": 1})
    (tmp_path / "20news").mkdir()
    for part, count in (("train", 20), ("test", 1)):
        posts = [
            json.dumps({"label": "sci.med", "text": f"From: me\n\n{part} {i}\n--\nme"})
            for i in range(count)
        ]
        file = tmp_path / "20news" / f"20news-bydate-{part}.jsonl.gz"
        file.write_bytes(gzip.compress("\n".join(posts).encode()))
    texts = {
        split: [row.text for row in read_corpus("20news", split, root=tmp_path, strip=True)]
        for split in SPLITS
    }
    assert sorted(texts["train"] + texts["valid"]) == sorted(f"train {i}" for i in range(20))
    assert len(texts["valid"]) == 2
    assert texts["test"] == ["test 0"]
    assert read_corpus("20news", "test", root=tmp_path)[0].text.startswith("From: me")


@pytest.mark.parametrize(
    ("post", "stripped"),
    [
        ("From: me\nLines: 2\n\nHello\nworld", "Hello\nworld"),
        ("From: me\n\nHello\n\n---\nme@home", "Hello\n"),
        ("From: me\n\nHello\n \nme@home", "Hello"),
        ("From: me\n\nIn article <1>\nbob writes:\n> no\n| no\nyes", "yes"),
        ("no header at all", ""),
        ("From: me\n\n", ""),
    ],
)
def test_posts_are_stripped_by_scikit_learns_rules(post, stripped):
    assert strip_post(post) == stripped


def test_parts_get_equal_shares_whatever_the_label_sizes():
    labels = ["a"] * 37 + ["b"] * 5 + ["c"]
    parts = deal(labels, 4)
    sizes = Counter(zip(parts, labels, strict=True))
    assert {sizes[part, "a"] for part in range(4)} <= {9, 10}
    assert {sizes[part, "b"] for part in range(4)} <= {1, 2}
    assert max(Counter(parts).values()) - min(Counter(parts).values()) <= 1


def test_held_out_parts_and_the_rest_partition_the_rows():
    rows = [Row(str(i), "ab"[i % 2], "") for i in range(40)]
    parts = [hold_out(rows, split, ["valid", "test"]) for split in SPLITS]
    assert [len(part) for part in parts] == [32, 4, 4]
    assert sorted(row for part in parts for row in part) == sorted(rows)


def test_few_rows_still_leave_one_to_validate():
    rows = [Row(str(i), "ab"[i % 2], "") for i in range(5)]
    train, valid = hold_out(rows, "train"), hold_out(rows, "valid")
    assert len(valid) == 1
    assert sorted(train + valid) == rows


def test_copies_of_a_text_stay_together():
    texts = [f"{mark}Text number {i}{mark}" for i in range(60) for mark in ("", "!")]
    rows = [Row(text, "ab"[i % 2], "") for i, text in enumerate(texts)]
    parts = [hold_out(rows, split, ["valid", "test"]) for split in SPLITS]
    assert sorted(row for part in parts for row in part) == sorted(rows)
    plain = [{row.text.strip("!") for row in part} for part in parts]
    assert all(plain)
    assert sum(map(len, plain)) == 60
    with pytest.raises(
        InputError, match="too few different texts, 1 of 1 labels, to hold some out to valid"
    ):
        hold_out([Row("same", "a", "t.csv:2")] * 30, "train")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mr", (8635, 960, 1067)),
        ("subj", (8100, 900, 1000)),
        ("cr", (3054, 339, 378)),
        ("mpqa", (8611, 931, 1061)),
    ],
)
def test_real_sets_are_complete(data_root, name, sizes):
    assert tuple(len(read_corpus(name, split, root=data_root)) for split in SPLITS) == sizes


def test_real_posts_are_stripped_as_scikit_learn_strips_them(data_root):
    news = pytest.importorskip("sklearn.datasets._twenty_newsgroups")
    for row in read_corpus("20news", "test", root=data_root)[::50]:
        body = news.strip_newsgroup_footer(news.strip_newsgroup_header(row.text))
        assert strip_post(row.text) == news.strip_newsgroup_quoting(body)


# Pairs: counted protocols, parts of sets, what is dropped.


@pytest.fixture
def tiny_snli(tmp_path, monkeypatch):
    monkeypatch.setitem(corpora._NUM_PAIRS, "snli", {"train": 4, "dev": 60, "test": 3})
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


def test_wrong_count_of_pairs_says_what_was_expected(tiny_snli):
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


def test_a_missing_test_file_is_reported_before_training(tiny_snli):
    (tiny_snli / "snli/test.tsv").unlink()
    with pytest.raises(InputError, match=r"no file .*/snli/test.tsv"):
        read_pair_corpus("snli", "train", root=tiny_snli)


def test_questions_without_a_right_answer_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setitem(corpora._NUM_PAIRS, "wikiqa", {"dev": 5})
    monkeypatch.setitem(corpora._NUM_QUESTIONS, "dev", 1)
    (tmp_path / "wikiqa").mkdir()
    for part in ("train", "test"):
        (tmp_path / f"wikiqa/{part}.tsv").touch()
    lines = ["1\tq\ta\t0", "1\tq\tb\t0", "2\tr\ta\t0", "2\tr\tb\t1", "2\tr\tc\t0"]
    (tmp_path / "wikiqa/dev.tsv").write_text("\n".join(lines) + "\n")
    found = read_pair_corpus("wikiqa", "valid", root=tmp_path)
    assert [(pair.group, pair.second) for pair in found] == [("2", "a"), ("2", "b"), ("2", "c")]
    monkeypatch.setitem(corpora._NUM_QUESTIONS, "dev", 2)
    with pytest.raises(InputError, match="1 questions with a right answer, expected 2"):
        read_pair_corpus("wikiqa", "valid", root=tmp_path)


def test_held_out_pairs_partition_the_rest():
    pairs = [TextPair(f"p{i % 40}", str(i), "ab"[i % 2], "") for i in range(200)]
    parts = [hold_out_pairs(pairs, split, ["valid", "test"]) for split in SPLITS]
    assert [len(part) for part in parts] == [160, 20, 20]
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    assert hold_out_pairs(pairs, "train", []) == pairs


def sentences(pairs):
    return {" ".join(re.findall(r"\w+", text.casefold())) for pair in pairs for text in pair.texts}


def test_no_sentence_is_on_both_sides_of_a_split_whichever_side_of_its_pair():
    rng = random.Random(0)
    names = [f"Sentence {i}" for i in range(300)]
    pairs = [TextPair(*rng.sample(names, 2), "ab"[i % 2], "") for i in range(90)]
    pairs += [
        TextPair(f" {p.second.upper()} !", f"other {i}", "a", "") for i, p in enumerate(pairs)
    ]
    parts = [hold_out_pairs(pairs, split, ["valid", "test"]) for split in SPLITS]
    assert sorted(pair for part in parts for pair in part) == sorted(pairs)
    for one, other in itertools.combinations(map(sentences, parts), 2):
        assert not one & other
    for part in parts[1:]:  # a tenth, with the shares of the labels
        assert 14 <= len(part) <= 22
        assert 9 <= sum(pair.label == "a" for pair in part) <= 17


def test_scores_instead_of_labels_cost_no_memory():
    pairs = [TextPair(f"p{i}", f"h{i}", f"{i / 7:.4f}", "") for i in range(20_000)]
    assert len(hold_out_pairs(pairs, "valid", ["valid"], scored=True)) == 2_000


def test_what_links_nearly_all_pairs_trains():
    pairs = [TextPair(f"p{i}", "the same", "a", "") for i in range(80)]
    pairs += [TextPair(f"q{i}", f"h{i}", "a", "") for i in range(18)]
    parts = [hold_out_pairs(pairs, split, ["valid"]) for split in ("train", "valid")]
    assert [len(part) for part in parts] == [96, 2]


REAL_PAIRS = {
    "snli-part": (8_860, 982, 9_824),
    "mnli-part": (2_701, 299, 7_469),
    "scitail-part": (1_045, 129, 130),
    "sick": (4_500, 500, 4_927),
    "stsb": (5_749, 1_500, 1_379),
    "mrpc": (3_668, 408, 1_725),
    "rte": (2_242, 248, 277),
    "qqp-part": (1_708, 189, 7_252),
    "quora-part": (10_708, 1_189, 10_000),
    "wikiqa-part": (7_804, 868, 1_130),
}


@pytest.mark.parametrize(("name", "sizes"), REAL_PAIRS.items())
def test_real_sets_of_pairs_are_complete_and_cleanly_split(data_root, name, sizes):
    parts = [read_pair_corpus(name, split, root=data_root) for split in SPLITS]
    assert tuple(map(len, parts)) == sizes
    files = corpora._PAIR_FILES[name]
    train = sentences(parts[0])
    for part, published in zip(parts[1:], (files.valid, files.test), strict=True):
        if published is None:
            assert not train & sentences(part)


def test_real_sick_speaks_of_three_labels(data_root):
    task = Inference("sick", root=str(data_root))
    task.setup("fit")
    assert task.state()["labels"] == ["contradiction", "entailment", "neutral"]
