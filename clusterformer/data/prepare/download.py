"""Fetch files over HTTP, keeping what has come: cut, stalled or killed, it goes on from there.

Not pooch: it begins a cut download anew, and the training text of WMT14 is 1.7 GB. The standard
library does what is needed here, so that fetching asks for no extra.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
import time
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError, URLError

from clusterformer.errors import InputError

FIRST_WAIT = 1.0
"""Seconds before an attempt is repeated; twice as many before each further one."""

ATTEMPTS = 5
"""How many in a row may bring not one byte."""

Report = Callable[[int, int | None], None]
"""Told after every piece: bytes there are, and bytes of the whole file or None if unknown."""

_LONGEST_WAIT = 60.0
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # answers that may be another in a while
_BROKEN = (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError)
_NOBODY = (ConnectionRefusedError, ssl.SSLCertVerificationError)


class _Interrupted(Exception):
    """The connection broke, or there was none.

    Args:
        reason: What broke it.
        wait: Seconds that the server asks to wait.
        unreachable: Whether there is no server at all.
    """

    def __init__(self, reason: object, wait: float = 0.0, *, unreachable: bool = False) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.wait, self.unreachable = wait, unreachable


def fetch(
    url: str,
    path: Path,
    *,
    checksum: str = "",
    timeout: float = 30.0,
    report: Report = lambda done, total: None,
) -> None:
    """Bring a file to `path`, which holds nothing or all of it at any moment.

    Until then it grows in `path`.part, where the next call finds it. It goes on by an HTTP range;
    a server that sends the whole file instead is taken at its word. Without a checksum the server
    must confirm, by entity tag or time of change, that it is still the same file.

    Args:
        url: http or https.
        path: In an existing folder.
        checksum: "sha256:..." or another of hashlib's; empty if none is published.
        timeout: Seconds without a byte after which the connection counts as dead.
        report: Called with the progress.

    Raises:
        InputError: if the server cannot be reached, or does not have it, or what comes is not what
            the checksum says, twice.
    """
    part = path.with_name(f"{path.name}.part")
    tag = path.with_name(f"{path.name}.tag")
    found = ""
    for _ in range(2):
        _collect(url, part, None if checksum else tag, timeout, report)
        found = digest(part, checksum)
        if found == checksum:
            part.replace(path)
            tag.unlink(missing_ok=True)
            return
        part.unlink()
    raise InputError(f"{url}: {found}, expected {checksum}; what came is damaged or another file")


def digest(path: Path, like: str) -> str:
    """Checksum of a file, by the algorithm that the checksum `like` names; empty if that is."""
    algorithm, colon, _ = like.partition(":")
    if not colon:
        return ""
    value = hashlib.new(algorithm)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            value.update(piece)
    return f"{algorithm}:{value.hexdigest()}"


def _collect(url: str, part: Path, tag: Path | None, timeout: float, report: Report) -> None:
    """Fill `part`, by as many connections as it takes."""
    fruitless, begun = 0, _size(part)
    while True:
        before = _size(part)
        try:
            return _receive(url, part, tag, timeout, report)
        except _Interrupted as broken:
            fruitless = 0 if _size(part) > before else fruitless + 1
            kept = f"; {_size(part):,} bytes are kept to go on from" if _size(part) else ""
            if broken.unreachable and before == begun:
                raise InputError(f"{url}: cannot be reached: {broken}{kept}") from None
            if fruitless == ATTEMPTS:
                raise InputError(f"{url}: {broken}, {ATTEMPTS} times in a row{kept}") from None
            time.sleep(max(broken.wait, min(FIRST_WAIT * 2**fruitless, _LONGEST_WAIT)))


def _receive(url: str, part: Path, tag: Path | None, timeout: float, report: Report) -> None:
    """Append what one connection brings."""
    known = tag.read_text(encoding="utf-8") if tag and tag.exists() else ""
    have = _size(part) if known or not tag else 0
    request = urllib.request.Request(url, headers={"User-Agent": "clusterformer"})
    if have:
        request.add_header("Range", f"bytes={have}-")
        if known:
            request.add_header("If-Range", known)
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except HTTPError as error:
        _refused(url, error, part, have)
        return
    except URLError as error:
        passing = isinstance(error.reason, _BROKEN) and not isinstance(error.reason, _NOBODY)
        raise _Interrupted(error.reason, unreachable=not passing) from None
    except _BROKEN as error:
        raise _Interrupted(error) from None
    with response:
        start, total = _extent(response.status, response.headers)
        if start not in (0, have):
            part.unlink()
            raise _Interrupted(f"the server went on at byte {start:,} instead of {have:,}")
        have = start
        if tag and not have:
            tag.write_text(_tag(response.headers), encoding="utf-8")
        with part.open("ab" if have else "wb") as file:
            while True:
                try:
                    piece = response.read1(1 << 16)
                except _BROKEN as error:
                    raise _Interrupted(error) from None
                if not piece:
                    break
                try:
                    file.write(piece)
                    file.flush()
                except OSError as error:
                    raise InputError(
                        f"{part}: {error.strerror} after {have:,} bytes; they are kept"
                    ) from None
                have += len(piece)
                report(have, total)
    if total is not None and have < total:
        raise _Interrupted(f"connection lost after {have:,} of {total:,} bytes")


def _extent(status: int, headers: Message) -> tuple[int, int | None]:
    """Where the bytes of an answer begin in the file, and how long that is."""
    if status == http.client.PARTIAL_CONTENT:
        place, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        start = place.partition("-")[0]
        return int(start) if start.isdigit() else -1, int(total) if total.isdigit() else None
    length = headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _refused(url: str, error: HTTPError, part: Path, have: int) -> None:
    """Return if the server has nothing to add to `part`, else raise."""
    if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
        if error.headers.get("Content-Range", "").endswith(f"/{have}"):
            return
        part.unlink()
        raise _Interrupted("what was kept is longer than the file") from None
    said = f"{error.code} {error.reason}"
    if error.code in _PASSING:
        wait = error.headers.get("Retry-After", "")
        raise _Interrupted(said, min(float(wait), _LONGEST_WAIT) if wait.isdigit() else 0) from None
    raise InputError(f"{url}: the server says {said}") from None


def _tag(headers: Message) -> str:
    """What names this state of a file for If-Range, which takes no weak entity tag."""
    tag = headers.get("ETag", "")
    return headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
