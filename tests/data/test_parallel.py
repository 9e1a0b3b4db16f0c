"""Preparation of parallel text: what is kept, what comes back, and what a kill leaves."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sacremoses

from clusterformer.data import parallel
from clusterformer.data.bitext import Bitext, Limits
from clusterformer.data.parallel import ParallelText
from clusterformer.data.text_form import TextForm
from clusterformer.data.token_store import TokenStore, TokenWriter
from clusterformer.data.tokenizers import BOS_EOS, BytePairTokenizer
from clusterformer.data.translation_corpora import find_bitext
from clusterformer.data.translation_sources import ParallelTextSource
from clusterformer.errors import InputError

LINES = [
    ("ein hund , isn't 3.5 %", "a dog 日本 ☃"),
    ("zwei  katzen", "two cats\u00a0."),
    ("b", "B"),
]
ANY, AS_IT_IS = Limits(), TextForm()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "clusterformer" / "translation"


def text(folder: Path, lines=LINES, limits=ANY, form=AS_IT_IS, **options) -> ParallelText:
    paths = [folder / "a.de", folder / "a.en"]
    for path, side in zip(paths, zip(*lines, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return ParallelText(Bitext(*paths), form, form, limits, **options)


def entries(folder: Path) -> set[str]:
    """Names in a folder, without the locks of what was made there."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def encoded(prepared: ParallelText, size: int = 300):
    tokenizer = prepared.learn_tokenizer(size)
    return tokenizer, *prepared.encode(tokenizer)


def test_text_comes_back_exactly(tmp_path):
    tokenizer, sources, targets = encoded(text(tmp_path))
    assert [tokenizer.decode(store[i]) for store in (sources, targets) for i in range(3)] == [
        line for side in zip(*LINES, strict=True) for line in side
    ]
    assert all(store[i][-1] == BOS_EOS for store in (sources, targets) for i in range(3))
    assert sources.lengths.tolist() == [len(sources[i]) for i in range(3)]


def test_limits_may_count_subwords_and_then_hold_for_validation_too(tmp_path, caplog):
    lines = [("a b", "a b"), ("ein-sehr-langes-wort", "a b"), ("c d", "c d e f"), ("", "a")]
    prepared = text(tmp_path, lines, Limits(8, 1.5, unit="subwords"))
    tokenizer, sources, targets = encoded(prepared, BytePairTokenizer.min_vocab_size)
    assert [tokenizer.decode(sources[i]) for i in range(len(sources))] == ["a b"]
    assert len(targets) == 1
    assert len(text(tmp_path, lines, Limits(8, 2)).encode(tokenizer)[0]) == 3  # of words
    source = ParallelTextSource(
        lambda split: prepared.bitext, AS_IT_IS, AS_IT_IS,
        tokenised=False, limits=prepared.limits, vocab_size=300,
    )  # fmt: skip
    prepared.bitext.source.write_text("a b\nein-sehr-langes-wort\nc d\n")
    prepared.bitext.target.write_text("a b\na b\nc d e f\n")
    caplog.clear()
    assert len(source.evaluation_pairs("test", tokenizer, None).lengths) == 3
    assert not caplog.records
    assert len(source.evaluation_pairs("valid", tokenizer, None).lengths) == 1
    assert caplog.messages == [
        f"{tmp_path}/a.de: validation pairs dropped: 1 with more than max_length 8 subwords, "
        "1 with length ratio above max_ratio 1.5"
    ]
    prepared.bitext.source.write_text("ein-sehr-langes-wort\n")
    prepared.bitext.target.write_text("a b\n")
    with pytest.raises(InputError, match=r"a\.de: no pair is fit for validation"):
        source.evaluation_pairs("valid", tokenizer, None)
    with pytest.raises(InputError, match=r"a\.en:2: more than max_length 8 subwords; data\.unfit"):
        text(tmp_path, lines[:2], Limits(8, unfit="error", unit="subwords")).encode(tokenizer)


def test_real_text_comes_back_exactly(data_root):
    bitext = find_bitext("multi30k", ("de", "en"), data_root, False, "valid")
    tokenizer, sources, targets = encoded(ParallelText(bitext, TextForm(), TextForm()), 2000)
    for index, pair in enumerate(bitext):
        assert tokenizer.decode(sources[index]) == pair.source
        assert tokenizer.decode(targets[index]) == pair.target


def test_no_text_spells_the_edge():
    tokenizer = BytePairTokenizer.train(["<edge> a"], vocab_size=300, lowercase=False, bos_eos=True)
    assert BOS_EOS not in tokenizer.encode("<edge> </s> <pad>")
    assert tokenizer.decode([BOS_EOS, *tokenizer.encode("<edge> a"), BOS_EOS]) == "<edge> a"


def test_unfit_pairs_are_dropped_and_counted_in_one_line(tmp_path, caplog):
    lines = [("a b", "c d"), ("", "x"), ("a " * 9, "b " * 9), ("a b c d", "x"), ("a", "b")]
    limits = Limits(max_length=8, max_ratio=1.5)
    _, sources, _ = encoded(text(tmp_path, lines, limits))
    assert len(sources) == 2
    assert [record.getMessage().replace(f"{tmp_path}/", "") for record in caplog.records] == [
        "a.de: pairs dropped: 1 with empty side, 1 with more than max_length 8 words, "
        "1 with length ratio above max_ratio 1.5"
    ]


def test_long_preparation_says_how_far_it_is(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(parallel, "_CHUNK", 2)
    monkeypatch.setattr(parallel, "_REPORT_EVERY", 4)
    with caplog.at_level("INFO"):
        encoded(text(tmp_path, [(f"a {i}", "b") for i in range(9)]))
    assert [record.getMessage().replace(f"{tmp_path}/", "") for record in caplog.records] == [
        "a.de: 9 pairs, learning their byte pairs",
        "a.de: 4 pairs encoded",
        "a.de: 8 pairs encoded",
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([("a", "b"), ("a", " ")], "a.en:2: empty side"),
        ([("a", "b"), (" ", "b")], "a.de:2: empty side"),
        ([("a b c", "b b b")], "a.en:1: more than max_length 2"),
    ],
)
def test_unfit_pairs_may_be_an_error(tmp_path, lines, message):
    with pytest.raises(InputError, match=message):
        encoded(text(tmp_path, lines, Limits(max_length=2, unfit="error")))


def test_nothing_fit_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no pair is fit"):
        encoded(text(tmp_path, [("", "a")]))


def test_words_are_counted_as_the_model_reads_them(tmp_path):
    form = TextForm("en", moses=True)
    kept_pairs = list(text(tmp_path, [("a,b!", "a b")], Limits(3), form).clean(Counter()))
    assert kept_pairs == []
    tokenised = text(tmp_path, [("a,b!", "a b")], Limits(3), form, tokenised=True)
    assert list(tokenised.clean(Counter())) == [("a,b!", "a b", 1)]


def test_escapes_of_moses_are_the_characters_that_a_user_writes(tmp_path):
    raw = """a kid's table & "x" <b> [c] | &amp;"""
    form = TextForm("en", moses=True)
    escaped = sacremoses.MosesTokenizer("en").tokenize(raw, return_str=True)
    assert "kid &apos;s table &amp; &quot; x &quot; &lt;" in escaped
    prepared = text(tmp_path, [(escaped, escaped)], form=form, tokenised=True)
    [(source, target, _)] = prepared.clean(Counter())
    assert source == target == form.preprocess(raw)


def test_a_reference_of_escaped_tokens_is_plain_text(tmp_path):
    bitext = text(tmp_path, [("ein tisch", "a kid &apos;s table &amp; a chair")]).bitext
    forms = TextForm("de", moses=True), TextForm("en", moses=True)
    source = ParallelTextSource(
        {"train": bitext, "valid": bitext}.get, *forms, tokenised=True, limits=ANY, vocab_size=300
    )
    pairs = source.evaluation_pairs("valid", source.learn_tokenizer(), None)
    [reference] = pairs[[0]].references
    assert reference == ("a kid 's table & a chair", "a kid's table & a chair")


def test_the_same_is_prepared_once_and_anything_else_anew(tmp_path, cache, monkeypatch):
    encoded(text(tmp_path))
    first = entries(cache)
    with monkeypatch.context() as patch:
        patch.setattr(ParallelText, "clean", None)
        encoded(text(tmp_path))
    assert entries(cache) == first
    changes = (
        {"lines": LINES[:2]},
        {"limits": Limits(max_length=100)},
        {"form": TextForm(lowercase=True)},
    )
    for changed in changes:
        before = entries(cache)
        encoded(text(tmp_path, **changed))
        assert len(entries(cache) - before) == 2


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.int32)])
def test_store_keeps_every_number(tmp_path, size, dtype):
    texts = [[size - 1, 0], [], [3], list(range(100))]
    writer = TokenWriter(tmp_path / "x", size)
    writer.extend(texts[:2])
    writer.extend(texts[2:])
    writer.close()
    store = TokenStore(tmp_path / "x")
    assert [store[i].tolist() for i in range(len(store))] == texts
    assert store[0].dtype == dtype


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path):
    """200,000 pairs, four times as many as 50,000, take hardly more memory."""
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from clusterformer.data.bitext import Bitext\n"
        "from clusterformer.data.text_form import TextForm\n"
        "from clusterformer.data.parallel import ParallelText\n"
        "path = Path(sys.argv[1])\n"
        "text = ParallelText(Bitext(path, path), TextForm(), TextForm())\n"
        "text.encode(text.learn_tokenizer(1000))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    peaks = []
    for count in (50_000, 200_000):
        path = tmp_path / f"{count}.txt"
        path.write_text("".join(f"w{i % 997} x{i % 89} y{i % 7} " * 8 + "\n" for i in range(count)))
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 60, peaks
    assert parallel._CHUNK < 50_000
