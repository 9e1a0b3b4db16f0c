"""`prepare vectors`: the same vectors each time, where `--data.vectors trained` finds them."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from clusterformer.cli.main import main
from clusterformer.data import documents
from clusterformer.data.prepare import train_vectors
from clusterformer.data.tokenizers import WordTokenizer
from clusterformer.data.word_vectors import load_vectors, trained_vectors, word_vectors
from clusterformer.errors import InputError

pytest.importorskip("gensim")

WIKI = "the well @-@ known <unk> purrs . The cat sleeps , the dog barks .\n"
BOOK = "The dog doesn’t sleep:\nthe _cat_ purrs.\n\nThe cat, the dog."


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = len(4 * WIKI.split())
    monkeypatch.setitem(documents._WIKITEXT2, "train", (4, words))
    monkeypatch.setattr(documents, "_NUM_GUTENBERG", 8)
    monkeypatch.setattr(train_vectors, "WIDTH", 8)
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2" / "train.txt.gz").write_bytes(gzip.compress(4 * WIKI.encode()))
    (tmp_path / "gutenberg").mkdir()
    index = ["file\tbytes"]
    for name in (*documents._HELD_OUT["valid"], *documents._HELD_OUT["test"], "some"):
        text = 3 * f"{BOOK}\n\n" if name == "some" else "secret secret secret secret\n"
        (tmp_path / "gutenberg" / f"{name}.txt").write_text(text, encoding="utf-8")
        index.append(f"{name}.txt\t{len(text.encode())}")
    (tmp_path / "gutenberg" / "index.tsv").write_text("\n".join(index) + "\n")
    return tmp_path


def test_everybody_gets_the_same_where_fit_finds_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare = ["prepare", "vectors", "--root", str(root)]
    assert main(prepare) == 0, capsys.readouterr().err
    assert f"vectors: {trained_vectors()}" in capsys.readouterr().out
    first = trained_vectors().read_bytes()
    words = {"cat", "dog", "does", "n't", "-", "well", "purrs"}
    found = load_vectors(trained_vectors())
    assert words <= set(found.index_to_key)
    assert not {"secret", "<unk>", "_cat_", "unk"} & set(found.index_to_key)
    matrix = word_vectors("trained", WordTokenizer(["cat", "dog"]))
    assert np.allclose(matrix[2], found["cat"])
    trained_vectors().unlink()
    assert main(prepare) == 0
    assert trained_vectors().read_bytes() == first
    begun = trained_vectors().stat().st_mtime_ns
    assert main(prepare) == 0  # there already
    assert trained_vectors().stat().st_mtime_ns == begun


def test_what_is_missing_is_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"vectors trained: no file .* `prepare vectors` makes it"):
        word_vectors("trained", WordTokenizer(["cat"]))
    assert main(["prepare", "vectors", "--root", str(root / "none")]) == 2
    assert "wikitext2: no folder" in capsys.readouterr().err
    (root / "wikitext2" / "train.txt.gz").unlink()
    assert main(["prepare", "vectors", "--root", str(root)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
