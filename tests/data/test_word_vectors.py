"""Word vectors: the right rows, from the cache as from the file, and faults with their line."""

import gzip
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from clusterformer.data.cache import _describe
from clusterformer.data.tokenizers import WordTokenizer
from clusterformer.data.word_vectors import load_vectors, word_vectors
from clusterformer.errors import InputError

GLOVE = "cat 1 2 3\ndog 4 5 6\n. . . 7 8 9\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "clusterformer" / "vectors"


@pytest.fixture
def glove(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    return path


def test_words_get_their_vectors_and_the_rest_random_ones(glove):
    tokenizer = WordTokenizer(["dog", "mouse", "cat"])
    matrix = word_vectors(glove, tokenizer, seed=1)
    assert matrix.shape == (5, 3)
    assert matrix[2].tolist() == [4, 5, 6]
    assert matrix[4].tolist() == [1, 2, 3]
    assert not matrix[0].any()
    assert matrix[1].all()
    assert matrix[3].all()
    torch.testing.assert_close(word_vectors(glove, tokenizer, seed=1), matrix)
    assert not torch.equal(word_vectors(glove, tokenizer, seed=2)[3], matrix[3])


def test_random_vectors_have_the_scale_of_the_others(tmp_path):
    path = tmp_path / "wide.txt"
    rows = 5 * np.random.default_rng(0).standard_normal((50, 40))
    path.write_text("".join(f"w{i} {' '.join(map(str, row))}\n" for i, row in enumerate(rows)))
    tokenizer = WordTokenizer([f"w{i}" for i in range(100)])
    assert word_vectors(path, tokenizer)[52:].std() == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize("header", ["", "3 3\n"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz"])
def test_header_line_and_gzip_are_recognised(tmp_path, header, ending):
    path = tmp_path / f"glove.{ending}"
    content = (header + GLOVE).encode()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    vectors = load_vectors(path)
    assert vectors.index_to_key == ["cat", "dog", ". . ."]
    assert vectors.vectors.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_second_loading_maps_the_cache(glove, cache):
    first = load_vectors(glove)
    cached = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    again = load_vectors(glove)
    assert isinstance(again.vectors, np.memmap)
    assert again.vectors.tolist() == first.vectors.tolist()
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == cached


def test_changed_file_is_read_anew(glove):
    load_vectors(glove)
    glove.write_text(GLOVE.replace("1", "0"))
    os.utime(glove, ns=(0, 0))
    assert load_vectors(glove)["cat"].tolist() == [0, 2, 3]


def test_many_may_fill_the_cache_at_once(glove, cache):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: load_vectors(glove).vectors.tolist(), range(8)))
    assert all(vectors == found[0] for vectors in found)
    assert len([path for path in cache.iterdir() if path.suffix != ".lock"]) == 1


class Harmful:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_planted_pickle_never_runs(glove, cache, tmp_path):
    load_vectors(glove)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    harm = pickle.dumps(Harmful(tmp_path / "harm"))
    for name in ("vectors.kv", "vectors.kv.vectors.npy", "vectors.npy", "words.txt"):
        (folder / name).write_bytes(harm)
    assert load_vectors(glove)["dog"].tolist() == [4, 5, 6]
    objects = np.array([Harmful(tmp_path / "harm")], dtype=object)
    np.save(folder / "vectors.npy", objects, allow_pickle=True)
    (folder / "manifest.json").write_text(json.dumps(_describe(folder)))  # it even fits
    with pytest.raises((InputError, ValueError)):
        load_vectors(glove)
    assert not (tmp_path / "harm").exists()
    pickle.loads(harm)
    assert (tmp_path / "harm").exists()


def test_of_a_word_that_comes_twice_the_last_vector_counts(glove):
    glove.write_text(GLOVE + "cat 0 0 1\n")
    for _ in range(2):
        vectors = load_vectors(glove)
        assert vectors["cat"].tolist() == [0, 0, 1]
        assert vectors.vectors.shape == (3, 3)


def test_cache_that_cannot_be_written_is_done_without(glove, cache):
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file where the folder should be")
    assert load_vectors(glove)["cat"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cat 1 2 3\ndog 4 5\n", "glove.txt:2: not word vectors in GloVe's format: 2 numbers"),
        ("cat 1 2 3\ndog 4 five 6\n", "glove.txt:2: .*five"),
        ("cat\n", "glove.txt:1: not word vectors"),
        ("", "glove.txt: not word vectors .*: no vectors in it"),
        ("2 3\ncat 1 2 3\n", "1 vectors, the first line says 2; the file is cut"),
        ("9" * 5000 + " 3\ncat 1 2 3\n", "glove.txt:1: not word vectors"),
        (f"1 {10**30}\ncat 1 2 3\n", "glove.txt:2: not word vectors"),
        ("cat 1 2 3\ndog 1 nan 3\n", "glove.txt:2: .*: nan or infinite"),
        ("1 3\ncat 1 1e300 3\n", "glove.txt:2: .*: nan or infinite"),
        ("cat \ud800 2 3".encode("utf-8", "surrogatepass"), "glove.txt:1: bytes ed a0 80"),
    ],
)
def test_faults_are_named_with_their_line(glove, content, message):
    glove.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        load_vectors(glove)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none.txt: no such file"):
        load_vectors(tmp_path / "none.txt")
