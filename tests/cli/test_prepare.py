"""`clusterformer prepare`: a real command against a server on this machine that fails as told."""

import io
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from full_disk import limited_files
from web import Web, serving

from clusterformer.cli import prepare
from clusterformer.cli.main import main
from clusterformer.cli.prepare import HELP
from clusterformer.data.corpora import read_pair_corpus
from clusterformer.data.prepare import prepare_set
from clusterformer.data.prepare.catalogue import CONVERTERS, published_sets
from clusterformer.data.prepare.prepare_set import _count, _packed_or_not, presence

# the one set of a published size, without a checksum, that is small however many lines it has
PARTS = {"train": 384_348, "dev": 10_000, "test": 10_000}
FILE = "Quora_question_pair_partition.zip"


def quora(**counts: int) -> bytes:
    """An archive like that of the Quora pairs, as many lines as it has or as told."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for part, usual in PARTS.items():
            row = f"1\thow to {part} ?\twhy ?\t%d\n"
            lines = "".join(row % number for number in range(counts.get(part, usual)))
            archive.writestr(f"Quora_question_pair_partition/{part}.tsv", lines)
    return data.getvalue()


@pytest.fixture(scope="module")
def archive() -> bytes:
    return quora()


@pytest.fixture
def web(archive: bytes) -> Iterator[Web]:
    with serving() as web:
        web.files[f"/quora/{FILE}"] = archive
        yield web


def command(web: Web, root: Path) -> list[str]:
    return ["prepare", "quora", f"--mirror={web.url}", f"--root={root}", "--accept-licence"]


def start(web: Web, root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "clusterformer", *command(web, root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a background job of a shell ignores Ctrl-C, and so would the command
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output, errors


def error_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(lines) == 1
    return lines[0]


def files_in(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.suffix != ".lock"
    }


def test_killed_half_way_it_goes_on_there_and_the_set_is_read(
    web: Web, archive: bytes, tmp_path: Path
) -> None:
    web.troubles = ["stall"]
    half = len(archive) // 2
    part = tmp_path / "downloads" / "quora" / f"{FILE}.part"
    process = start(web, tmp_path)
    while not part.exists() or part.stat().st_size < half:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert files_in(tmp_path) <= {f"downloads/quora/{FILE}.{kind}" for kind in ("part", "tag")}
    output, _ = finish(start(web, tmp_path))
    assert web.wanted == [None, f"bytes={half}-"]
    assert output.startswith(f"quora: {tmp_path}/quora (licence: Quora's")
    assert files_in(tmp_path) == {f"quora/{part}.tsv" for part in PARTS}
    pairs = read_pair_corpus("quora", "valid", root=tmp_path)
    assert len(pairs) == PARTS["dev"]
    assert pairs[0][:3] == ("how to dev ?", "why ?", "1")


def test_ctrl_c_says_how_to_go_on(web: Web, tmp_path: Path) -> None:
    web.troubles = ["stall"]
    process = start(web, tmp_path)
    while not (tmp_path / "downloads" / "quora" / f"{FILE}.part").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate()
    assert process.returncode == 130
    assert (output, errors) == ("", "stopped; go on with the same command\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_progress_is_one_line_and_a_message_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, printed = 0, Terminal()
    monkeypatch.setattr(prepare, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sys, "stderr", printed)
    progress = prepare._Progress()
    show = progress.of("a.zip")
    for seconds, done in ((1, 900), (2, 950), (10, 100), (30, 300)):  # anew after 950 bytes
        now = seconds
        show(done, None)
    progress.report("a message")
    lines = printed.getvalue().split("\n")
    assert [line.strip() for line in lines[0].split("\r")[1:]] == [
        "a.zip: 900 bytes",
        "a.zip: 950 bytes",
        "a.zip: 100 bytes",
        "a.zip: 300 bytes, 10 bytes/s",
    ]
    assert lines[1:] == ["a message", ""]


@pytest.mark.slow
def test_of_two_at_once_one_works_and_the_other_waits(web: Web, tmp_path: Path) -> None:
    web.pause = 0.005
    both = [start(web, tmp_path) for _ in range(2)]
    told = [finish(process) for process in both]
    assert len(web.asked) == 1
    assert sorted("waiting" in errors for _, errors in told) == [False, True]
    assert told[0][0] == told[1][0]
    assert files_in(tmp_path) == {f"quora/{part}.tsv" for part in PARTS}
    assert not (tmp_path / "downloads" / "quora").exists()


def test_a_complete_set_is_left_alone(web: Web, tmp_path: Path) -> None:
    for part in PARTS:
        (tmp_path / "quora").mkdir(exist_ok=True)
        (tmp_path / f"quora/{part}.tsv").write_text("mine")
    assert main(command(web, tmp_path)) == 0
    assert not web.asked
    assert (tmp_path / "quora/train.tsv").read_text() == "mine"


def test_other_files_in_its_place_are_not_touched(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quora").mkdir()
    (tmp_path / "quora/dev.tsv").write_text("mine")
    printed = error_of(command(web, tmp_path), capsys)
    assert f"{tmp_path}/quora holds dev.tsv, but not all of quora; move it away" in printed
    assert not web.asked


def test_a_wrong_count_says_what_was_expected(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web.files[f"/quora/{FILE}"] = quora(train=384_347)
    printed = error_of(command(web, tmp_path), capsys)
    assert "quora: train.tsv has 384,347 lines, expected 384,348" in printed
    assert not (tmp_path / "quora").exists()


@pytest.mark.parametrize("content", [b"<html>not found</html>", quora(train=1)[:-100], b""])
def test_what_is_no_archive_says_how_to_fetch_it_again(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    web.files[f"/quora/{FILE}"] = content
    printed = error_of(command(web, tmp_path), capsys)
    assert f"{tmp_path}/downloads/quora: not as expected" in printed
    assert "remove it" in printed


def test_on_a_full_disk_only_the_downloads_stay(
    archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download = tmp_path / "downloads" / "quora" / FILE
    download.parent.mkdir(parents=True)
    download.write_bytes(archive)
    with limited_files(100_000):
        printed = error_of(["prepare", "quora", f"--root={tmp_path}"], capsys)
    assert printed == f"clusterformer: error: {tmp_path}/quora: File too large"
    assert [path.name for path in tmp_path.iterdir()] == ["downloads"]
    assert files_in(tmp_path) == {f"downloads/quora/{FILE}"}


@pytest.mark.slow
def test_fetched_by_hand_it_needs_no_server(
    archive: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = error_of(["prepare", "quora", f"--root={tmp_path}"], capsys)
    place = re.search(r"put it at (\S+) and run this again", printed)
    assert place
    assert "Quora's terms of use" in printed
    Path(place[1]).write_bytes(archive)
    assert main(["prepare", "quora", f"--root={tmp_path}"]) == 0
    assert (tmp_path / "quora" / "train.tsv").exists()


def test_a_licence_must_be_accepted_before_anything_is_fetched(
    web: Web, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["prepare", "wikiqa", f"--mirror={web.url}", f"--root={tmp_path}"]
    printed = error_of(wanted, capsys)
    assert "Microsoft Research Data License Agreement, see https://www.microsoft.com" in printed
    assert "--accept-licence" in printed
    assert not web.asked
    assert "404" in error_of([*wanted, "--accept-licence"], capsys)
    assert [path for path, _ in web.asked] == ["/wikiqa/WikiQACorpus.zip"]


def test_a_file_put_there_by_hand_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "downloads" / "wikiqa" / "WikiQACorpus.zip"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"another")
    printed = error_of(["prepare", "wikiqa", f"--root={tmp_path}"], capsys)
    assert re.search(rf"{place}: sha256:\w+, expected sha256:467c13f9\w+; remove it", printed)


@pytest.mark.slow
def test_kept_downloads_serve_as_a_mirror(web: Web, archive: bytes, tmp_path: Path) -> None:
    assert main([*command(web, tmp_path / "one"), "--keep"]) == 0
    kept = tmp_path / "one" / "downloads"
    assert {path.name for path in (kept / "quora").iterdir()} == {FILE}
    web.files = {f"/{file}": (kept / file).read_bytes() for file in files_in(kept)}
    assert main(command(web, tmp_path / "two")) == 0
    assert files_in(tmp_path / "two") == {f"quora/{part}.tsv" for part in PARTS}


BAD = {
    (): "which data set? give its name, or --list",
    ("mr1",): "no data set 'mr1'; did you mean mr? there is mr, subj",
    ("vektors",): "no data set 'vektors'; did you mean vectors? there is mr, subj",
    ("mr", "--mirror=here"): "--mirror must begin with http:// or https://, got 'here'",
    ("mr", "--timeout=0"): "--timeout must be more than 0 seconds and at most 86,400, got 0",
    ("mr", "--timeout=nan"): "--timeout must be finite, got nan",
    ("mr", "--timeout=inf"): "--timeout must be finite, got inf",
    ("mr", "--timeout=1e300"): "at most 86,400, got 1e+300",
    ("mr", "--timeout=x"): "--timeout",
    ("mr", "--mirror="): "--mirror must begin with http:// or https://, got ''",
    ("mr", "--mirror=file:///etc"): "--mirror must begin with http:// or https://",
    ("mr", "--mirror=http://"): "--mirror must have a host",
    ("mr", "--mirror=http://[::1"): "--mirror is no address: Invalid IPv6 URL",
    ("mr", "--mirror=http://a:99999"): "--mirror is no address: Port out of range",
    ("mr", "--mirror=http://a:b"): "--mirror is no address: Port could not be",
    ("mr", "--mirror=http://a b/"): "--mirror must have no ' '",
    ("mr", "--mirror=http://a/\r\nX: y"): "--mirror must have no",
    ("mr", "--mirror=http://u:p@a"): "--mirror must have no '@'",
    ("mr", "--mirror=http://a/?b"): "--mirror must have no '?'",
    ("mr", "--mirror=http://a..b"): "--mirror is no address",
    ("mr", "--mirror=http://" + "a" * 70): "--mirror is no address",
    ("mr", "--mirror=http://\udcff"): "--mirror",
    ("mr", "--rot=x"): "no option --rot; did you mean --root?",
    ("mr", "--root=FILE"): "FILE",
}


@pytest.mark.parametrize(("options", "printed"), BAD.items())
def test_a_bad_option_is_one_line(
    options: tuple[str, ...],
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FILE").touch()
    assert printed in error_of(["prepare", *options], capsys)


def test_list_shows_every_set_and_what_is_there_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("mr/mr.tsv", "snli/dev.tsv", "multi30k/raw/train.de"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert main(["prepare", "--list", f"--root={tmp_path}"]) == 0
    rows = [re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["name", *published_sets()]
    here = {row[0]: row[3] for row in rows}
    assert {name for name, found in here.items() if found == "yes"} == {"mr"}
    assert {name for name, found in here.items() if found == "part"} == {"snli", "multi30k"}
    assert all(row[-1].startswith("https://") for row in rows[2:] if row[0] != "20news")


def test_a_set_of_glue_is_fetched_into_its_folder(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tentailment\n"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for part in ("train", "dev"):
            archive.writestr(f"RTE/{part}.tsv", table)
    web.files["/rte/RTE.zip"] = data.getvalue()
    usual = published_sets()["rte"]
    small = replace(
        usual,
        remotes=(replace(usual.remotes[0], size=0, checksum=""),),
        contents=dict.fromkeys(usual.contents, 2),
    )
    monkeypatch.setattr(prepare_set, "published_set", {"rte": small}.__getitem__)
    assert main(["prepare", "rte", f"--mirror={web.url}", f"--root={tmp_path}"]) == 0
    assert files_in(tmp_path) == {"glue/rte/train.tsv", "glue/rte/dev.tsv"}
    assert (tmp_path / "glue/rte/dev.tsv").read_text() == table


def test_a_missing_library_is_told_before_anything_is_fetched(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare_set, "find_spec", lambda name: None)
    wanted = ["prepare", "wikipedia", f"--mirror={web.url}", f"--root={tmp_path}"]
    printed = error_of(wanted, capsys)
    assert "wikipedia is read by the library pyarrow: pip install 'clusterformer[hub]'" in printed
    assert not web.asked


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "rte", "qnli", "wikipedia-simple"])
def test_without_a_server_one_line_says_so(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["prepare", name, "--mirror=http://127.0.0.1:9", f"--root={tmp_path}"]
    printed = error_of([*wanted, "--accept-licence"], capsys)
    assert f"/{name}/" in printed
    assert "cannot be reached" in printed


def test_the_table_is_whole() -> None:
    named = HELP.split("sets\n")[1].split("examples")[0].split()
    assert set(published_sets()) <= set(named)
    assert set(published_sets()) == set(CONVERTERS)
    for name, published in published_sets().items():
        files = [remote.file for remote in published.remotes]
        assert all(files), name
        assert len(set(files)) == len(files), name
        for remote in published.remotes:
            assert remote.url.startswith("https://") or published.terms == "by hand", name
            assert re.fullmatch(r"|sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", remote.checksum), name
        assert published.contents, name


@pytest.mark.parametrize("name", list(CONVERTERS))
def test_real_sets_hold_what_the_table_says(name: str, data_root: Path) -> None:
    if presence(published_sets()[name], data_root) != "yes":
        pytest.skip(f"not all of {name} is there")
    for file, expected in published_sets()[name].contents.items():
        path = _packed_or_not(published_sets()[name].folder_in(data_root) / file)
        assert path
        assert not expected or _count(path) == expected
