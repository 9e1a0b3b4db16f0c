"""Downloads over connections that break, against a server on this machine."""

import errno
import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path

import pytest
from full_disk import limited_files
from web import Web, serving

from clusterformer.data.prepare import download
from clusterformer.data.prepare.download import fetch
from clusterformer.errors import InputError

CONTENT = random.Random(0).randbytes(300_001)
HALF = len(CONTENT) // 2
CHECKSUM = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr(download, "FIRST_WAIT", 0.01)
    with serving() as web:
        web.files["/a.zip"] = CONTENT
        yield web


def bring(web: Web, folder: Path, checksum: str = CHECKSUM, timeout: float = 5.0) -> bytes:
    fetch(f"{web.url}/a.zip", folder / "a.zip", checksum=checksum, timeout=timeout)
    assert [path.name for path in folder.iterdir()] == ["a.zip"]
    return (folder / "a.zip").read_bytes()


@pytest.mark.parametrize("checksum", [CHECKSUM, ""])
@pytest.mark.parametrize("trouble", ["cut", "stall"])
def test_a_broken_connection_goes_on_where_it_broke(
    web: Web, tmp_path: Path, trouble: str, checksum: str
) -> None:
    web.troubles = [trouble, trouble]
    assert bring(web, tmp_path, checksum, timeout=0.3) == CONTENT
    quarter = HALF + (len(CONTENT) - HALF) // 2
    assert web.wanted == [None, f"bytes={HALF}-", f"bytes={quarter}-"]


def test_progress_counts_what_was_there_before(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:1000])
    reported: list[tuple[int, int | None]] = []
    fetch(
        f"{web.url}/a.zip",
        tmp_path / "a.zip",
        checksum=CHECKSUM,
        progress=lambda done, total: reported.append((done, total)),
    )
    assert web.wanted == ["bytes=1000-"]
    assert reported[0][0] > 1000
    assert reported[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_without_ranges_is_taken_at_its_word(web: Web, tmp_path: Path) -> None:
    web.ranges, web.troubles = False, ["cut"]
    assert bring(web, tmp_path) == CONTENT


def test_a_damaged_file_is_fetched_once_more_from_the_start(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.troubles = ["corrupt"]
    assert bring(web, tmp_path) == CONTENT
    assert web.wanted == [None, None]
    assert capsys.readouterr().out.endswith(f", expected {CHECKSUM}; fetching it again\n")


def test_what_never_agrees_with_its_checksum_gets_no_name(web: Web, tmp_path: Path) -> None:
    web.files["/a.zip"] = b"another file"
    with pytest.raises(InputError, match=f"expected {CHECKSUM}"):
        bring(web, tmp_path)
    assert not list(tmp_path.iterdir())


def test_two_states_of_a_file_are_never_joined(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"old" * 10)
    (tmp_path / "a.zip.tag").write_text('"of the old state"')
    assert bring(web, tmp_path, checksum="") == CONTENT
    assert web.wanted == ["bytes=30-"]


def test_two_states_are_not_joined_by_a_kill_between_tag_and_content(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.zip.part").write_bytes(b"old" * 10)
    (tmp_path / "a.zip.tag").write_text('"of the old state"')

    @contextmanager
    def killed_behind(path: Path) -> Iterator[None]:
        yield
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(download, "naming", killed_behind)
        with pytest.raises(KeyboardInterrupt):
            bring(web, tmp_path, checksum="")
    assert bring(web, tmp_path, checksum="") == CONTENT


def test_a_network_that_goes_away_is_a_broken_connection(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, errors = HTTPResponse.read1, [OSError(errno.EHOSTUNREACH, "No route to host")]

    def read_or_fail(response: HTTPResponse, size: int) -> bytes:
        if errors and (tmp_path / "a.zip.part").stat().st_size:
            raise errors.pop()
        return read(response, size)

    monkeypatch.setattr(HTTPResponse, "read1", read_or_fail)
    assert bring(web, tmp_path) == CONTENT
    assert web.wanted[0] is None
    assert str(web.wanted[1]).startswith("bytes=")


def test_without_tag_and_checksum_nothing_is_joined(web: Web, tmp_path: Path) -> None:
    web.tags, web.troubles = False, ["cut"]
    assert bring(web, tmp_path, checksum="") == CONTENT
    assert web.wanted == [None, None]


def test_a_part_that_is_whole_gets_its_name(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    assert bring(web, tmp_path) == CONTENT


def test_a_part_that_is_too_long_is_fetched_anew(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"x")
    assert bring(web, tmp_path) == CONTENT


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(web: Web, tmp_path: Path, status: int) -> None:
    web.troubles = [status, status]
    assert bring(web, tmp_path) == CONTENT


def test_a_server_that_stays_in_trouble_is_given_up(web: Web, tmp_path: Path) -> None:
    web.troubles = ["cut"] + [500] * download.ATTEMPTS
    with pytest.raises(InputError, match=f"500 .*{HALF:,} bytes are kept"):
        bring(web, tmp_path)
    assert len(web.asked) == 1 + download.ATTEMPTS
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[:HALF]


@pytest.mark.parametrize("status", [404, 403, 410])
def test_a_refusal_is_final(web: Web, tmp_path: Path, status: int) -> None:
    web.troubles = [status]
    with pytest.raises(InputError, match=f"the server says {status}"):
        bring(web, tmp_path)
    assert len(web.asked) == 1


def test_no_network_is_said_at_once_and_what_came_is_kept(tmp_path: Path) -> None:
    with serving() as web:
        gone = web.url
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:1000])
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"cannot be reached.*refused; 1,000 bytes are kept"):
        fetch(f"{gone}/a.zip", tmp_path / "a.zip", checksum=CHECKSUM)
    with pytest.raises(InputError, match="cannot be reached"):
        fetch("http://no-such-host.invalid/a.zip", tmp_path / "b.zip")
    assert time.monotonic() - begun < 5
    assert (tmp_path / "a.zip.part").read_bytes() == CONTENT[:1000]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit to set on the size of files")
def test_a_full_disk_is_one_line_and_keeps_what_came(web: Web, tmp_path: Path) -> None:
    program = f"""
import resource, sys
from pathlib import Path
from clusterformer.errors import InputError
from clusterformer.data.prepare.download import fetch
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    fetch({f"{web.url}/a.zip"!r}, Path({str(tmp_path / "a.zip")!r}))
except InputError as error:
    sys.exit(str(error))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "a.zip.part: File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    part = (tmp_path / "a.zip.part").read_bytes()
    assert part
    assert part == CONTENT[: len(part)]


def test_a_full_disk_is_named_before_anything_came(web: Web, tmp_path: Path) -> None:
    with limited_files(0), pytest.raises(OSError, match="File too large") as refused:
        fetch(f"{web.url}/a.zip", tmp_path / "a.zip")
    assert refused.value.filename == str(tmp_path / "a.zip.tag")


@pytest.mark.parametrize("size", [1_000_000, 0])
def test_an_endless_body_stops_at_the_published_size_or_the_limit(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(download, "MAX_BYTES", 2_000_000)
    web.troubles = ["endless"]
    limit = size or 2_000_000
    with pytest.raises(InputError, match=f"a.zip: .* bytes or more come, .* {limit:,}"):
        fetch(f"{web.url}/a.zip", tmp_path / "a.zip", size=size)
    assert len(web.asked) == 1
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < limit + 2**17


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_another_size_than_the_published_one_is_refused_at_once(
    web: Web, tmp_path: Path, size: int
) -> None:
    with pytest.raises(InputError, match=f"{len(CONTENT):,} bytes come, published are {size:,}"):
        fetch(f"{web.url}/a.zip", tmp_path / "a.zip", size=size)
    assert not (tmp_path / "a.zip").exists()


ODD = ["²", "9" * 5000, "-1", "1e9", "nan", "ÿ", "bytes */*", "bytes ²-³/²", "x" * 1000]


@pytest.mark.parametrize("value", ODD)
def test_odd_headers_are_no_traceback(web: Web, tmp_path: Path, value: str) -> None:
    web.troubles = [503, "cut"]
    names = ("Retry-After", "ETag", "Last-Modified", "Content-Range")
    web.odd = dict.fromkeys(names, value.encode().decode("latin-1"))
    try:
        fetch(f"{web.url}/a.zip", tmp_path / "a.zip", timeout=0.5)
        assert (tmp_path / "a.zip").read_bytes() == CONTENT
    except InputError:
        assert not (tmp_path / "a.zip").exists()


def test_a_tag_that_is_damaged_is_not_sent(web: Web, tmp_path: Path) -> None:
    (tmp_path / "a.zip.part").write_bytes(CONTENT[:100])
    for tag in (b"\xff\xfe", b"a\r\nX-Header: b", b"x" * 100_000):
        (tmp_path / "a.zip.tag").write_bytes(tag)
        assert bring(web, tmp_path, checksum="") == CONTENT
        (tmp_path / "a.zip").rename(tmp_path / "a.zip.part")
