"""Windows over running text: nothing skipped, nothing predicted twice, whoever shares the work."""

import gzip
import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from clusterformer.data.batches import BucketPlan, DistributedBatchSampler
from clusterformer.data.documents import Document, named_documents, own_documents
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.data.streams import ShiftedWindowPlan, StridedWindows, Windows, token_stream
from clusterformer.data.tokenizers import BOS
from clusterformer.errors import InputError
from clusterformer.task import IGNORE

ROW = np.arange(1, 102, dtype=np.uint16)  # 101 tokens, each its position plus 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("context", "stride"), [(10, 10), (10, 3), (7, 1), (33, 20), (500, 500)])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_token_is_predicted_once(context: int, stride: int, world_size: int) -> None:
    windows = StridedWindows(ROW, context, stride)
    plan = BucketPlan([1] * len(windows), batch_size=4, shuffle=False)
    found = []
    for rank in range(world_size):
        for numbers in DistributedBatchSampler(plan, rank=rank, world_size=world_size):
            batch = windows[numbers]
            counted = batch.target != IGNORE
            assert (batch.target == batch.tokens + 1)[counted].all()
            found += batch.target[counted].tolist()
    assert sorted(found) == ROW[1:].tolist()


def test_a_stride_leaves_context() -> None:
    windows = StridedWindows(ROW, 10, 3)
    batch = windows[list(range(len(windows)))]
    first = (batch.target != IGNORE).int().argmax(1)
    assert (first[1:] >= 10 - 3).all()
    assert first[0] == 0


@pytest.mark.parametrize("context", [1, 7, 10, 101, 500])
def test_an_epoch_reads_every_token_once_but_for_less_than_a_window(context: int) -> None:
    plan = ShiftedWindowPlan(101, context, batch_size=3, seed=5)
    windows = Windows(ROW, context)
    for epoch in (0, 1):
        batches = plan.batches(epoch)
        assert len(batches) == len(plan)
        seen = list(chain(*(windows[starts].tokens.flatten().tolist() for starts in batches)))
        assert len(seen) == len(set(seen)) > 101 - context
        again = ShiftedWindowPlan(101, context, batch_size=3, seed=5).batches(epoch)
        assert list(batches) == list(again)
        assert list(batches[1:]) == list(batches)[1:]


def test_borders_move_from_epoch_to_epoch() -> None:
    plan = ShiftedWindowPlan(101, 10, batch_size=100)
    borders = {frozenset(start % 10 for start in plan.batches(epoch)[0]) for epoch in range(20)}
    assert len(borders) > 5


def test_targets_are_the_next_tokens_around_the_circle() -> None:
    batch = Windows(ROW, 4)[[99, 3]]
    assert batch.tokens.tolist() == [[100, 101, 1, 2], [4, 5, 6, 7]]
    assert batch.target.tolist() == [[101, 1, 2, 3], [5, 6, 7, 8]]


def test_a_process_without_a_share_gets_a_dummy_row() -> None:
    for batch in (Windows(ROW, 4)[[]], StridedWindows(ROW, 4, 4)[[]]):
        assert not batch.mask.any()
        assert (batch.target == IGNORE).all()


def test_a_mark_stands_before_each_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("bé\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("c", encoding="utf-8")
    (tmp_path / "note.md").write_text("not a text", encoding="utf-8")
    stream = token_stream(own_documents(tmp_path), ByteTokenizer())
    text = [byte + 2 for byte in "bé\n".encode()]
    assert stream.tolist() == [BOS, *text, BOS, ord("c") + 2]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("first")
    assert len(token_stream(own_documents(file), ByteTokenizer())) == 6
    file.write_text("second")
    assert len(token_stream(own_documents(file), ByteTokenizer())) == 7


def test_files_of_one_name_in_two_folders_are_two_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = ByteTokenizer()
    for text in ("one\n", "two\n"):
        (tmp_path / text.strip()).mkdir()
        monkeypatch.chdir(tmp_path / text.strip())
        path = Path("text.txt")
        path.write_text(text)
        os.utime(path, (10**9, 10**9))  # as unpacked from an archive
        assert tokenizer.decode(token_stream([Document(path)], tokenizer).tolist()) == text


def test_shares_of_a_file_are_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    lines = [f"line {number} {'x' * number}\n" for number in range(50)]
    file.write_text("".join(lines))
    parts = [own_documents(file, *share)[0].read() for share in ((0, 0.8), (0.8, 0.9), (0.9, 1))]
    assert "".join(parts) == "".join(lines)
    assert all(part.startswith("line") and part.endswith("\n") for part in parts)


def test_shares_of_a_folder_are_its_files(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("text")
    parts = [own_documents(tmp_path, *share) for share in ((0, 0.8), (0.8, 0.9), (0.9, 1))]
    assert [len(part) for part in parts] == [8, 1, 1]
    assert len(set(chain(*parts))) == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.txt", "no such file"),
        ("empty.txt", "empty.txt: no text in it"),
        ("folder", "no files ending in .txt"),
        ("latin.txt", r"latin.txt:2: bytes e9 are not utf-8"),
    ],
)
def test_bad_files_are_named(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.txt").write_bytes(b"first\nn\xe9e\n")
    with pytest.raises(InputError, match=message):
        token_stream(own_documents(tmp_path / name), ByteTokenizer())


def test_one_line_cannot_be_shared_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a single line")
    with pytest.raises(InputError, match="no text in its lines from 0% to 80%: a line goes whole"):
        token_stream(own_documents(tmp_path / "a.txt", 0, 0.8), ByteTokenizer())


def test_the_named_sets_are_whole(data_root: Path) -> None:
    sizes = {}
    for split in ("train", "valid", "test"):
        sizes[split] = (
            len(token_stream(named_documents("wikitext2", split, data_root), ByteTokenizer())) - 1
        )
    assert sizes == {"train": 10_797_148, "valid": 1_121_681, "test": 1_256_449}
    parts = {
        split: named_documents("gutenberg", split, data_root)
        for split in ("train", "valid", "test")
    }
    assert {split: len(books) for split, books in parts.items()} == {
        "train": 44,
        "valid": 3,
        "test": 4,
    }
    assert len({book.path for books in parts.values() for book in books}) == 51
    assert len(parts["test"][3].read().encode()) == parts["test"][3].size == 150_404


def test_a_changed_set_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "pg19" / "test").mkdir(parents=True)
    (tmp_path / "pg19" / "test" / "1.txt").write_text("a b\n")
    (tmp_path / "wikitext2" / "test.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    with pytest.raises(InputError, match="1 lines, expected 4,358"):
        token_stream(named_documents("wikitext2", "test", tmp_path), ByteTokenizer())
    with pytest.raises(InputError, match="1 books, expected 100"):
        named_documents("pg19", "test", tmp_path)
    with pytest.raises(InputError, match="gutenberg: no folder"):
        named_documents("gutenberg", "test", tmp_path)
