"""Values of a file are held against the types that code states."""

import inspect
from typing import Any, Literal, TypedDict, is_typeddict

import pytest

from clusterformer.api import import_tasks
from clusterformer.errors import InputError
from clusterformer.structure import require_arguments, require_structure
from clusterformer.task import Task


class Inner(TypedDict):
    size: int | None


class State(TypedDict):
    labels: list[str]
    inner: Inner
    mode: Literal["max", "min"]
    rates: dict[str, float]


WHOLE: dict[str, Any] = {
    "labels": ["a"],
    "inner": {"size": None},
    "mode": "max",
    "rates": {"x": 1},
    "more": 3,
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"labels": ["a", 3]}, r"state\.labels\[1\] must be str, got 3"),
        ({"labels": "a"}, r"state\.labels must be list\[str\], got 'a'"),
        ({"inner": {"size": True}}, r"state\.inner\.size must be int or None, got True"),
        ({"inner": {}}, r"state\.inner\.size must be int or None, got nothing"),
        ({"inner": None}, r"state\.inner must be dict, got None"),
        ({"mode": "most"}, r"state\.mode must be 'max' or 'min', got 'most'"),
        ({"rates": {"x": "1"}}, r"state\.rates\['x'\] must be float, got '1'"),
        ({"rates": {3: 1.0}}, r"state\.rates: a key must be str, got 3"),
    ],
)
def test_the_first_part_that_does_not_fit_is_named(
    changed: dict[str, Any], message: str | None
) -> None:
    if message is None:
        require_structure({**WHOLE, **changed}, State, "state")
        return
    with pytest.raises(InputError, match=f"^{message}$"):
        require_structure({**WHOLE, **changed}, State, "state")


def test_what_is_wrong_inside_an_alternative_is_named() -> None:
    with pytest.raises(InputError, match=r"x\.size must be int or None, got 'a'"):
        require_structure({"size": "a"}, Inner | None, "x")


def _called(words: list[str], *, lowercase: bool = True) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"words": [], "lowercase": False}, None),
        ({}, "x.words is missing"),
        ({"words": [], "other": 1}, "x: no option 'other'; there is words, lowercase"),
        ({"word": []}, "x: no option 'word'; did you mean words? there is words, lowercase"),
        ({"words": [], "lowercase": 1}, "x.lowercase must be bool, got 1"),
        ([], "x must be dict"),
    ],
)
def test_options_are_those_of_a_signature(options: Any, message: str | None) -> None:
    if message is None:
        require_arguments(_called, options, "x")
        return
    with pytest.raises(InputError) as error:
        require_arguments(_called, options, "x")
    assert message in str(error.value)


def _subclasses(base: type) -> list[type]:
    return [found for each in base.__subclasses__() for found in (each, *_subclasses(each))]


def test_every_task_states_what_its_checkpoint_holds() -> None:
    import_tasks()
    ours = [task for task in _subclasses(Task) if task.__module__.startswith("clusterformer.")]
    assert len(ours) >= 8
    for task in ours:
        holds_nothing = task.__name__ == "Needle"
        assert inspect.isabstract(task) or is_typeddict(task.state_type) or holds_nothing, task
