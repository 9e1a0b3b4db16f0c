"""Own files of labelled texts: what they hold comes out, what is wrong with them is one line."""

import gzip

import pytest

from clusterformer.data.labelled_text import read_pairs, read_rows
from clusterformer.errors import InputError

NUMBERED = {"text_column": 2, "label_column": 1}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_tsv_has_no_quoting_and_no_escapes(write):
    path = write("a.tsv", 'pos\t "good\\t, he printed\nneg\tbad"\x0cnews\n')
    rows = read_rows(path, **NUMBERED)
    assert [tuple(row) for row in rows] == [
        (' "good\\t, he printed', "pos", f"{path}:1"),
        ('bad"\x0cnews', "neg", f"{path}:2"),
    ]


def test_named_columns_come_from_the_header_line(write):
    path = write("a.tsv", "id\ttext\tlabel\r\n1\tgood one\tpos\r\n")
    assert read_rows(path) == [("good one", "pos", f"{path}:2")]


def test_numbered_columns_can_skip_a_header_line(write):
    path = write("a.tsv", "label\ttext\npos\tgood\n")
    assert read_rows(path, header=True, **NUMBERED) == [("good", "pos", f"{path}:2")]


def test_csv_fields_may_hold_commas_and_line_breaks(write):
    path = write("a.csv", 'text,label\n"good, and\nlong",pos\nbad\u2028news,neg\n')
    assert read_rows(path) == [
        ("good, and\nlong", "pos", f"{path}:2"),
        ("bad\u2028news", "neg", f"{path}:4"),
    ]


def test_csv_documents_may_be_long(write):
    long = "word " * 100_000
    assert read_rows(write("a.csv", f"text,label\n{long},x\n"))[0].text == long


def test_json_lines_take_keys_and_labels_that_are_numbers(write):
    path = write("a.jsonl", '{"body": "good\\none", "y": 1}\n')
    assert read_rows(path, text_column="body", label_column="y") == [
        ("good\none", "1", f"{path}:1")
    ]
    scored = write("b.jsonl", '{"text": "good", "label": 3.8}\n')
    assert read_rows(scored)[0].label == "3.8"
    numbered = write("c.jsonl", '{"0": "good", "1": "pos"}\n')  # a command line gives numbers
    assert read_rows(numbered, text_column=0, label_column=1)[0][:2] == ("good", "pos")


@pytest.mark.parametrize("name", ["a.tsv.gz", "a.b.tsv.gz"])
def test_gzip_and_byte_order_mark_are_read_through(write, name):
    path = write(name, gzip.compress("\ufefftext\tlabel\ngood\tpos\n".encode()))
    assert read_rows(path) == [("good", "pos", f"{path}:2")]


def test_encoding_can_be_chosen(write):
    path = write("a.tsv", "1\tcafé\n".encode("cp1252"))
    assert read_rows(path, encoding="cp1252", **NUMBERED)[0].text == "café"


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.tsv", "1\tgood\n\n0\tbad\n", NUMBERED, "a.tsv:2: empty line"),
        ("a.tsv", "1\tgood\n0\tbad\n\n", NUMBERED, "a.tsv:3: empty line"),
        ("a.tsv", "1\tgood\n0\n", NUMBERED, "a.tsv:2: 1 columns, line 1 has 2"),
        ("a.tsv", "1\tgood\n0\t \n", NUMBERED, "a.tsv:2: empty text"),
        ("a.tsv", "1\tgood\n\tbad\n", NUMBERED, "a.tsv:2: nothing in column 1"),
        ("a.tsv", "1\tgood\n", {"text_column": 3, "label_column": 1}, "no column 3, there are 2"),
        ("a.tsv", "1\tgood\n", {}, "a.tsv:1: no column 'text', the header line has"),
        ("a.csv", "text,label,label\na,1,2\n", {}, "a.csv:1: 2 columns are called 'label'; rename"),
        ("a.tsv", "", NUMBERED, "a.tsv:1: no column 2, there are 0"),
        ("a.tsv", "text\tlabel\n", {}, "a.tsv: no examples"),
        ("a.tsv", b"1\tgood\n0\tcaf\xe9\n", NUMBERED, "a.tsv:2: bytes e9 are not utf-8"),
        ("a.tsv", "1\tgood\n", {"encoding": "utf-9"}, "unknown encoding 'utf-9'"),
        ("a.csv", 'text,label\n"good,1\n', {}, "a.csv:2: not CSV"),
        ("a.csv", "text,label\ngood,1\n\n", {}, "a.csv:3: empty line"),
        ("a.jsonl", '{"text": "good", "label": 1}\n{"text"\n', {}, "a.jsonl:2: not JSON"),
        ("a.jsonl", "[1]\n", {}, "a.jsonl:1: found a JSON list"),
        ("a.jsonl", '{"text": "good"}\n', {}, r"a.jsonl:1: no key 'label', there are \['text'\]"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', {}, "a.jsonl:1: text is 3"),
        ("a.jsonl", '{"text": "a", "label": NaN}\n', {}, "a.jsonl:1: label is nan, allowed is a"),
        ("a.jsonl", '{"text": "a", "label": [1]}\n', {}, "a.jsonl:1: label is .1., allowed is"),
        ("a.jsonl", "[" * 100_000, {}, "a.jsonl:1: nested too deeply"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "b", "label": ' + "1" * 5000,
            {},
            "a.jsonl:2: ",
        ),
        ("a.jsonl", '{"text": "a", "label": ' + "1" * 5000 + "}", {}, "jsonl:1: not JSON.*limit"),
        ("a.jsonl", '{"text": "a\\ud800", "label": 1}', {}, "a.jsonl:1: half of a character"),
        ("a.jsonl", '{"text": "a", "label": "\\udfff"}', {}, "a.jsonl:1: half of a character"),
        ("a.tsv", "1\ta", {"encoding": "rot13"}, "unknown encoding 'rot13'"),
        ("a.tsv", "1\ta", {"encoding": "undefined"}, "a.tsv: not text in undefined"),
        ("a.tsv", "1\ta", {"encoding": "utf\0"}, "a.tsv: not text in"),
        ("a.tsv", "1\t\\ud800", {"encoding": "unicode_escape"}, "a.tsv: half of a character"),
        ("a.xls", "", {}, "unknown ending '.xls', allowed are .tsv"),
        ("a.tsv.gz", "1\tgood\n", NUMBERED, "a.tsv.gz: not text in utf-8"),
        (
            "a.tsv.gz",
            gzip.compress(b"1\tgood\n", mtime=0)[:-9],
            NUMBERED,
            "a.tsv.gz: not text in utf-8",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(write, name, content, options, message):
    path = write(name, content)
    with pytest.raises(InputError, match=message) as error:
        read_rows(path, **options)
    assert "\n" not in str(error.value)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none.tsv: no such file"):
        read_rows(tmp_path / "none.tsv")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_column_serves_once(write, name):
    path = write(name, "u,v\na b,c\n" if name == "a.csv" else '{"u": "a b", "v": "c"}\n')
    with pytest.raises(InputError, match=r":1: column 'u' is given twice; each text and the label"):
        read_rows(path, text_column="u", label_column="u")
    twice = "u" if name == "a.jsonl" else 1
    with pytest.raises(InputError, match=rf"column {twice!r} is given twice"):
        read_pairs(path, first_column="u", second_column=twice, label_column="v")


def test_a_question_may_be_its_own_name(write):
    path = write("a.csv", "u,v,w\na b,c,1\n")
    columns = {"first_column": "u", "second_column": "v", "label_column": "w"}
    assert read_pairs(path, group_column="u", **columns)[0].group == "a b"
