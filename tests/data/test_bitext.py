"""Parallel text: files are read as they are, and each fault is one line of error."""

import gzip
import random
from pathlib import Path

import pytest

from clusterformer.data.bitext import MAX_HELD_OUT, Bitext, SentencePair
from clusterformer.errors import InputError


def bitext(tmp_path: Path, source: bytes, target: bytes, **options) -> Bitext:
    (tmp_path / "a.de").write_bytes(source)
    (tmp_path / "a.en").write_bytes(target)
    return Bitext(tmp_path / "a.de", tmp_path / "a.en", **options)


def fault(tmp_path: Path, source: bytes, target: bytes, **options) -> str:
    with pytest.raises(InputError) as raised:
        list(bitext(tmp_path, source, target, **options))
    message = str(raised.value).replace(f"{tmp_path}/", "")
    assert "\n" not in message
    return message


def test_lines_are_paired_and_numbered(tmp_path):
    assert list(bitext(tmp_path, b"a\nb c", b"x\ny\n")) == [
        SentencePair("a", "x", 1),
        SentencePair("b c", "y", 2),
    ]


def test_unicode_separators_part_no_lines(tmp_path):
    text = "a\u2028b\x0bc\x85d"
    assert [pair.source for pair in bitext(tmp_path, f"{text}\n".encode(), b"x\n")] == [text]


def test_crlf_and_byte_order_mark_are_no_text(tmp_path):
    pairs = list(bitext(tmp_path, b"\xef\xbb\xbfa\r\nb\r\n", b"x\ny\n"))
    assert pairs == [SentencePair("a", "x", 1), SentencePair("b", "y", 2)]


def test_compressed_files_are_read(tmp_path):
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"a\n"))
    (tmp_path / "a.en").write_bytes(b"x\n")
    assert list(Bitext(tmp_path / "a.de.gz", tmp_path / "a.en")) == [SentencePair("a", "x", 1)]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\nc\n", b"x\n", "a.de has 3 lines, a.en has 1"),
        (b"a\n", b"x\ny\n", "a.de has 1 lines, a.en has 2"),
        (b"", b"x\n", "a.de has 0 lines, a.en has 1"),
        (b"a\n", b"", "a.de has 1 lines, a.en has 0"),
        (b"a\n\xffb\n", b"x\ny\n", "a.de:2: bytes ff are not UTF-8"),
        (b"a\nb\r\n", b"x\ny\n", "a.de:2: mixed line ends"),
        (b"a\r\nb\n", b"x\ny\n", "a.de:2: mixed line ends"),
        (b"a\rb\n", b"x\n", "a.de:1: mixed line ends"),
        (b"", b"", "a.de: no pairs"),
    ],
)
def test_faults_name_their_line(tmp_path, source, target, message):
    assert message in fault(tmp_path, source, target)


def test_missing_and_damaged_files_are_reported(tmp_path):
    with pytest.raises(InputError, match=r"b\.de: no such file"):
        list(Bitext(tmp_path / "b.de", tmp_path / "b.en"))
    (tmp_path / "a.de.gz").write_bytes(gzip.compress(b"a\n" * 1000)[:-9])
    with pytest.raises(InputError, match=r"a\.de\.gz: cannot be read"):
        list(Bitext(tmp_path / "a.de.gz", tmp_path / "a.de.gz", (0, 0)))


def test_columns_of_a_table_are_read_in_either_direction(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"a\tx\nb\ty\n")
    path = tmp_path / "t.tsv"
    assert [pair[:2] for pair in Bitext(path, path, (1, 0))] == [("x", "a"), ("y", "b")]
    path.write_bytes(b"a\tx\nb\n")
    with pytest.raises(InputError, match="2: 1 columns, expected 2"):
        list(Bitext(path, path, (0, 1)))


def test_a_wrong_count_says_what_was_expected(tmp_path):
    assert "1 pairs, expected 29,000 or 2" in fault(tmp_path, b"a\n", b"x\n", counts=(29_000, 2))


def numbered(tmp_path: Path, count: int) -> Bitext:
    """Pairs of which every third has the sentence of the one before, and every fifth is empty."""
    sources = [f"s{i - (i % 3 == 2)}" if i % 5 else " " for i in range(count)]
    targets = [f"t{i}" for i in range(count)]
    lines = ("".join(f"{line}\n" for line in side).encode() for side in (sources, targets))
    return bitext(tmp_path, *lines)


@pytest.mark.parametrize("count", [4, 10, 100, pytest.param(30_000, marks=pytest.mark.slow)])
def test_held_out_pairs_share_no_sentence_with_the_rest(tmp_path, count):
    pairs = numbered(tmp_path, count)
    rest, held_out = pairs.hold_out()
    assert sorted([*rest, *held_out], key=lambda pair: pair.line) == list(pairs)
    sources = {pair.source for pair in held_out}
    assert not sources & {pair.source for pair in rest}
    assert 1 <= len(sources) <= min(2000, max(1, count // 10))
    assert list(pairs.hold_out()[1]) == list(held_out)


def test_frequent_sentences_are_held_out_as_rarely_as_others(tmp_path):
    """Half of the pairs repeat 100 phrases, and one phrase has more pairs than may be held out."""
    drawn = random.Random(0)
    lines = [f"phrase {drawn.randrange(100)}" for _ in range(3000)]
    lines += [f"sentence {i}" for i in range(3000)]
    drawn.shuffle(lines)
    text = "".join(f"{line}\n" for line in [*lines, *["ok"] * 2500]).encode()
    parts = bitext(tmp_path, text, text).hold_out()
    rest, held_out = ([pair.source for pair in part] for part in parts)
    assert 300 < len(held_out) <= MAX_HELD_OUT
    assert len({source for source in rest if source.startswith("phrase")}) >= 80
    assert "ok" in rest


def test_no_source_is_in_both_parts_whatever_its_case_and_punctuation(tmp_path):
    sources = [
        f"{word} {number}{end}"
        for word in ("Yes", "YES", "yes")
        for number in range(60)
        for end in ("", " .", "! ")
    ]
    text = "".join(f"{source}\n" for source in sources).encode()
    parts = bitext(tmp_path, text, text).hold_out()
    rest, held_out = ({pair.source.lower().rstrip(" .!") for pair in part} for part in parts)
    assert len(held_out) == 6
    assert not held_out & rest


@pytest.mark.parametrize("content", [b"a\n", b"a\na\na\n", b" \n \n"])
def test_too_few_pairs_to_hold_some_out(tmp_path, content):
    with pytest.raises(InputError, match=r"too few different .* data\.valid_source"):
        bitext(tmp_path, content, content).hold_out()
