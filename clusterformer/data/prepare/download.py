"""Downloads over HTTP that resume after a cut or stalled connection, or a kill.

pooch would begin a cut download anew, and the training text of WMT14 is 1.7 GB. The standard
library suffices, so that fetching needs no extra.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import ssl
import time
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

from clusterformer.data.cache import hash_file
from clusterformer.errors import InputError
from clusterformer.whole_files import naming

FIRST_WAIT = 1.0
"""Seconds before the first repeated attempt, doubled before each further one."""

ATTEMPTS = 5
"""Maximum number of successive attempts without a byte."""

MAX_BYTES = 2**30
"""Maximum size of a file whose size is not published."""

Progress = Callable[[int, int | None], None]
"""Called after every block with the bytes fetched and those of the whole file (None: unknown)."""

_MAX_WAIT = 60.0
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}  # status codes of temporary errors
_BROKEN = (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError)
_UNREACHABLE = (ConnectionRefusedError, ssl.SSLCertVerificationError)


class _Interrupted(Exception):
    """The connection broke, or there was none.

    Args:
        reason: Cause.
        wait: Seconds that the server asks to wait.
        unreachable: Whether no server answers at all.
    """

    def __init__(self, reason: object, wait: float = 0.0, *, unreachable: bool = False) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.wait, self.unreachable = wait, unreachable


def fetch(
    url: str,
    path: Path,
    *,
    checksum: str = "",
    size: int = 0,
    timeout: float = 30.0,
    report: Callable[[str], None] = print,
    progress: Progress = lambda done, total: None,
) -> None:
    """Fetch a file to `path`, which appears only when it is complete.

    Until then it grows in `path`.part, where the next call continues it by an HTTP range; if the
    server sends the whole file instead, that is used. Without a checksum the server must confirm,
    by entity tag or time of change, that it is still the same file.

    Args:
        url: Address, http or https.
        path: Path of the file, in an existing folder.
        checksum: "sha256:..." or another of hashlib's; empty if none is published.
        size: Published number of bytes; 0 if unknown, then `MAX_BYTES` is the limit.
        timeout: Seconds without a byte after which the connection counts as dead.
        report: Function that gets a message when the file must be fetched again.
        progress: Callback for the progress.

    Raises:
        InputError: if the server cannot be reached, does not have the file, sends one of
            another size or beyond the limit, or with another checksum, twice.
    """
    part = path.with_name(f"{path.name}.part")
    if _size(part) > (size or MAX_BYTES):
        part.unlink()
    tag = path.with_name(f"{path.name}.tag")
    found = ""
    for attempt in range(2):
        if attempt:
            report(f"{url}: {found}, expected {checksum}; fetching it again")
        _collect(url, part, None if checksum else tag, size, timeout, progress)
        found = digest(part, checksum)
        if found == checksum:
            part.replace(path)
            tag.unlink(missing_ok=True)
            return
        part.unlink()
    raise InputError(f"{url}: {found}, expected {checksum}; the file is damaged or another one")


def digest(path: Path, like: str) -> str:
    """Compute a file's checksum by the algorithm of the checksum `like`; empty if `like` is."""
    algorithm, colon, _ = like.partition(":")
    if not colon:
        return ""
    return f"{algorithm}:{hash_file(path, hashlib.new(algorithm))}"


def _collect(
    url: str, part: Path, tag: Path | None, size: int, timeout: float, progress: Progress
) -> None:
    """Fill `part`, over as many connections as needed."""
    fruitless, begun = 0, _size(part)
    while True:
        before = _size(part)
        try:
            return _receive(url, part, tag, size, timeout, progress)
        except _Interrupted as broken:
            fruitless = 0 if _size(part) > before else fruitless + 1
            kept = f"; {_size(part):,} bytes are kept to continue from" if _size(part) else ""
            if broken.unreachable and before == begun:
                raise InputError(f"{url}: cannot be reached: {broken}{kept}") from None
            if fruitless == ATTEMPTS:
                raise InputError(f"{url}: {broken}, {ATTEMPTS} times in a row{kept}") from None
            time.sleep(max(broken.wait, min(FIRST_WAIT * 2**fruitless, _MAX_WAIT)))


def _receive(
    url: str, part: Path, tag: Path | None, size: int, timeout: float, progress: Progress
) -> None:
    """Append the bytes of one connection, never more than the file may have."""
    known = _safe(tag.read_bytes().decode("latin-1")) if tag and tag.exists() else ""
    num_bytes = _size(part) if known or not tag else 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "clusterformer"})
    except ValueError as error:
        raise InputError(f"{url}: no address: {error}") from error
    if num_bytes:
        request.add_header("Range", f"bytes={num_bytes}-")
        if known:
            request.add_header("If-Range", known)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except HTTPError as error:
        _handle_refusal(url, error, part, num_bytes)
        return
    except URLError as error:
        temporary = isinstance(error.reason, _BROKEN) and not isinstance(error.reason, _UNREACHABLE)
        raise _Interrupted(error.reason, unreachable=not temporary) from None
    except _BROKEN as error:
        raise _Interrupted(error) from None
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        raise InputError(f"{url}: cannot be fetched: {error}") from error
    with response:
        start, total = _extent(response.status, response.headers)
        if start not in (0, num_bytes):
            part.unlink(missing_ok=True)
            raise _Interrupted(f"the server continued at byte {start:,} instead of {num_bytes:,}")
        num_bytes = start
        if total is not None:
            _check_size(url, total, size, done=True)
        if tag and not num_bytes:
            part.unlink(missing_ok=True)  # first: its bytes may be of a state before this tag
            with naming(tag):
                tag.write_text(_tag(response.headers), encoding="utf-8")
        with part.open("ab" if num_bytes else "wb") as file:
            while True:
                try:
                    block = response.read1(1 << 16)
                except (OSError, http.client.HTTPException) as error:
                    raise _Interrupted(error) from None
                if not block:
                    break
                _check_size(url, num_bytes + len(block), size)
                try:
                    file.write(block)
                    file.flush()
                except OSError as error:
                    raise InputError(
                        f"{part}: {error.strerror} after {num_bytes:,} bytes; they are kept"
                    ) from None
                num_bytes += len(block)
                progress(num_bytes, total)
    if total is not None and num_bytes < total:
        raise _Interrupted(f"connection lost after {num_bytes:,} of {total:,} bytes")
    _check_size(url, num_bytes, size, done=True)


def _check_size(url: str, num_bytes: int, size: int, *, done: bool = False) -> None:
    """Refuse more bytes than a file may have and, when it is done, fewer."""
    if num_bytes > (size or MAX_BYTES) or (done and size and num_bytes != size):
        allowed = f"published are {size:,}" if size else f"allowed are {MAX_BYTES:,}"
        more = "" if done else "or more "
        raise InputError(f"{url}: {num_bytes:,} bytes {more}come, {allowed}; it is another file")


def _extent(status: int, headers: Message) -> tuple[int, int | None]:
    """Return the offset of an answer's bytes in the file, and the length of the file."""
    if status == http.client.PARTIAL_CONTENT:
        extent, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        start = extent.partition("-")[0]
        first = _number(start)
        return -1 if first is None else first, _number(total)
    return 0, _number(headers.get("Content-Length", ""))


def _number(text: str) -> int | None:
    """Read a number of a header; None for anything else."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def _safe(tag: str) -> str:
    """Return a tag that can stand in a request's header, else an empty one."""
    return tag if re.fullmatch(r"[ -~]{1,200}", tag) else ""


def _handle_refusal(url: str, error: HTTPError, part: Path, num_bytes: int) -> None:
    """Return if the server has nothing to add to `part`, else raise."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and num_bytes:
        if error.headers.get("Content-Range", "").endswith(f"/{num_bytes}"):
            return
        part.unlink()
        raise _Interrupted("the kept bytes are more than the file has") from None
    status = f"{error.code} {error.reason}"
    if error.code in _TEMPORARY:
        wait = _number(error.headers.get("Retry-After", "")) or 0
        raise _Interrupted(status, min(wait, _MAX_WAIT)) from None
    raise InputError(f"{url}: the server says {status}") from None


def _tag(headers: Message) -> str:
    """Identify the state of a file for If-Range, which allows no weak entity tag."""
    tag = headers.get("ETag", "")
    return _safe(headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
