"""Which commit of the source is running: that of the clone, or that which an installed copy has."""

from __future__ import annotations

import hashlib
import json
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import clusterformer
from clusterformer.working_folder import BESIDE

COMMITS = 1000
"""Number of commits, from the latest back, among which that of an installed copy is sought."""


@cache
def source_commit() -> str | None:
    """Find the commit that runs: of a clone its own, with "+" for changes on top.

    An installed copy has that which pip noted, where it came from a repository's address; where it
    came from a clone on this machine, the latest commit there with the same files. None if neither.
    """
    package = Path(clusterformer.__file__).parent
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(package, "rev-parse", "HEAD").strip()
        return commit + ("+" if _git(package, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return _installed_commit(package)


def _installed_commit(package: Path) -> str | None:
    try:
        noted = json.loads(distribution("clusterformer").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, OSError, ValueError):
        return None
    if commit := noted.get("vcs_info", {}).get("commit_id"):
        return str(commit)
    address = urlparse(noted.get("url", ""))
    if address.scheme != "file":
        return None
    try:
        return commit_of_files(package, Path(url2pathname(address.path)))
    except (OSError, subprocess.CalledProcessError):
        return None


def commit_of_files(package: Path, clone: Path) -> str | None:
    """Find the latest commit of a clone whose files are those of an installed package."""
    found = {
        _path_in_clone(path.relative_to(package)): _blob(path.read_bytes())
        for pattern in ("*.py", "*.yaml")
        for path in package.rglob(pattern)
    }
    listed = _git(clone, "ls-tree", "-r", "--format=%(objectname) %(path)", "HEAD").splitlines()
    tree = {path: blob for blob, _, path in (line.partition(" ") for line in listed)}
    different = {path for path, blob in found.items() if tree.get(path) != blob}
    options = ("--raw", "--no-abbrev", "--no-renames", "--first-parent", "-m", "--format=%H")
    for line in _git(clone, "log", *options, f"-n{COMMITS}", "HEAD").splitlines():
        if line.startswith(":"):  # a change of the commit, undone on the way back
            fields, _, path = line.partition("\t")
            if path in found:
                (different.discard if fields.split()[2] == found[path] else different.add)(path)
        elif line and not different:
            return line
    return None


def _path_in_clone(path: Path) -> str:
    inside = path.parts[0] in BESIDE
    return path.as_posix() if inside else f"clusterformer/{path.as_posix()}"


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)
    return done.stdout.decode("utf-8", "replace")
