"""A web server on this machine that serves what it is given, and fails as it is told."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Web(ThreadingHTTPServer):
    """Each request takes the next of `troubles`; without one it is served well.

    Attributes:
        files: Content by path, such as {"/a/b.zip": b"..."}.
        troubles: "cut" and "stall" after half of what is left, "corrupt", "endless", or a status to
            answer.
        odd: Headers to send instead of the usual ones.
        ranges: Whether it knows ranges.
        tags: Whether it names the state of a file.
        pause: Seconds between two pieces of 64 KiB.
        asked: Path and range of every request, None for the whole file.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.troubles: list[str | int] = []
        self.ranges = self.tags = True
        self.pause = 0.0
        self.odd: dict[str, str] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.over = threading.Event()

    def handle_error(self, *_: object) -> None:
        """Say nothing when a client closes the connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def wanted(self) -> list[str | None]:
        """Ranges asked for."""
        return [wanted for _, wanted in self.asked]


@contextmanager
def serving() -> Iterator[Web]:
    with Web() as web:
        threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True).start()
        yield web
        web.over.set()
        web.shutdown()


class _Handler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        web, wanted = self.server, self.headers["Range"]
        web.asked.append((self.path, wanted))
        trouble = web.troubles.pop(0) if web.troubles else ""
        content = web.files.get(self.path)
        if isinstance(trouble, int) or content is None:
            self._refuse(trouble or 404)
            return
        tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
        same = self.headers["If-Range"] in (None, tag)
        start = int(wanted[6:-1]) if wanted and same and web.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        headers = {"ETag": tag} if web.tags else {}
        headers["Content-Length"] = str(len(content) - start)
        for name, value in (headers | web.odd).items():
            if value and (name, trouble) != ("Content-Length", "endless"):
                self.send_header(name, value)
        self.end_headers()
        while trouble == "endless":
            self.wfile.write(content)
        self._send(content[start:], trouble)

    def _refuse(self, status: int | str) -> None:
        self.send_response(int(status))
        self.send_header("Retry-After", self.server.odd.get("Retry-After", "0"))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, trouble: str) -> None:
        if trouble == "corrupt":
            body = body[:-1] + bytes([body[-1] ^ 1])
        if trouble in ("cut", "stall"):
            body = body[: len(body) // 2]
        for at in range(0, len(body), 1 << 16):
            time.sleep(self.server.pause)
            self.wfile.write(body[at : at + (1 << 16)])
        self.wfile.flush()
        if trouble == "stall":
            self.server.over.wait(30)
        if trouble == "cut":  # reset, not an orderly end
            time.sleep(0.05)
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def log_message(self, *_: object) -> None:
        pass
