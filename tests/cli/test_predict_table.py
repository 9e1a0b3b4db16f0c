"""Tables in, tables out: `predict` reads a column and passes the others through."""

import csv
import io
import json
import time
from pathlib import Path

import pytest
from toy_command import TOY, error_of

import clusterformer
from clusterformer.cli.main import main
from clusterformer.cli.predict import _arrivals
from clusterformer.cli.predict_table import Table
from clusterformer.data.labelled_text import read_pairs, read_rows
from clusterformer.data.tables import is_table
from clusterformer.errors import InputError
from clusterformer.tasks.pairs import split_pair

NETWORK = ["--model.attention=FullAttention", "--model.d_model=8", "--model.num_heads=2"]
NETWORK += ["--model.num_layers=1", "--trainer.max_steps=1", "--trainer.accelerator=cpu"]
ROWS = [["7", "a good film", "x, y"], ["8", "", 'a "b"'], ["9", "two\nlines here", ""]]
HEADER = ["id", "review", "note"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    lines = [f"{n % 2}\tfilm number {n} is here" for n in range(40)]
    (folder / "a.tsv").write_text("stars\treview\n" + "\n".join(lines) + "\n")
    data = ["--data=Classification", f"--data.train={folder / 'a.tsv'}"]
    assert main(["fit", "--pictures=false", *data, *NETWORK, f"--runs={folder}"]) == 0
    return next(folder.glob("*/1"))


def table(folder: Path, ending: str) -> Path:
    path = folder / f"in.{ending}"
    if ending == "jsonl":
        records = (dict(zip(HEADER, row, strict=True)) for row in ROWS)
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    else:
        rows = [[" ".join(cell.split()) for cell in row] for row in ROWS]
        with path.open("w", newline="") as file:
            if ending == "csv":
                csv.writer(file).writerows([HEADER, *ROWS])
            else:
                file.write("".join("\t".join(row) + "\n" for row in [HEADER, *rows]))
    return path


def predicted(run: Path, path: Path, capsys, *options: str) -> str:
    capsys.readouterr()
    command = ["predict", f"--checkpoint={run}", f"--input={path}", *options]
    assert main([*command, "--device=cpu"]) == 0
    return capsys.readouterr().out


def test_a_recording_is_no_text(run: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "speech.wav"
    path.write_bytes(b"RIFF\xff\x00WAVE")
    error = error_of(["predict", f"--checkpoint={run}", f"--input={path}"], capsys)
    assert "speech.wav:1: byte 0xff is not UTF-8" in error


def test_an_empty_text_has_no_label_in_python_either(run: Path) -> None:
    model = clusterformer.load(run, device="cpu")
    [good] = model.predict(["a good film"])
    nothing = {"label": None, "probability": None}
    assert model.predict(["", "a good film", "\u3000\n"]) == [nothing, pytest.approx(good), nothing]
    assert model.predict([""], probabilities=True) == [{**nothing, "probabilities": None}]


@pytest.mark.parametrize("rows", ["", "7,,\n"])
def test_a_table_without_a_text_has_the_columns_of_predictions(
    run: Path, tmp_path: Path, capsys, rows: str
) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,review,note\n" + rows)
    out = predicted(run, path, capsys, "--text_column=review")
    assert out == "id,review,note,label,probability\n" + rows.replace("\n", ",,\n")


@pytest.mark.parametrize(
    ("rows", "records"),
    [("7,\n8,1 2\n9,\n", [["7", "", "", ""], ["8", "1 2"], ["9", "", "", ""]]), ("", [])],
)
def test_lines_that_the_task_alone_knows_name_the_columns(
    tmp_path: Path, capsys, rows: str, records: list[list[str]]
) -> None:
    assert main([*TOY, f"--runs={tmp_path}", "--trainer.max_steps=1"]) == 0
    (tmp_path / "in.csv").write_text("id,text\n" + rows)
    options = ["--trust=toy_task", "--text_column=text"]
    out = predicted(tmp_path / "toy/1", tmp_path / "in.csv", capsys, *options)
    header, *lines = csv.reader(io.StringIO(out))
    assert header == ["id", "text", *(["label", "probability"] if rows else [])]
    for line, record in zip(lines, records, strict=True):
        assert len(line) == len(header)
        assert line[: len(record)] == record


def test_a_csv_keeps_its_columns(run: Path, tmp_path: Path, capsys) -> None:
    out = predicted(run, table(tmp_path, "csv"), capsys, "--text_column=review")
    header, *rows = csv.reader(io.StringIO(out))
    assert header == [*HEADER, "label", "probability"]
    assert [row[:3] for row in rows] == ROWS
    assert rows[1][3:] == ["", ""]
    assert all(row[3] in "01" and float(row[4]) >= 0.5 for row in (rows[0], rows[2]))


def test_a_data_frame_gives_its_rows(run: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=HEADER)
    model = clusterformer.load(run)
    assert model.predict(frame["review"]) == model.predict([row[1] for row in ROWS])
    assert model.predict(frame[["review"]]) == model.predict(frame["review"])
    for inputs in (frame, frame.to_numpy()):
        with pytest.raises(InputError, match="input 1: 3 columns, allowed is one text"):
            model.predict(inputs)


def test_a_report_is_for_a_test(run: Path, tmp_path: Path, capsys) -> None:
    command = [f"--checkpoint={run}", f"--report={tmp_path / 'report'}"]
    assert "--report is for test" in error_of(["validate", *command], capsys)
    (tmp_path / "report").touch()
    said = error_of(["test", *command], capsys)  # before the test, which may take long
    assert said == f"--report {tmp_path / 'report'}: a file, allowed is a folder to write into"
    (tmp_path / "report").unlink()
    assert main(["test", *command]) == 0
    assert (tmp_path / "report" / "report.json").exists()


def test_texts_are_those_that_training_reads(tmp_path: Path) -> None:
    rows = [["  two  spaces ", "a line\n", "x"], ["\u00a0no break", "", "y"], ["a\tb", " c", "x"]]
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["first", "second", "label"], *rows])
    texts = Table(str(path), {"text_column": "first"}).texts
    assert texts == [row.text for row in read_rows(path, text_column="first")]
    pairs = Table(str(path), {"first_column": None, "second_column": None}).texts
    whole = [pair.texts for pair in read_pairs(path, allow_empty=True)]
    assert split_pair(pairs[0]) == whole[0]
    assert pairs[1] == ""
    assert split_pair(pairs[2]) == ("a b", " c")


@pytest.mark.parametrize("layout", ["csv", "tsv"])
def test_probabilities_are_json_in_a_column(run: Path, tmp_path: Path, capsys, layout: str) -> None:
    options = "--text_column=review", "--probabilities"
    path = table(tmp_path, layout)
    out = io.StringIO(predicted(run, path, capsys, *options))
    rows = list(csv.DictReader(out, dialect="excel-tab" if layout == "tsv" else "excel"))
    for row in (rows[0], rows[2]):
        found = json.loads(row["probabilities"])
        assert set(found) == {"0", "1"}
        assert max(found.values()) == float(row["probability"])


@pytest.mark.parametrize("ending", ["tsv", "jsonl"])
def test_any_table_can_become_any_other(run: Path, tmp_path: Path, capsys, ending: str) -> None:
    path = table(tmp_path, ending)
    own = predicted(
        run, path, capsys, "--text_column=2" if ending == "jsonl" else "--text_column=review"
    )
    as_json = predicted(run, path, capsys, "--text_column=review", "--format=jsonl")
    records = [json.loads(line) for line in as_json.splitlines()]
    assert [list(record) for record in records] == [[*HEADER, "label", "probability"]] * 3
    assert [record["id"] for record in records] == ["7", "8", "9"]
    assert own == as_json if ending == "jsonl" else len(own.splitlines()) == 4


def test_values_of_json_pass_through(run: Path, tmp_path: Path, capsys) -> None:
    given = [{"text": "a film", "n": {"a": [1, None]}}, {"text": "two", "ok": True}, {"n": 0.12345}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in given))
    found = map(json.loads, predicted(run, path, capsys, "--text_column=text").splitlines())
    new = ("label", "probability")
    assert [{k: v for k, v in r.items() if k not in new} for r in found] == given
    for layout in ("csv", "tsv"):
        out = predicted(run, path, capsys, "--text_column=text", f"--format={layout}")
        dialect = "excel-tab" if layout == "tsv" else "excel"
        rows = list(csv.DictReader(io.StringIO(out), dialect=dialect))
        assert [(row["n"], row["ok"]) for row in rows] == [
            ('{"a": [1, null]}', ""), ("", "true"), ("0.12345", "")
        ]  # fmt: skip


def test_spaces_of_a_tsv_pass_through(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tsv").write_text("note\ttext\n two  spaces \ta film\n")
    _, line = predicted(run, tmp_path / "a.tsv", capsys).splitlines()
    assert line.startswith(" two  spaces \ta film\t")


def test_without_a_header_line_columns_have_numbers(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.tsv").write_text("1\tgood film\n2\tbad film\n")
    lines = predicted(run, tmp_path / "a.tsv", capsys, "--text_column=2").splitlines()
    assert [line.split("\t")[:2] for line in lines] == [["1", "good film"], ["2", "bad film"]]


def test_no_column_of_the_output_hides_one_of_the_input(run: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "a.csv").write_text("label,text\n5,a film\n")
    header, row = csv.reader(io.StringIO(predicted(run, tmp_path / "a.csv", capsys)))
    assert header == ["label", "text", "predicted_label", "probability"]
    assert row[:2] == ["5", "a film"]


@pytest.mark.parametrize(
    ("name", "content", "options", "line"),
    [
        ("a.csv", "x,y\n1,2\n", (), "a.csv:1: cannot tell which column is for --text_column"),
        ("a.csv", "x,y\n1,2\n", ("--text_column=z",), "a.csv:1: no column 'z', there are 'x', 'y'"),
        ("a.csv", "x,y\n1\n", ("--text_column=x",), "a.csv:2: 1 columns, line 1 has 2"),
        ("a.csv", "x;y\n1;a, b\n", ("--text_column=x",), "has 1; separate columns by commas"),
        ("a.csv", "", ("--text_column=1",), "a.csv: empty, allowed is a table with texts"),
        ("a.jsonl", "[" * 10_000, (), "a.jsonl:1: nested too deeply"),
        ("a.csv", "x,x\n1,2\n", ("--text_column=x",), "a.csv:1: 2 columns are called 'x'; rename"),
        ("a.csv", "text,n,n\n1,2,3\n", ("--format=jsonl",), "a.csv:1: 2 columns are called 'n'"),
        ("a.txt", "x", ("--text_column=x",), "unknown ending '.txt'"),
        ("a.csv", "x\n1\n", ("--first_column=x",), "--first_column is not for Classification"),
        ("a.csv", "x\n1\n", ("--format=xml",), "--format is tsv or csv or jsonl, got 'xml'"),
    ],
)
def test_what_is_wrong_is_one_line(
    run: Path,
    tmp_path: Path,
    capsys,
    name: str,
    content: str,
    options: tuple[str, ...],
    line: str,
) -> None:
    (tmp_path / name).write_text(content)
    command = ["predict", f"--checkpoint={run}", f"--input={tmp_path / name}", *options]
    assert line in error_of(command, capsys)


def test_that_a_text_is_cut_is_said_once(tmp_path: Path, capsys, caplog) -> None:
    lines = [f"{n % 2}\tfilm number {n} is here" for n in range(40)]
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n")
    fit = ["fit", "--pictures=false", "--data=Classification", f"--data.train={tmp_path / 'a.tsv'}"]
    assert main([*fit, "--data.max_length=8", *NETWORK, f"--runs={tmp_path}"]) == 0
    run, path = next(tmp_path.glob("*/1")), tmp_path / "in.txt"
    for text, told in (("a film", 0), ("a long film is here " * 3, 1)):
        path.write_text(f"{text}\n" * 100)  # two batches
        caplog.clear()
        assert len(predicted(run, path, capsys).splitlines()) == 100
        cut = "a text is longer than max_length 8 tokens"
        assert sum(cut in record.message for record in caplog.records) == told


def test_a_long_line_takes_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "long"
    seconds = []
    for megabytes in (10, 80):
        path.write_bytes(b"a" * (megabytes << 20) + b"\nend")
        with path.open("rb") as file:
            begun = time.perf_counter()
            (long,), (end,) = _arrivals(file.fileno(), str(path))
            seconds.append(time.perf_counter() - begun)
        assert len(long) == megabytes << 20
        assert end == b"end"
    assert seconds[1] < 40 * max(seconds[0], 0.02)  # 64 times and minutes where it is quadratic


def test_a_table_with_an_ending_in_capitals_is_not_read_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "REVIEWS.CSV"
    path.write_text("id,review\n1,a good film\n")
    assert is_table(str(path))
    with pytest.raises(InputError, match=r"unknown ending '\.CSV', allowed are \.tsv, \.csv"):
        Table(str(path), {"text_column": "review"})
