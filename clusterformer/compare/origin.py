"""Origin of a number: commit, command, machine and versions, for files and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Origin of a run; a text is "" where the run did not record it.

    Attributes:
        commit: Commit of the source, with "+" for changes on top; of a resumed run the different
            ones of its starts, in their order.
        command: Command line.
        machine: GPUs, processor and system.
        versions: Versions of clusterformer, Python and the packages that matter.
    """

    commit: str
    command: str
    machine: str
    versions: str


def origin_of(environment: Mapping[str, Any]) -> Origin:
    """Read the origin from what a run wrote about its environment."""
    packages, gpus = environment.get("packages"), environment.get("gpus")
    versions = {
        "clusterformer": environment.get("clusterformer"),
        "python": environment.get("python"),
        **(packages if isinstance(packages, dict) else {}),
    }
    cpus = environment.get("cpus")
    machine = [
        *(gpus if isinstance(gpus, list) else []),
        environment.get("cpu"),
        f"{cpus} CPUs" if cpus else None,
        environment.get("platform"),
    ]
    return Origin(
        str(environment.get("commit") or ""),
        str(environment.get("command") or ""),
        ", ".join(str(part) for part in machine if part),
        ", ".join(f"{name} {version}" for name, version in versions.items() if version),
    )
