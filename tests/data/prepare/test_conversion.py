"""Converters: tiny archives of every publisher's kind, read back by the tasks' own readers."""

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from packed import lines_in

from clusterformer.data import corpora, spoken_digits
from clusterformer.data.bitext import Bitext
from clusterformer.data.labelled_text import read_pairs, read_rows
from clusterformer.data.prepare.archives import write_lines
from clusterformer.data.prepare.catalogue import CONVERTERS, published_sets
from clusterformer.errors import InputError


def zip_of(path: Path, files: Mapping[str, str]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def tar_of(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def test_the_same_lines_give_the_same_bytes(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.gz", ["ä", "b"])
    first = (tmp_path / "a.gz").read_bytes()
    write_lines(tmp_path / "a.gz", iter(["ä", "b"]))
    assert (tmp_path / "a.gz").read_bytes() == first
    assert gzip.decompress(first) == "ä\nb\n".encode()


def test_a_file_a_class_becomes_rows_with_labels(downloads: Path, folder: Path) -> None:
    (downloads / "rt-polarity.neg").write_bytes("dull caf\u00e9 . \n\nbad\r\n".encode("cp1252"))
    (downloads / "rt-polarity.pos").write_bytes(b"good \x96 very\n")
    CONVERTERS["mr"](downloads, folder)
    rows = read_rows(folder / "mr.tsv", text_column=2, label_column=1)
    assert [(row.label, row.text) for row in rows] == [
        ("0", "dull café . "),
        ("0", "bad"),
        ("1", "good – very"),
    ]


def test_posts_are_ordered_by_group_and_number(downloads: Path, folder: Path) -> None:
    posts = {
        "20news-bydate-train/sci.med/100": b"third",
        "20news-bydate-train/sci.med/99": "From: Bj\u00f6rn\n\nsecond".encode("latin-1"),
        "20news-bydate-train/alt.atheism/7": b"first",
        "20news-bydate-test/sci.med/8": b"only",
    }
    tar_of(downloads / "20news-bydate.tar.gz", posts)
    CONVERTERS["20news"](downloads, folder)
    train = [json.loads(line) for line in lines_in(folder / "20news-bydate-train.jsonl.gz")]
    assert [record["text"] for record in train] == ["first", "From: Björn\n\nsecond", "third"]
    assert train[1] == {"id": "99", "label": "sci.med", "text": "From: Björn\n\nsecond"}
    rows = read_rows(folder / "20news-bydate-test.jsonl.gz")
    assert [(row.label, row.text) for row in rows] == [("sci.med", "only")]


@pytest.mark.parametrize(
    ("name", "archive", "stem", "parts", "labels"),
    [
        ("snli", "snli_1.0.zip", "snli_1.0/snli_1.0_", ["train", "dev", "test"], "012"),
        (
            "mnli",
            "multinli_1.0.zip",
            "multinli_1.0/multinli_1.0_",
            ["train", "dev_matched", "dev_mismatched"],
            ["entailment", "neutral", "contradiction"],
        ),
    ],
)
def test_pairs_without_a_gold_label_go(
    downloads: Path, folder: Path, name: str, archive: str, stem: str, parts: list[str], labels: str
) -> None:
    golds = ["entailment", "-", "neutral", "contradiction"]
    records = [
        {"gold_label": gold, "sentence1": f"A\tman {gold}.", "sentence2": " It\u2028is. "}
        for gold in golds
    ]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    zip_of(downloads / archive, {f"{stem}{part}.jsonl": text for part in parts})
    CONVERTERS[name](downloads, folder)
    for part in parts:
        pairs = read_pairs(
            folder / f"{part.replace('_', '-')}.tsv",
            first_column=1,
            second_column=2,
            label_column=3,
        )
        assert [pair.label for pair in pairs] == list(labels)
        assert (pairs[1].first, pairs[1].second) == ("A man neutral.", "It is.")


def test_tables_keep_their_order_and_quotes(downloads: Path, folder: Path) -> None:
    row = 'A "quoted premise.\tA hypothesis.\tneutral\n'
    files = {f"SciTailV1.1/tsv_format/scitail_1.0_{p}.tsv": row for p in ("train", "dev", "test")}
    zip_of(downloads / "SciTailV1.1.zip", files)
    CONVERTERS["scitail"](downloads, folder)
    assert lines_in(folder / "dev.tsv") == [row.rstrip("\n")]


def test_quora_puts_the_label_last(downloads: Path, folder: Path) -> None:
    row = "1\tWhy ?\tWhy so ?\t273\n"
    files = {f"Quora_question_pair_partition/{p}.tsv": row for p in ("train", "dev", "test")}
    zip_of(downloads / "Quora_question_pair_partition.zip", files)
    CONVERTERS["quora"](downloads, folder)
    assert lines_in(folder / "train.tsv") == ["Why ?\tWhy so ?\t1"]


def test_wikiqa_loses_its_header_and_documents(downloads: Path, folder: Path) -> None:
    text = (
        "QuestionID\tQuestion\tDocumentID\tDocumentTitle\tSentenceID\tSentence\tLabel\r\n"
        "Q1\thow so?\tD1\tGlacier\tD1-0\tThus.\t0\r\n"
    )
    files = {f"WikiQACorpus/WikiQA-{p}.tsv": text for p in ("train", "dev", "test")}
    zip_of(downloads / "WikiQACorpus.zip", files)
    CONVERTERS["wikiqa"](downloads, folder)
    assert lines_in(folder / "test.tsv") == ["Q1\thow so?\tThus.\t0"]


def test_scores_of_sentences_become_tables_with_tabs(downloads: Path, folder: Path) -> None:
    for part in ("train", "dev", "test"):
        (downloads / f"stsb-en-{part}.csv").write_text('"One, two.","He said ""so"".",4.2\nA,B,0\n')
    CONVERTERS["stsb"](downloads, folder)
    assert (folder / "dev.tsv").read_text() == 'One, two.\tHe said "so".\t4.2\nA\tB\t0\n'


_RTE = 'index\tsentence1\tsentence2\tlabel\n0\tNo "W\tBad\tentailment\n'
_QNLI = "index\tquestion\tsentence\tlabel\n0\tWhen?\tAs\tentailment\n"
GLUE = [
    ("cola", "CoLA.zip", "CoLA", 'gj04\t1\t\tOur friends won\'t buy "this".\r\n', 0),
    ("sst2", "SST-2.zip", "SST-2", "sentence\tlabel\nhide new secretions \t0\n", 1),
    ("rte", "RTE.zip", "RTE", _RTE, 1),
    ("qnli", "QNLIv2.zip", "QNLI", _QNLI, 1),
]


@pytest.mark.parametrize(("name", "archive", "top", "text", "head"), GLUE)
def test_a_table_of_glue_is_what_its_task_reads(
    downloads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, archive: str,
    top: str, text: str, head: int,
) -> None:  # fmt: skip
    files = {f"{top}/{part}.tsv": text for part in ("train", "dev")}
    files[f"{top}/test.tsv"] = "index\tsentence\n0\tno label\n"
    files["__MACOSX/._train.tsv"] = "\0"
    zip_of(downloads / archive, files)
    (folder := tmp_path / "glue" / name).mkdir(parents=True)
    CONVERTERS[name](downloads, folder)
    assert {path.name for path in folder.iterdir()} == {"train.tsv", "dev.tsv"}
    assert len(lines_in(folder / "dev.tsv")) == 1 + head
    if name in ("cola", "sst2"):
        monkeypatch.setitem(corpora._NUM_GLUE, name, {"dev": 1})
        [row] = corpora.read_corpus(name, "test", root=tmp_path)
        assert (row.text, row.label) in (
            ('Our friends won\'t buy "this".', "1"),
            ("hide new secretions", "0"),
        )
    else:
        monkeypatch.setitem(corpora._NUM_PAIRS, name, {"dev": 1})
        [pair] = corpora.read_pair_corpus(name, "test", root=tmp_path)
        assert pair[:3] in (('No "W', "Bad", "entailment"), ("When?", "As", "entailment"))


def test_the_list_of_glue_says_which_pairs_of_mrpc_validate(
    downloads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    rows = [f'{i % 2}\t70{i}\t71{i}\tHe said "so {i}.\tSo  {i}.' for i in range(6)]
    for part, lines in (("train", rows[:4]), ("test", rows[4:])):
        text = "".join(f"{line}\r\n" for line in [header, *lines])
        (downloads / f"msr_paraphrase_{part}.txt").write_bytes(text.encode())
    (downloads / "mrpc_dev_ids.tsv").write_text("701\t711\n703\t713\n")
    (folder := tmp_path / "glue" / "mrpc").mkdir(parents=True)
    CONVERTERS["mrpc"](downloads, folder)
    monkeypatch.setitem(corpora._NUM_PAIRS, "mrpc", {"train": 2, "dev": 2, "test": 2})
    found = {
        part: corpora.read_pair_corpus("mrpc", part, root=tmp_path)
        for part in ("train", "valid", "test")
    }
    assert {part: [pair.second for pair in pairs] for part, pairs in found.items()} == {
        "train": ["So 0.", "So 2."],
        "valid": ["So 1.", "So 3."],
        "test": ["So 4.", "So 5."],
    }
    assert found["valid"][0][:3] == ('He said "so 1.', "So 1.", "1")


def test_sick_gets_one_kind_of_line_ends(downloads: Path, folder: Path) -> None:
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for part in ("train", "trial", "test_annotated"):
        text = f"{header}\r\n6\tThere is no boy\tA group\t3.3\tNEUTRAL\r\n"
        (downloads / f"SICK_{part}.txt").write_text(text, newline="")
    CONVERTERS["sick"](downloads, folder)
    assert lines_in(folder / "test.tsv") == [header, "6\tThere is no boy\tA group\t3.3\tNEUTRAL"]


def test_multi30k_is_packed(downloads: Path, folder: Path) -> None:
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            raw = gzip.compress(f"Ein Hund {part} {language}.\n".encode())
            (downloads / f"{part}.{language}.gz").write_bytes(raw)
            tokens = f"ein hund {part} {language} .\n"
            (downloads / f"{part}.lc.norm.tok.{language}").write_text(tokens)
    CONVERTERS["multi30k"](downloads, folder)
    pairs = Bitext(
        folder / "tok/val.lc.norm.tok.de.gz", folder / "tok/val.lc.norm.tok.en.gz", counts=(1,)
    )
    assert next(iter(pairs))[:2] == ("ein hund val de .", "ein hund val en .")
    assert lines_in(folder / "raw/train.en.gz") == ["Ein Hund train en."]


def test_iwslt14_is_made_as_everyone_makes_it(downloads: Path, folder: Path) -> None:
    pytest.importorskip("sacremoses")
    ordinary = [(f"Er hat's Nummer {i}.", f"He's got number {i}.") for i in range(45)]
    dropped = [("Ja.", "Yes, it is so."), ("", "None."), ("a " * 176, "a " * 176)]
    kept = [("<title>Plan B</title>", "<title>Plan B.</title>")]  # 2 and 3 tokens
    sides = []
    for column in (0, 1):
        lines = ["<url>http://x</url>", "<keywords>talks</keywords>", "<talkid>1</talkid>"]
        lines += [pair[column] for pair in kept + dropped + ordinary]
        sides.append("".join(f"{line}\n" for line in lines).encode())
    files = {"de-en/train.tags.de-en.de": sides[0], "de-en/train.tags.de-en.en": sides[1]}
    talks = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    for language in ("de", "en"):
        for talk in talks:
            text = f'<doc>\n<seg id="1"> Das ist’s {talk}. </seg>\n<seg id="2">B.</seg>\n</doc>\n'
            files[f"de-en/IWSLT14.{talk}.de-en.{language}.xml"] = text.encode()
    tar_of(downloads / "de-en.tgz", files)
    CONVERTERS["iwslt14"](downloads, folder)
    parts = {
        part: [pair[:2] for pair in Bitext(folder / f"{part}.de.gz", folder / f"{part}.en.gz")]
        for part in ("train", "valid", "test")
    }
    assert parts["train"][0] == ("plan b", "plan b .")
    assert parts["train"][1] == ("er hat ' s nummer 0 .", "he 's got number 0 .")
    assert [len(pairs) for pairs in parts.values()] == [44, 2, 10]
    assert [pair[1] for pair in parts["valid"]] == [f"he 's got number {i} ." for i in (21, 44)]
    assert parts["test"][:2] == [
        ("das ist ' s ted.dev2010 .", "das ist 's ted.dev2010 ."),
        ("b .", "b ."),
    ]


def test_wmt14_joins_its_corpora_and_every_hundredth_line_validates(
    downloads: Path, folder: Path
) -> None:
    for archive, stem in (
        ("europarl-v7", "training/europarl-v7.de-en"),
        ("commoncrawl", "commoncrawl.de-en"),
        ("nc-v12", "training/news-commentary-v12.de-en"),
    ):
        files = {
            f"{stem}.{language}": "".join(
                f"{archive}\u2028 \u200b{language}\r{i}\n" for i in range(66)
            ).encode()
            for language in ("de", "en")
        }
        files["training/europarl-v7.cs-en.en"] = b"other\n"
        tar_of(downloads / f"training-parallel-{archive}.tgz", files)
    members = ("test-full/newstest2014-deen-src.en.sgm", "test-full/newstest2014-deen-ref.de.sgm")
    segments = '<srcset>\n<seg id="1">One’s  two</seg>\n<hl>\n<seg id="2">%s</seg>\n</hl>\n'
    files = {member: (segments % member).encode() for member in members}
    tar_of(downloads / "test-full.tgz", files)
    CONVERTERS["wmt14"](downloads, folder)
    train = [pair[:2] for pair in Bitext(folder / "train.en.gz", folder / "train.de.gz")]
    assert len(train) == 197
    assert train[0] == ("europarl-v7\u2028  en 0", "europarl-v7\u2028  de 0")
    assert [source.partition("\u2028")[0] for source, _ in train[::66]] == [
        "europarl-v7",
        "commoncrawl",
        "nc-v12",
    ]
    valid = [pair[:2] for pair in Bitext(folder / "valid.en.gz", folder / "valid.de.gz")]
    assert valid == [("commoncrawl\u2028  en 33", "commoncrawl\u2028  de 33")]
    assert lines_in(folder / "newstest2014.en")[1] == members[0]


def test_no_sentence_of_one_tatoeba_part_occurs_in_another(downloads: Path, folder: Path) -> None:
    # English i goes with German i and i // 3: chains of pairs that share a sentence
    pairs = [(f"Go {i}!", f"Geh {g}!") for i in range(3000) for g in {i, i - i % 3}]
    zip_of(downloads / "deu-eng.zip", {"deu.txt": "".join(f"{e}\t{d}\n" for e, d in pairs)})
    CONVERTERS["tatoeba"](downloads, folder)
    parts = [
        {tuple(line.split("\t")) for line in lines_in(folder / name)}
        for name in ("train.tsv.gz", "valid.tsv", "test.tsv")
    ]
    assert set.union(*parts) == {(german, english) for english, german in pairs}
    assert sum(map(len, parts)) == len(pairs)
    for language in (0, 1):
        sentences = [{pair[language] for pair in part} for part in parts]
        assert sum(map(len, sentences)) == len(set.union(*sentences))
    assert [round(len(part) / len(pairs), 1) for part in parts] == [0.9, 0.0, 0.0]
    assert min(map(len, parts)) > 50


def test_wikitext_keeps_every_byte(downloads: Path, folder: Path) -> None:
    text = " \n = Homarus = \n \n A lobster <unk> . \n"
    parts = ("train", "valid", "test")
    zip_of(
        downloads / "wikitext-2-v1.zip", {f"wikitext-2/wiki.{part}.tokens": text for part in parts}
    )
    CONVERTERS["wikitext2"](downloads, folder)
    for part in parts:
        assert gzip.decompress((folder / f"{part}.txt.gz").read_bytes()).decode() == text


def test_images_stay_as_they_are(downloads: Path, folder: Path) -> None:
    names = published_sets()["mnist"].contents
    for name in names:
        (downloads / name).write_bytes(b"\x1f\x8b not even gzip")
    (downloads / "train-images-idx3-ubyte.gz.part").write_bytes(b"of a run that was killed")
    CONVERTERS["mnist"](downloads, folder)
    assert {path.name for path in folder.iterdir()} == set(names)
    assert (folder / "t10k-labels-idx1-ubyte.gz").read_bytes() == b"\x1f\x8b not even gzip"


def test_recordings_of_digits_are_all_there(
    downloads: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spoken_digits, "NUM_RECORDINGS", 2)
    files = {f"fsdd/recordings/{digit}_ann_0.wav": b"RIFF" for digit in range(2)}
    archive = downloads / "recordings.tar.gz"
    tar_of(archive, {**files, "fsdd/README.md": b"about"})
    CONVERTERS["fsdd"](downloads, folder)
    assert (folder / archive.name).read_bytes() == archive.read_bytes()
    tar_of(archive, {**files, "fsdd/recordings/2_ann_0.wav": b"RIFF"})
    with pytest.raises(InputError, match=f"{archive}: 3 recordings, expected 2; remove it"):
        CONVERTERS["fsdd"](downloads, folder)


def test_recordings_of_librispeech_are_listed_with_their_transcripts(
    downloads: Path, folder: Path
) -> None:
    for part in ("train-clean-100", "dev-clean", "test-clean"):
        top = f"LibriSpeech/{part}/19/198"
        files = {
            f"{top}/19-198.trans.txt": b"19-198-0001 GOOD DAY\n19-198-0000 NORTHANGER ABBEY\n",
            f"{top}/19-198-0000.flac": b"fLaC zero",
            f"{top}/19-198-0001.flac": b"fLaC one",
            "LibriSpeech/README.TXT": b"about",
        }
        tar_of(downloads / f"{part}.tar.gz", files)
    CONVERTERS["librispeech"](downloads, folder)
    assert lines_in(folder / "valid.tsv") == [
        "audio\ttext",
        "dev-clean/19-198-0000.flac\tNORTHANGER ABBEY",
        "dev-clean/19-198-0001.flac\tGOOD DAY",
    ]
    assert (folder / "train-clean-100" / "19-198-0001.flac").read_bytes() == b"fLaC one"
