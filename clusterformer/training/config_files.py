"""Shipped configurations, found by bare name from any folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import yaml

from clusterformer.errors import InputError, Position, reading
from clusterformer.wording import suggested

COMPARISONS = "compare"
"""Folder of the shipped comparisons, below that of the shipped configurations."""

SECTIONS = {"model", "trainer"}
"""Sections of a configuration that hold options; `data` may also name a class alone."""


def shipped() -> dict[str, Path]:
    """List the shipped configurations: name, such as "mr.yaml", to file."""
    root = Path(str(files("clusterformer.configs")))
    found = sorted(root.rglob("*.yaml"))
    return {path.name: path for path in found if path.parent.name != COMPARISONS}


def comparisons() -> dict[str, Path]:
    """List the shipped comparisons likewise."""
    root = Path(str(files("clusterformer.configs"))) / COMPARISONS
    return {path.name: path for path in sorted(root.glob("*.yaml"))}


_MAX_CHARACTERS = 2**20
_MAX_NODES = 10_000
_KIND = "a YAML mapping of options, such as `model:` or `data:`"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a configuration file, as `parse_yaml` reads its text."""
    with reading(path, "a text file in UTF-8"):
        text = path.read_text(encoding="utf-8-sig")
    return parse_yaml(text, path)


def parse_yaml(text: str, source: str | Path) -> dict[str, Any]:
    """Parse a configuration; nothing in it runs code, or grows beyond its text.

    Args:
        text: YAML.
        source: File, or another name of the text, for errors.

    Raises:
        InputError: if it is not YAML, not a mapping of options, names an option twice, or is as
            large as no configuration is.
    """
    with reading(source, _KIND) as at:
        if len(text) > _MAX_CHARACTERS:
            raise InputError(f"{at}: {len(text)} characters, allowed is {_KIND}")
        content = load_yaml(text, at)
    if not isinstance(content, dict):
        raise InputError(f"{source}: holds no options, such as `model:` or `data:`")
    for section in SECTIONS & set(content):
        if not isinstance(content[section], dict) or not all(
            isinstance(key, str) for key in content[section]
        ):
            raise InputError(f"{source}: {section} must hold options, got {content[section]!r:.80}")
    return content


def load_yaml(
    text: str,
    at: Position,
    max_nodes: int = _MAX_NODES,
    check: Callable[[yaml.Node], None] | None = None,
) -> Any:
    """Load YAML of any kind; nothing in it runs code, or grows beyond its text.

    Args:
        text: YAML.
        at: Position of `reading`, inside which this stands; it gets the line of an error.
        max_nodes: Most keys and values, each counted as often as anchors repeat it.
        check: Called with the root of a text that is not empty, before values are made of it.

    Raises:
        InputError: if it is not YAML, has a key twice, or has too many values.
    """
    loader = _Loader(text, at, max_nodes)
    try:
        node = loader.get_single_node()
        if node is not None and check is not None:
            check(node)
        return None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        at.line = error.problem_mark.line + 1 if error.problem_mark else at.line
        raise InputError(f"{at}: not valid YAML: {error.problem}") from error
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    """A loader that refuses keys twice, and aliases that repeat themselves or too much."""

    def __init__(self, text: str, at: Position, max_nodes: int) -> None:
        super().__init__(text)
        self._at = at
        self._max_nodes = max_nodes
        self._sizes: dict[yaml.Node, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, and count the nodes in it with all aliases written out."""
        repeated = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        assert node is not None
        if repeated:
            if node not in self._sizes:  # it is still being composed
                self._refuse(node, "an alias stands inside its own anchor")
            return node
        children: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            children = node.value
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        self._refuse(key, f"{key.value!r:.80} is given twice")
                    keys.add(key.value)
            children = [child for pair in node.value for child in pair]
        self._sizes[node] = 1 + sum(self._sizes[child] for child in children)
        if self._sizes[node] > self._max_nodes:
            self._refuse(node, f"more than {self._max_nodes:,} values")
        return node

    def _refuse(self, node: yaml.Node, problem: str) -> NoReturn:
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        self._at.line = node.start_mark.line + 1
        return super().construct_object(node, deep=deep)


def to_yaml(config: Mapping[str, Any]) -> str:
    """Write a configuration as a file has it."""
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)


def to_argument(value: Any) -> str:
    """Write the value of an option as YAML in one line, for a command line.

    It is JSON but for characters beyond U+FFFF: JSON escapes one as two, which YAML refuses.
    """

    def escape(found: re.Match[str]) -> str:
        number = ord(found[0])
        return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"

    return re.sub(r"[^ -~]", escape, json.dumps(value, default=str, ensure_ascii=False))


def locate(word: str, paths: Sequence[Path]) -> str:
    """Find a word in configuration files; return "file:line: ", or "" if it is in none."""
    pattern = re.compile(rf"(?<![\w.]){re.escape(word)}(?![\w.])")
    for path in reversed(paths):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if pattern.search(line.partition(" #")[0]):
                return f"{path}:{number}: "
    return ""


def find(name: str, known: Mapping[str, Path] | None = None, kind: str = "configuration") -> Path:
    """Find the file that a name means: a path as it is, else a shipped file.

    Args:
        name: Path or name.
        known: Shipped files by name; None for the configurations.
        kind: What they are, for the error.

    Raises:
        InputError: if there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    known = shipped() if known is None else known
    found = known.get(name) or known.get(f"{name}.yaml")
    if found is None:
        told = suggested(name, known)
        raise InputError(f"no {kind} {name!r}, neither a file nor a shipped one; {told}")
    return found


def resolve(arguments: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Replace the name after every `--config` or `-c` by its file, after a check of the file.

    Returns:
        The new arguments, in which flags win over files wherever they stood, and the files.
    """
    configs: list[str] = []
    others: list[str] = []
    paths: list[Path] = []
    waiting = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if waiting or (equals and option in ("--config", "-c")):
            paths.append(find(argument if waiting else value))
            read_yaml(paths[-1])
            configs += ["--config", str(paths[-1])]
            waiting = False
        else:
            waiting = argument in ("--config", "-c")
            others += [] if waiting else [argument]
    if waiting:
        raise InputError("--config needs a value")
    return [*configs, *others], paths
