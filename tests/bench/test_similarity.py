"""Pairs of texts with scores."""

from pathlib import Path

import pytest

from clusterformer.bench.similarity import read_scored_pairs
from clusterformer.errors import InputError


def test_pairs_are_read_and_joined(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("a\tb\t1\nc\td\t5\ne\tf\t2\n", encoding="utf-8")
    assert read_scored_pairs(file) == (["a", "e", "c"], ["b", "f", "d"], [1.0, 2.0, 5.0])
    assert read_scored_pairs(file, join=2) == (["a e"], ["b f"], [1.5])


def test_another_seed_joins_pairs_of_the_same_score_anew(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"a{i}\tb{i}\t{i // 8}\n" for i in range(16)), encoding="utf-8")
    first, other = (read_scored_pairs(file, join=2, seed=seed) for seed in (0, 1))
    assert first.scores == other.scores == [0.0] * 4 + [1.0] * 4
    assert set(first.first) != set(other.first)


@pytest.mark.parametrize(
    ("text", "message"),
    [("a\tb\t1\na b\t2\n", "pairs.tsv:2: expected text, text, score; found 2 fields"),
     ("a\tb\tc\n", "pairs.tsv:1: expected text, text, score; found 3 fields, the last 'c'"),
     ("a\tb\t1\n", "1 lines, but --join 2")],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_scored_pairs(file, join=2)


def test_the_real_file_has_its_count(data_root: Path) -> None:
    pairs = read_scored_pairs(data_root / "glue" / "stsb" / "test.tsv")
    assert len(pairs.scores) == 1379
    assert min(pairs.scores) == 0
    assert max(pairs.scores) == 5
