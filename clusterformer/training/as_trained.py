"""Options of the data that must be those of a run's training, whenever the run is used again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from clusterformer.data.file_digests import file_digests
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError


def refuse_other_options(
    names: Iterable[str], trained: Mapping[str, Any], used: Mapping[str, Any], run: object
) -> None:
    """Refuse other values of the options that a trained run keeps.

    They would have no effect, as the checkpoint holds what was learnt with them, or would give the
    network what it was not trained on.

    Args:
        names: These options, as `Task.kept_options` names them.
        trained: Options of the task with which the run was trained.
        used: Those to be used now; they may have more, of a newer version.
        run: Name of the run, for the message.

    Raises:
        InputError: if one of them has another value.
    """
    for name in names:
        if name not in trained:  # of a newer version
            continue
        one, other = trained[name], used.get(name)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            one, other = dict(one), {option: other.get(option) for option in one}
        if one != other:
            raise InputError(
                f"--data.{name}: {run} was trained with {_shown(one)}, got {_shown(other)}; leave "
                "the option out"
            )


def _shown(value: Any) -> str:
    return "its defaults" if value is None else json.dumps(value)


def refuse_other_split(
    trained: Mapping[str, Any],
    used: Mapping[str, Any],
    run: object,
    parts: Sequence[Split] = ("valid", "test"),
) -> None:
    """Refuse to go on with, or to measure, a run on another split than that of its training.

    Args:
        trained: Options of the task with which the run was trained.
        used: Those to be used now.
        run: Name of the run, for the message.
        parts: Parts of the data that will be measured.

    Raises:
        InputError: if both read the same data set by different folds, or hold out of the same file
            what the run was trained on, or other examples than in the training.
    """
    if trained.get("name") != used.get("name"):
        return
    for part, train in _HELD_OUT.items():
        same = used.get(train) == trained.get(train)
        if same and used.get(part) is None and (file := trained.get(part)) is not None:
            raise InputError(
                f"--data.{part} null: {run} was trained with {file}, so what is held out of "
                f"{used.get(train)} instead was in its training; give a file"
            )
    _refuse_other_tenths(trained, used, run, parts)
    before, now = _folds(trained), _folds(used)
    for option in before | now:
        one, other = before.get(option, 0), now.get(option, 0)
        if one != other:
            raise InputError(
                f"--data.{option} {other}: {run} was trained with {one}, so examples of the test "
                f"of fold {other} were in its training; leave the option out, or train with it"
            )


def refuse_former_parts(trained: Mapping[str, Any], used: Mapping[str, Any], run: object) -> None:
    """Refuse to train on with a file for a part that was held out of the training file so far.

    What was held out would train now. Unlike a new run, this one has measures of it, which chose
    its best checkpoint.

    Args:
        trained: Options of the task with which the run was trained.
        used: Those to be used now.
        run: Name of the run, for the message.

    Raises:
        InputError: if there is such a file.
    """
    for part, train in _HELD_OUT.items():
        file, other = trained.get(train), used.get(part)
        if file is not None and used.get(train) == file and other and trained.get(part) is None:
            does = "test" if part == "test" else "validate"
            raise InputError(
                f"--data.{part} {other}: {run} was trained without it, and what was held out of "
                f"{file} to {does} would train now; leave the option out (`clusterformer {does}` "
                "takes it), or begin anew with --config"
            )


def refuse_other_validation(
    trained: Mapping[str, Any], used: Mapping[str, Any], digests: Mapping[str, str], run: object
) -> None:
    """Refuse to train on with other validation data, whose measures would not compare.

    The best checkpoint is chosen by the validations before and after. A file may have moved.

    Args:
        trained: Options of the task with which the run was trained.
        used: Those to be used now.
        digests: Digests of the files of the training.
        run: Name of the run, for the message.

    Raises:
        InputError: for another data set, or if the file that validates has other content.
    """
    other = [("name", trained.get("name"), used.get("name"))]
    for part, train in _VALIDATING.items():
        option = train if used.get(part) is None else part
        before, now = trained.get(part) or trained.get(train), used.get(option)
        digest = digests.get(str(before))
        if digest is not None and digest not in file_digests(now).values():
            other.append((option, before, now))
    for option, before, now in other:
        if before != now:
            raise InputError(
                f"--data.{option} {now}: {run} was validated on {before}, which chose its best "
                "checkpoint; leave the option out, or begin anew: --config, with "
                f"--model.init_from {run}"
            )


_VALIDATING = {"valid": "train", "valid_source": "train_source", "valid_target": "train_target"}
"""Options of files that validate, and of those of which a part validates without them."""

_HELD_OUT = {"valid": "train", "test": "train", "valid_source": "train_source"}
"""Options of files without which a part is held out of another file, by that file's option."""


def _refuse_other_tenths(
    trained: Mapping[str, Any], used: Mapping[str, Any], run: object, parts: Sequence[Split]
) -> None:
    """Refuse a file for a part that was held out, if the other one is still held out.

    Which examples these are depends on what else is held out: the same would not be measured.
    """
    train = trained.get("train")
    if train is None or used.get("train") != train:
        return
    for option in ("valid", "test"):
        file = used.get(option)
        if trained.get(option) is not None or file is None:
            continue
        for part in parts:
            if part != option and used.get(part) is None:
                does = "validate" if part == "valid" else "test"
                raise InputError(
                    f"--data.{option} {file}: {run} was trained without it, and what is held out "
                    f"of {train} to {does} depends on it; leave the option out"
                )


def _folds(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of the options called `fold`, however deep; one that is not there has its default, 0.

    Names are as on the command line, without `--data.`.
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "fold":
            found[prefix + name] = value
        elif isinstance(value, Mapping):
            found |= _folds(value, f"{prefix}{name}.")
    return found
