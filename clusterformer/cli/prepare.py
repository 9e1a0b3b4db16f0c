"""`clusterformer prepare`: bring a named data set to the folder where the tasks look for it."""

from __future__ import annotations

import re
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from clusterformer.cli.arguments import Arguments
from clusterformer.errors import InputError
from clusterformer.wording import suggested

if TYPE_CHECKING:
    from clusterformer.data.prepare.catalogue import PublishedSet

HELP = """
usage: clusterformer prepare NAME [NAME ...] [options]
       clusterformer prepare --list

Fetch named data sets from their publishers into the folder of the data sets, and check them against
published checksums and counts. An interrupted download continues when you run the command again.

  --list            list all sets: task, size, licence, source, and whether the set is here
  --root DIR        folder of the data sets (default: $CLUSTERFORMER_DATA, else the user's cache)
  --accept-licence  accept the licence of a set that asks for it
  --mirror URL      fetch from URL/NAME/FILE instead, such as a server of your own
  --keep            keep the downloads in DIR/downloads/NAME, ready to serve as a mirror
  --timeout 30      seconds without a byte after which a connection is closed and opened again

sets
  classification      mr subj cr mpqa 20news cola sst2
  inference           snli scitail mnli sick rte qnli
  similarity          stsb
  matching            quora (fetched by hand: the command explains) wikiqa mrpc
  translation         multi30k iwslt14 wmt14 tatoeba
  language modelling  wikitext2 gutenberg pg19 wikipedia wikipedia-simple
                      (the last three need the extra hub)
                      stdlib (code: the library of your own Python, nothing to download)
  speech              fsdd librispeech (7 GB)
  others              mnist glove
  vectors             not fetched but trained, in ten minutes or so: 300 numbers a word, from
                      wikitext2 and gutenberg; into the user's cache, for --data.vectors trained

examples:
  clusterformer prepare mr multi30k
  clusterformer prepare wikiqa --accept-licence
  clusterformer prepare wmt14 --root /data --mirror http://mirror.example.org/sets
"""

VECTORS = "vectors"
"""Name of what is trained and not fetched."""

_MAX_TIMEOUT = 86_400.0  # seconds, a day


def run(arguments: list[str]) -> None:
    """Prepare each set, or list them all."""
    from clusterformer.data.prepare.catalogue import published_sets
    from clusterformer.data.prepare.prepare_set import prepare_set

    options = parse(arguments)
    if options.list:
        _list(options.root)
        return
    known = published_sets()
    for name in options.names:
        if name not in known and name != VECTORS:
            raise InputError(f"no data set {name!r}; {suggested(name, [*known, VECTORS])}")
    progress = _Progress()
    try:
        for published in (known[name] for name in options.names if name != VECTORS):
            folder = prepare_set(
                published.name,
                root=options.root,
                mirror=options.mirror,
                accept=options.accept_licence,
                keep=options.keep,
                timeout=options.timeout,
                report=progress.report,
                progress_of=progress.of,
            )
            print(f"{published.name}: {folder} (licence: {published.licence})", flush=True)
        if VECTORS in options.names:
            from clusterformer.data.prepare.train_vectors import train_vectors

            print(f"{VECTORS}: {train_vectors(options.root, progress.report)}", flush=True)
    except KeyboardInterrupt:
        progress.report("stopped; go on with the same command")
        raise
    finally:
        progress.end_line()


def parse(arguments: list[str]) -> Namespace:
    """Options of the command, checked."""
    parser = Arguments()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root")
    parser.add_argument("--accept-licence", "--accept-license", action="store_true")
    parser.add_argument("--mirror")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--timeout", type=float, default=30.0)
    options = parser.parse_args(arguments)
    if not options.names and not options.list:
        raise InputError("which data set? give its name, or --list to see what there is")
    if options.mirror is not None:
        _check_mirror(options.mirror)
    if not 0 < options.timeout <= _MAX_TIMEOUT:
        raise InputError(
            f"--timeout must be more than 0 seconds and at most {_MAX_TIMEOUT:,.0f}, "
            f"got {options.timeout:g}"
        )
    return options


def _check_mirror(address: str) -> None:
    """Refuse what is no address of a folder on a web server."""
    found = f"got {address!r:.200}"
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--mirror must begin with http:// or https://, {found}")
    try:
        parts = urlsplit(address)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError as error:
        raise InputError(f"--mirror is no address: {error}, {found}") from None
    odd = re.search(r"[^!-~]|[?#@\\]", address)
    if odd or not host:
        what = f"no {odd[0]!r}" if odd else "a host"
        raise InputError(f"--mirror must have {what}, such as http://example.org/sets, {found}")


def _list(root: str | None) -> None:
    from clusterformer.data.named_sets import data_folder
    from clusterformer.data.prepare.catalogue import published_sets
    from clusterformer.data.prepare.prepare_set import presence

    folder = data_folder(root)
    rows = [("name", "task", "size", "here", "terms", "licence", "source")]
    rows += [
        (
            published.name,
            published.task,
            _download_size(published),
            presence(published, folder),
            published.terms,
            published.licence,
            published.page,
        )
        for published in published_sets().values()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"folder of the data sets: {folder}\n")
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _download_size(published: PublishedSet) -> str:
    if published.bytes:
        return _size(published.bytes)
    return "?" if published.remotes else "none"


class _Progress:
    """Messages and the progress of downloads: on a terminal on one line, else every ten seconds."""

    def __init__(self) -> None:
        self._on_terminal, self._unfinished = sys.stderr.isatty(), False

    def report(self, message: str) -> None:
        """Print a message on a line of its own."""
        self.end_line()
        print(message, file=sys.stderr, flush=True)

    def end_line(self) -> None:
        """End the line of a download that did not end, or whose size is unknown."""
        if self._unfinished:
            print(file=sys.stderr, flush=True)
        self._unfinished = False

    def of(self, file: str) -> Callable[[int, int | None], None]:
        """Make a callback that prints the progress of a file."""
        pause = 0.2 if self._on_terminal else 10.0
        begun = shown = time.monotonic()
        first = last = 0

        def print_progress(done: int, total: int | None) -> None:
            nonlocal begun, shown, first, last
            now = time.monotonic()
            if not last or done < last:  # the first bytes, or the file begins anew
                begun, first = now, done
            last = done
            if now - shown < pause and done != total:
                return
            shown = now
            share = f" of {_size(total)} ({done / total:.0%})" if total else ""
            rate = f", {_size((done - first) / (now - begun))}/s" if now - begun > 1 else ""
            line = f"{file}: {_size(done)}{share}{rate}"
            self._unfinished = self._on_terminal and done != total
            end = "" if self._unfinished else "\n"
            text = f"\r{line:<70}" if self._on_terminal else line
            print(text, end=end, file=sys.stderr, flush=True)

        return print_progress


def _size(count: float) -> str:
    """Format a number of bytes in decimal units."""
    unit, name = next(
        (pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if count >= pair[0]), (1, "bytes")
    )
    return f"{count / unit:.3g} {name}"
