"""Columns of own tables are found by name or contents, and printed; an error names the option."""

import csv
import json
import random
from pathlib import Path

import pytest

from clusterformer.data.columns import find_columns
from clusterformer.data.labelled_text import read_rows
from clusterformer.errors import InputError

WORDS = [
    "a",
    "the",
    "film",
    "was",
    "good",
    "bad",
    "long",
    "not",
    "very",
    "short",
    "two",
    "hours",
    "of",
    "nothing",
]
TEXT = {"text_column": None, "label_column": None}
PAIR = {"first_column": None, "second_column": None, "label_column": None}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(5, 12)))


MAKE = {
    "text": lambda rng, row: sentence(rng),
    "label": lambda rng, row: rng.choice(["pos", "neg"]),
    "id": lambda rng, row: str(1000 + row),
    "date": lambda rng, row: f"2024-01-{row % 28 + 1:02d}T{row}",
    "empty": lambda rng, row: "",
}


def write(path: Path, columns: dict[str, str], header: bool = True) -> Path:
    """A table of 40 rows: the kind of each column by its name."""
    rng = random.Random(0)
    rows = [[MAKE[kind](rng, row) for kind in columns.values()] for row in range(40)]
    if path.suffix == ".jsonl":
        path.write_text(
            "".join(f"{json.dumps(dict(zip(columns, r, strict=True)))}\n" for r in rows)
        )
    else:
        with path.open("w", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            csv.writer(file, delimiter=delimiter).writerows([[*columns]] * header + rows)
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_one_text_and_one_label_are_found_and_said(tmp_path, caplog, ending):
    path = write(tmp_path / f"a.{ending}", {"id": "id", "stars": "label", "review": "text"})
    with caplog.at_level("INFO"):
        found = find_columns(path, TEXT)
    assert found == {"text_column": "review", "label_column": "stars"}
    header = "" if ending == "jsonl" else "; line 1 is the header"
    said = f"{path}: using column 'review' as text, 'stars' as label{header}"
    assert caplog.messages == [said]


def test_usual_names_come_first_and_named_columns_stay(tmp_path, caplog):
    columns = {"text": "text", "comment": "text", "label": "label", "kind": "label"}
    path = write(tmp_path / "a.csv", columns)
    assert find_columns(path, TEXT) == {"text_column": "text", "label_column": "label"}
    given = {"text_column": "comment", "label_column": None}
    assert find_columns(path, given) == given | {"label_column": "label"}
    assert find_columns(path, {"text_column": 2, "label_column": 4})["text_column"] == 2
    assert not caplog.messages


def test_a_key_that_is_a_number_is_not_found_again(tmp_path):
    path = write(tmp_path / "a.jsonl", {"0": "text", "1": "text", "2": "label"})
    found = find_columns(path, {**PAIR, "first_column": 1})
    assert found == {"first_column": 1, "second_column": "0", "label_column": "2"}


def test_two_texts_are_found_in_their_order(tmp_path):
    path = write(tmp_path / "a.csv", {"q1": "text", "same": "label", "q2": "text", "when": "date"})
    assert list(find_columns(path, PAIR).values()) == ["q1", "q2", "same"]


@pytest.mark.parametrize(
    ("columns", "wanted", "message"),
    [
        (
            {"a": "text", "b": "text", "c": "label"},
            TEXT,
            "for data.text_column; set .* 'a', 'b', 'c'",
        ),
        (
            {"a": "text", "b": "label", "c": "label"},
            TEXT,
            "for data.label_column; set it to one of",
        ),
        ({"a": "text", "b": "id"}, TEXT, "for data.label_column"),
        ({"a": "empty", "b": "label"}, TEXT, "for data.text_column"),
        ({"a": "text", "b": "label"}, PAIR, "for data.first_column and data.second_column"),
    ],
)
def test_what_is_not_decided_names_option_and_columns(tmp_path, columns, wanted, message):
    with pytest.raises(InputError, match=f"a.csv:1: cannot tell which column is {message}"):
        find_columns(write(tmp_path / "a.csv", columns), wanted)


def test_an_empty_file_is_called_so(tmp_path):
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(InputError, match=r"a\.csv: the file is empty"):
        find_columns(tmp_path / "a.csv", TEXT)
    with pytest.raises(InputError, match=r"a\.csv: the file is empty"):
        read_rows(tmp_path / "a.csv", text_column="a", label_column="b")


def test_columns_apart_by_semicolons_are_noticed(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\na good film;pos\n" * 2)
    with pytest.raises(InputError, match="by commas or tabs, not by ';'"):
        find_columns(tmp_path / "a.csv", TEXT)
    with pytest.raises(InputError, match="by commas or tabs, not by ';'"):
        read_rows(tmp_path / "a.csv")


def test_an_empty_line_is_called_so(tmp_path):
    path = write(tmp_path / "a.csv", {"id": "id", "stars": "label", "review": "text"})
    path.write_text(f"{path.read_text()}\n")
    with pytest.raises(InputError, match=r"a\.csv:42: empty line"):
        find_columns(path, TEXT)


def test_a_missing_header_line_is_noticed(tmp_path):
    path = write(tmp_path / "a.csv", {"pos": "label", "a film": "text"})
    with pytest.raises(InputError, match="to the number of a column"):
        find_columns(path, TEXT)


def test_a_text_is_not_taken_for_a_name(tmp_path):
    path = write(tmp_path / "a.csv", {"a good film": "text"})
    with pytest.raises(InputError, match="without a header line, to the number of a column"):
        find_columns(path, {"text_column": None})
    for name, ending in (("Review Text", "csv"), ("what the reader wrote", "jsonl")):
        path = write(tmp_path / f"b.{ending}", {name: "text"})
        assert find_columns(path, {"text_column": None}) == {"text_column": name}


@pytest.mark.parametrize("number", [2, "2"])
def test_a_column_by_number_leaves_no_other_to_be_found_without_a_header_line(tmp_path, number):
    path = write(tmp_path / "a.tsv", {"good film": "text", "maybe": "label"})
    given = {"text_column": None, "label_column": number}
    with pytest.raises(InputError, match=r"cannot tell .* for data\.text_column; set"):
        find_columns(path, given)
    assert find_columns(path, given, header_line=True)["text_column"] == "good film"
    path = write(tmp_path / "b.tsv", {"text": "text", "maybe": "label"})
    assert find_columns(path, given)["text_column"] == "text"
