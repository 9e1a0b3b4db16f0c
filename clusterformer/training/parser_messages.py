"""Errors of jsonargparse, in one line with what is allowed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from importlib import import_module
from pydoc import locate

from clusterformer.attention import AttentionCore
from clusterformer.errors import InputError
from clusterformer.task import Task
from clusterformer.training.names_elsewhere import our_option
from clusterformer.wording import did_you_mean, suggested

_KEY = re.compile(r'Parser key "([^"]+)"|^--([\w.]+)\.help: ')  # of an option, or of its help
_OPTION = re.compile(r"Option '([^']+)' is not accepted")
_CLASS_OPTION = re.compile(  # of the innermost class
    r"class_path[ =]'([^']+)'(?:(?!class_path[ =]').)*?Option '([^']+)' is not accepted", re.S
)
_OPTION_CLASS = re.compile(r"Option '([^']+)' is not accepted.*?class_path='([^']+)'", re.S)
_REQUIRED = re.compile(r"the following arguments are required: (\w+)")
_NAMED = re.compile(r"class_path[ =]'([^']+)'")
_GROUP = re.compile(r"Group '([^']+)' does not accept option '([^']+)'")
_CLASS = re.compile(r"Expected a dot import path string: (\S+)")
_SUBTYPE = re.compile(r"Subtypes: \[<class '([^']+)'>")
_ARGUMENT = re.compile(r"unrecognized arguments: (\S+)")
_EXPECTED = re.compile(r"Expected an? (?:<class '([^']+)'>|typing\.Literal\[(.+?)\]|([^.\n]+))")
_GOT = re.compile(r"(?:Got value|Given value): (.+?)(?:\. Got value|$)", re.M)
_DOTTED = re.compile(
    r"(?:Expected a path but |class_path '|class_path='|'class_path': '|"
    r"a callable class: [\s\S]*?Got value: )((?:[A-Za-z_]\w*\.)+\w+)"
)
_OFFENDER = re.compile(r"(?:no option|no class|got) '([^']+)'")


def offender(message: str) -> str:
    """Return the word that a message of `explain` is about, to be found in a configuration."""
    found = _OFFENDER.search(message)
    return found[1] if found else message


def explain(message: str, options: Iterable[str]) -> str:
    """Turn a message of jsonargparse into one line.

    Args:
        message: Message, often of many lines, that names Python types.
        options: Options of the command, such as "--model.lr", to suggest from.
    """
    if message.endswith("required: data"):
        return "nothing to train on; give --config, such as quickstart.yaml, or --data"
    names = [option.lstrip("-") for option in options]
    keys = [key or of_help for key, of_help in _KEY.findall(message)]
    where = f"{'.'.join(keys)}: " if keys else ""
    if found := _CLASS_OPTION.search(message):
        return where + _no_option(*found.groups())
    if found := _OPTION_CLASS.search(message):
        return where + _no_option(found[2], found[1])
    if found := _GROUP.search(message):
        group, key = found.groups()
        known = {name.split(".")[1] for name in names if name.startswith(f"{group}.")}
        return f"{group}: no option {key!r}; {_suggest(key, known)}"
    if found := _OPTION.search(message):
        group = found[1].partition(".")[0]
        return f"no option {group!r}; {_suggest(group, {name.partition('.')[0] for name in names})}"
    if len(keys) == 1 and (found := _REQUIRED.search(message)) and (of := _NAMED.search(message)):
        return f"{where}{of[1].rpartition('.')[2]} needs {found[1]}; give --{keys[0]}.{found[1]}"
    base: type = Task if keys[:1] == ["data"] else AttentionCore
    # a value of an option of a class is no class: naming one here would import its module
    kind = object if where.startswith("trainer.") else base
    if len(keys) == 1 and (found := _DOTTED.search(message)) and (why := _why_not(found[1], kind)):
        return where + why
    if found := _CLASS.search(message):
        if where.startswith("trainer."):
            hint = "give the path of one, such as lightning.pytorch.loggers.CSVLogger"
            return f"{where}no class {found[1]!r}; {hint}; for Weights & Biases: --wandb"
        subtypes = _SUBTYPE.findall(message) if len(keys) > 1 else []
        options_of = locate(subtypes[-1]) if subtypes else None
        if isinstance(options_of, type) and is_dataclass(options_of):
            known_options = ", ".join(field.name for field in fields(options_of))
            return f"{where}expected null or its options, {known_options}, got {found[1]!r}"
        return f"{where}no class {found[1]!r}; {_suggest(found[1], subclasses(base))}"
    if found := _ARGUMENT.search(message):
        name = found[1].lstrip("-").partition("=")[0]
        if not found[1].startswith("-"):
            return f"unexpected argument {found[1]!r}; an option begins with --"
        ours = our_option(name)
        if close := _without_its_group(name, names) or ([] if ours is None else [ours]):
            hint = f"did you mean {' or '.join(f'--{option}' for option in close)}?"
        else:
            nearest = did_you_mean(name, [f"--{known}" for known in names])
            hint = nearest or "--help and --help-all list the options"
        return f"no option --{name}; {hint}"
    expected = [next(filter(None, groups)) for groups in _EXPECTED.findall(message)]
    if expected and (got := _GOT.findall(message)):
        # for an option of a task or mechanism, "or nothing" would speak of that as a whole
        names = [name for name in dict.fromkeys(expected) if name != "NoneType" or len(keys) < 2]
        wanted = " or ".join(names).replace("NoneType", "null")
        return f"{where}expected {wanted}, got {_value(got[0])}"
    return where + " ".join(_KEY.sub("", message).strip(" :\n").split())


def _without_its_group(name: str, names: list[str]) -> list[str]:
    """Find options that are meant by their last part, as in --lr, or first word, as in --seed."""
    exact = [known for known in names if known.rpartition(".")[2] == name]
    return exact + [known for known in names if known.startswith(f"{name}_")]


def _why_not(class_path: str, base: type) -> str | None:
    """Say why a class that is named by its full path cannot be used; None if it can be."""
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        where = "neither installed nor in the current folder (a package needs an __init__.py)"
        missing = error.name and f"{module}.".startswith(f"{error.name}.")
        return f"cannot import {module}: {where if missing else error}"
    except Exception as error:  # the user's module raises whatever it does
        return f"cannot import {module}: {type(error).__name__}: {error}"
    if found is None:
        return f"{module} has no class {name!r}"
    if isinstance(found, type) and issubclass(found, base):
        return _lacks(found) if inspect.isabstract(found) else None
    return f"{class_path} is no subclass of {base.__name__}"


def refuse_abstract(option: str, class_path: str) -> None:
    """Refuse a class that lacks methods.

    Raises:
        InputError: with its subclasses, else with the methods that it lacks.
    """
    found = locate(class_path)
    if isinstance(found, type) and inspect.isabstract(found):
        names = ", ".join(sorted(subclasses(found)))
        why = f"{found.__name__} is abstract; there is {names}" if names else _lacks(found)
        raise InputError(f"{option}: {why}")


def _lacks(cls: type) -> str:
    """Say which methods a class has yet to define."""
    missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
    return f"{cls.__module__}.{cls.__name__} lacks methods: {missing}"


def _no_option(class_path: str, key: str) -> str:
    found = locate(class_path)
    known = _options(found) if isinstance(found, type) else set()
    if isinstance(found, type) and issubclass(found, AttentionCore):
        known -= {"d_model", "num_heads"}
    return f"{class_path.rpartition('.')[2]} has no option {key!r}; {_suggest(key, known)}"


def _options(cls: type) -> set[str]:
    """List the parameters of a constructor and of those that it passes `**options` to."""
    known: set[str] = set()
    for parent in cls.__mro__:
        if "__init__" in vars(parent):
            _, *parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
            known |= {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                break
    return known


def _suggest(name: str, known: Iterable[str]) -> str:
    known, ours = sorted(known), our_option(name)
    if ours is None:
        return suggested(name, known)
    return f"did you mean --{ours}? there is {', '.join(known)}"


_INTERNAL = ("clusterformer.bench.", "clusterformer.sequence_parallel.")
"""Beginnings of modules with mechanisms that nobody chooses by name."""


def subclasses(base: type) -> set[str]:
    """Return the names of the imported classes that complete an abstract one, for users."""
    found: set[str] = set()
    subclass: type
    for subclass in base.__subclasses__():
        found |= subclasses(subclass)
        name, internal = subclass.__name__, subclass.__module__.startswith(_INTERNAL)
        if not (inspect.isabstract(subclass) or internal or name.startswith("_")):
            found.add(name)
    return found


def _value(text: str) -> str:
    nested = re.search(r"val='([^']*)'", text)
    return repr(nested[1] if nested else text.strip())
