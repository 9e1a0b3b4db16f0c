"""Named sets: splits that partition, checked counts, the published rules for news posts."""

import gzip
import json
from collections import Counter

import pytest

from clusterformer.data import corpora
from clusterformer.data.corpora import deal, hold_out, read_corpus, strip_post
from clusterformer.data.tables import Row
from clusterformer.errors import InputError

SPLITS = ("train", "valid", "test")


@pytest.fixture
def tiny_mr(tmp_path, monkeypatch):
    monkeypatch.setitem(corpora._SENTENCES, "mr", {"0": 60, "1": 40})
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
    monkeypatch.setattr(corpora, "_NEWS", {"train": 20, "test": 1})
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


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mr", (8635, 960, 1067)),
        ("subj", (8100, 900, 1000)),
        ("cr", (3053, 340, 378)),
        ("mpqa", (8587, 955, 1061)),
    ],
)
def test_real_sets_are_complete(data_root, name, sizes):
    assert tuple(len(read_corpus(name, split, root=data_root)) for split in SPLITS) == sizes


def test_real_posts_are_stripped_as_scikit_learn_strips_them(data_root):
    news = pytest.importorskip("sklearn.datasets._twenty_newsgroups")
    for row in read_corpus("20news", "test", root=data_root)[::50]:
        body = news.strip_newsgroup_footer(news.strip_newsgroup_header(row.text))
        assert strip_post(row.text) == news.strip_newsgroup_quoting(body)
