"""The cache: folders whole or not at all, checked at every opening, made again if damaged."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterformer.data.bitext import Bitext
from clusterformer.data.cache import cached_folder
from clusterformer.data.documents import Document
from clusterformer.data.parallel import ParallelText
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.data.streams import token_stream
from clusterformer.data.text_form import TextForm
from clusterformer.data.word_vectors import load_vectors
from clusterformer.errors import InputError


def entries(folder: Path) -> set[str]:
    """Names in a folder, without the locks of what was made there."""
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_a_kill_leaves_no_half_folder(tmp_path):
    program = (
        "import sys, time; from pathlib import Path\n"
        "from clusterformer.data.cache import cached_folder\n"
        "def fill(folder):\n"
        "    (folder / 'half').write_text('x'); print('begun', flush=True); time.sleep(60)\n"
        "cached_folder(Path(sys.argv[1]), fill)"
    )
    done = tmp_path / "shelf" / "done"
    process = subprocess.Popen([sys.executable, "-c", program, str(done)], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert entries(done.parent) == {".done.draft"}
    another = done.with_name("another")
    cached_folder(another, lambda folder: (folder / "whole").write_text("x"))
    assert entries(done.parent) == {"another"}
    cached_folder(done, lambda folder: (folder / "whole").write_text("x"))
    assert entries(done.parent) == {"another", "done"}
    assert entries(done) == {"whole", "manifest.json"}


def test_what_another_process_is_making_is_left_to_it(tmp_path):
    def fill(folder: Path) -> None:
        cached_folder(tmp_path / "inner", lambda inner: (inner / "b").write_text("x"))
        (folder / "a").write_text("x")

    assert entries(cached_folder(tmp_path / "outer", fill)) == {"a", "manifest.json"}


def test_of_several_at_once_one_works_and_all_find_it_whole(tmp_path):
    filled = 0

    def fill(folder: Path) -> None:
        nonlocal filled
        filled += 1
        for name in "ab":
            (folder / name).write_text(str(os.getpid()))
            time.sleep(0.05)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cached_folder(tmp_path / "done", fill), range(4)))
    assert {tuple(sorted(path.name for path in one.iterdir())) for one in found} == {
        ("a", "b", "manifest.json")
    }
    assert entries(tmp_path) == {"done"}
    assert filled == 1


def test_a_fault_while_filling_leaves_nothing(tmp_path):
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise InputError("bad line")

    with pytest.raises(InputError, match="bad line"):
        cached_folder(tmp_path / "shelf" / "done", fill)
    assert entries(tmp_path / "shelf") == set()


def vectors(tmp_path):
    path = tmp_path / "glove.txt"
    if not path.exists():
        path.write_text("cat 1 2 3\ndog 4 5 6\n")
    found = load_vectors(path)
    return found.index_to_key, found.vectors.tolist()


def stream(tmp_path):
    path = tmp_path / "text.txt"
    if not path.exists():
        path.write_text("a text of some length\n" * 20)
    return token_stream([Document(path)], ByteTokenizer()).tolist()


def pairs(tmp_path):
    pytest.importorskip("tokenizers")
    paths = [tmp_path / "a.de", tmp_path / "a.en"]
    for path in paths:
        path.write_text("ein hund .\nzwei katzen\n")
    text = ParallelText(Bitext(*paths), TextForm(), TextForm())
    tokenizer = text.learn_tokenizer(300)
    sources, targets = text.encode(tokenizer)
    return tokenizer.state(), [store[i].tolist() for store in (sources, targets) for i in range(2)]


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def flip_one_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [halve, empty, flip_one_bit, os.remove], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("made", [vectors, stream, pairs])
def test_a_damaged_cache_is_named_and_made_again(tmp_path, monkeypatch, caplog, made, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    expected = made(tmp_path)
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix != ".lock" and path.stat().st_size]
    assert len(files) >= 2
    for path in files:
        caplog.clear()
        damage(path)
        assert made(tmp_path) == expected
        assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
            str(path.parent)
        ]
        assert path.name in caplog.text or path.name == "manifest.json"
        caplog.clear()
        assert made(tmp_path) == expected
        assert not caplog.records


def test_a_cache_of_an_older_version_is_made_again(tmp_path, caplog):
    folder = tmp_path / "done"
    folder.mkdir()
    (folder / "old").write_text("x")
    cached_folder(folder, lambda draft: (draft / "new").write_text("x"))
    assert entries(folder) == {"new", "manifest.json"}
    assert "manifest.json" in caplog.text


@pytest.mark.parametrize("content", ["[]", "null", "[" * 10_000, '{"a": "b"}', "\0"])
def test_a_damaged_manifest_is_no_error(tmp_path, content):
    folder = cached_folder(tmp_path / "done", lambda draft: (draft / "a").write_text("x"))
    (folder / "manifest.json").write_text(content)
    cached_folder(folder, lambda draft: (draft / "a").write_text("y"))
    assert (folder / "a").read_text() == "y"
