"""Hooks of MkDocs.

- A line `<!-- help: COMMAND -->` becomes what `clusterformer COMMAND --help` prints.
- tasks/ and kernels/ install inside clusterformer; the API reference finds them there too.
"""

import contextlib
import io
import re
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

from clusterformer.cli.main import main

ROOT = Path(__file__).resolve().parents[1]


@event_priority(50)  # before mkdocstrings reads its options
def on_config(config: MkDocsConfig) -> None:
    """Show the API reference the package as it is when installed."""
    package = Path(tempfile.mkdtemp(prefix="clusterformer-docs-")) / "clusterformer"
    package.mkdir()
    for source in [*(ROOT / "clusterformer").iterdir(), ROOT / "tasks", ROOT / "kernels"]:
        (package / source.name).symlink_to(source)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(package.parent)]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fill in the help of commands."""
    return re.sub(r"^<!-- help: *([\w -]*?) *-->$", _help, markdown, flags=re.MULTILINE)


def _help(match: re.Match[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([*match[1].split(), "--help"])
    return f"```text\n{printed.getvalue().strip()}\n```"
