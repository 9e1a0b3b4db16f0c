"""Where data sets lie, and where what was computed once is kept for the next run."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """This project's folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "clusterformer"


def data_folder(root: str | Path | None = None) -> Path:
    """Folder of the named data sets: `root`, else $CLUSTERFORMER_DATA, else the user's cache."""
    chosen = root or os.environ.get("CLUSTERFORMER_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()
