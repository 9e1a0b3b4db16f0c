"""Check of values that a file brings, such as a checkpoint, against the types that code states."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from clusterformer.errors import InputError
from clusterformer.wording import suggested


def require_structure(value: Any, expected: Any, name: str) -> None:
    """Refuse a value that is not of the expected type, whatever is nested inside it.

    Known types are classes, None, `Any`, `Literal`, unions, `list[...]`, `dict[...]` and subclasses
    of TypedDict, which may have further keys. A bool is no int; an int is a float too.

    Example:
        >>> class State(TypedDict):
        ...     labels: list[str]
        >>> require_structure({"labels": ["a", 3]}, State, "task")
        InputError: task.labels[1] must be str, got 3

    Args:
        value: Value to check.
        expected: Type that is allowed.
        name: Name of the value, for the message.

    Raises:
        InputError: for the first part that does not fit: its name, its value, what is allowed.
    """
    for path, found, allowed in _misfits(value, expected, name):
        got = " ".join(reprlib.repr(found).split())
        raise InputError(f"{path} must be {_described(allowed)}, got {got}")


def require_arguments(function: Callable[..., Any], options: Any, name: str) -> None:
    """Refuse options by name that a function or class does not take, likewise.

    Raises:
        InputError: for an option that is missing, unknown or of another type.
    """
    require_structure(options, dict[str, Any], name)
    called = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    hints = get_type_hints(called)
    parameters = inspect.signature(function).parameters
    for option, value in options.items():
        if option not in parameters:
            known = suggested(option, parameters)
            raise InputError(f"{name}: no option {option!r:.60}; {known}")
        require_structure(value, hints.get(option, Any), f"{name}.{option}")
    for option, parameter in parameters.items():
        if option not in options and parameter.default is parameter.empty:
            raise InputError(f"{name}.{option} is missing")


def _misfits(value: Any, expected: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the value and the allowed type of each part that does not fit."""
    origin, inner = get_origin(expected), get_args(expected)
    if expected is Any:
        return
    if origin in (Union, UnionType):
        tried = [next(_misfits(value, one, path), None) for one in inner]
        misfits = [found for found in tried if found is not None]
        if len(misfits) == len(tried):  # what is wrong inside an alternative tells more
            within = (found for found in misfits if found[0] != path)
            yield next(within, (path, value, expected))
    elif origin is Literal:
        if not any(value is one or (value == one and type(value) is type(one)) for one in inner):
            yield path, value, expected
    elif is_typeddict(expected):
        if not isinstance(value, dict):
            yield path, value, dict
            return
        for key, hint in get_type_hints(expected).items():
            if key in value:
                yield from _misfits(value[key], hint, f"{path}.{key}")
            elif key in expected.__required_keys__:
                yield f"{path}.{key}", _MISSING, hint
    elif origin is list:
        if not isinstance(value, list):
            yield path, value, expected
            return
        for number, item in enumerate(value):
            yield from _misfits(item, inner[0], f"{path}[{number}]")
    elif origin in (dict, Mapping):
        if not isinstance(value, dict):
            yield path, value, expected
            return
        for key, item in value.items():
            yield from _misfits(key, inner[0], f"{path}: a key")
            yield from _misfits(item, inner[1], f"{path}[{key!r:.60}]")
    elif not _is_instance(value, type(None) if expected is None else expected):
        yield path, value, expected


def _is_instance(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, (int, float) if kind is float else kind)


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING = _Missing()


def _described(expected: Any) -> str:
    if get_origin(expected) is Literal:
        return " or ".join(map(repr, get_args(expected)))
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(_described(one) for one in get_args(expected))
    if get_origin(expected) is not None:
        return str(expected).replace("typing.", "")
    return "None" if expected in (None, type(None)) else getattr(expected, "__name__", "a mapping")
