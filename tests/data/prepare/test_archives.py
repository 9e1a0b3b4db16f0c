"""Archives of a hostile mirror: unpacked within limits, and never to a path of their own."""

import contextlib
import errno
import gzip
import io
import random
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from full_disk import limited_files

from clusterformer.data.prepare import archives
from clusterformer.data.prepare.archives import (
    copy_file,
    open_tar,
    open_tar_member,
    read_gzip,
    read_zip_member,
    tar_files,
    unzip_converter,
)
from clusterformer.data.prepare.catalogue import CONVERTERS
from clusterformer.errors import InputError
from clusterformer.whole_files import whole_folder

ZEROS = bytes(1 << 20)


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MIN_UNPACKED", 2**22)


def bomb(path: Path, megabytes: int = 64) -> Path:
    """An archive, by its ending, with one member `a` of zeros."""
    if path.suffix == ".zip":
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("a", "w") as a,
        ):
            for _ in range(megabytes):
                a.write(ZEROS)
    elif path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            for _ in range(megabytes):
                file.write(ZEROS)
    else:
        with tarfile.open(path, "w:gz") as tar:
            for name in ("a", "b"):
                member = tarfile.TarInfo(name)
                member.size = megabytes << 20
                tar.addfile(member, io.BytesIO(bytes(member.size)))
    return path


def test_a_copy_that_does_not_fit_is_named_by_its_folder(downloads: Path, folder: Path) -> None:
    (downloads / "train.gz").write_bytes(bytes(100_000))
    with (
        limited_files(10_000),
        pytest.raises(OSError, match="File too large") as refused,
        whole_folder(folder) as draft,
    ):
        copy_file(downloads / "train.gz", draft / "train.gz")
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(folder))


def read_tar(path: Path) -> bytes:
    with open_tar(path) as archive:
        return open_tar_member(archive, "b").read()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("x.zip", lambda path: read_zip_member(path, "a")),
        ("x.zip", lambda path: unzip_converter("x.zip", {"a": "out"})(path.parent, path.parent)),
        ("x.gz", read_gzip),
        ("x.tgz", read_tar),
    ],
)
def test_a_bomb_stops_at_the_limit(tmp_path: Path, name: str, read) -> None:
    path = bomb(tmp_path / name)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=f"{name}: more than 4,194,304 bytes unpacked"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**22
    finally:
        tracemalloc.stop()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2**23


def test_texts_of_any_size_stay_within_the_limit(tmp_path: Path) -> None:
    text = " ".join(random.Random(0).choices([f"word{i}" for i in range(3000)], k=800_000)).encode()
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", text)
    assert len(text) > 2**22
    assert read_zip_member(tmp_path / "x.zip", "a") == text


def test_links_and_sparse_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind in (("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE), ("s", b"S")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(tmp_path / "secret")
            tar.addfile(member)
        member = tarfile.TarInfo("kept")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"ok"))
    with open_tar(tmp_path / "x.tar") as archive:
        assert [(name, file.read()) for name, file in tar_files(archive)] == [("kept", b"ok")]


def test_no_member_is_written_outside(tmp_path: Path) -> None:
    downloads, folder = tmp_path / "in" / "downloads", tmp_path / "in" / "new"
    downloads.mkdir(parents=True)
    folder.mkdir()
    with tarfile.open(downloads / "20news-bydate.tar.gz", "w:gz") as tar:
        for name in ("../../../x/20news-train/../1", "/tmp-train/20news-bydate-train/a/2"):
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))
    before = {path for path in tmp_path.rglob("*") if path.parent != folder}
    with contextlib.suppress(KeyError, ValueError):
        CONVERTERS["20news"](downloads, folder)
    assert {path for path in tmp_path.rglob("*") if path.parent != folder} == before
