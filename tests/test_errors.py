"""Reading the user's input: whatever a library raises is one line with the position."""

import json
import zipfile

import numpy as np
import pytest

from clusterformer.errors import InputError, making, reading, require_at_least, require_whole


def read_json_lines(path):
    with reading(path, "JSON lines") as at, path.open("rb") as file:
        for at.line, line in enumerate(file, 1):
            json.loads(line)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": ', "x.jsonl:2: not JSON lines: Expecting value"),
        (b"[" * 100_000, "x.jsonl:1: nested too deeply, allowed is JSON lines"),
        (b"1" * 5000, "x.jsonl:1: not JSON lines: Exceeds the limit"),
        (b"\n\xff\n", "x.jsonl:1: "),
        (None, "x.jsonl: no such file"),
    ],
)
def test_whatever_a_library_raises_names_the_line(tmp_path, content, message):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_json_lines(path)
    assert "\n" not in str(caught.value)


def test_other_formats_need_no_line(tmp_path):
    path = tmp_path / "x.zip"
    path.write_bytes(b"PK")
    message = r"x.zip: not a zip archive: File is not a zip file"
    with pytest.raises(InputError, match=message), reading(path, "a zip archive"):
        zipfile.ZipFile(path)


def test_errors_that_are_said_already_pass(tmp_path):
    with pytest.raises(InputError, match=r"^as it is$"), reading(tmp_path, "text"):
        raise InputError("as it is")


def make_with_a_missing_library(said):
    try:
        raise ModuleNotFoundError(said)
    except ModuleNotFoundError as error:
        raise ValueError("does not validate against any of the types") from error


def test_a_missing_library_is_told_by_its_own_error():
    said = "Requirement 'such>=1' not met"
    with pytest.raises(InputError, match=f"^options: {said}$"), making("options"):
        make_with_a_missing_library(said)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "at least 1, got 0"),
        (float("nan"), "at least"),
        (1e999, "finite"),
        ("8", "a number, got '8'"),
        (True, "a number, got True"),
        ([8], "a number"),
    ],
)
def test_options_below_the_minimum_not_finite_or_no_numbers_are_refused(value, message):
    with pytest.raises(InputError, match=f"rate must be .*{message}"):
        require_at_least(1, rate=value)
    require_at_least(1, rate=1, other=None, counted=np.int64(3), measured=np.float32(1.5))


def test_counts_are_whole_numbers():
    require_whole(1, rate=1, other=None, counted=np.int64(3))
    for value in (4.0, np.float32(4), 4.5):
        with pytest.raises(InputError, match="rate must be a whole number, got 4"):
            require_whole(1, rate=value)
    with pytest.raises(InputError, match="rate must be at least 1, got 0"):
        require_whole(1, rate=0)
