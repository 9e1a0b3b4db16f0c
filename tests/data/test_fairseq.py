"""fairseq's binarised data, written here by its published format, is read as it is."""

import struct
from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import Trainer

from clusterformer.attention import FullAttention
from clusterformer.data.fairseq import FairseqFolder
from clusterformer.data.tokenizers import BOS_EOS, UNK, SubwordTokenizer
from clusterformer.errors import InputError
from clusterformer.module import ClusterFormer
from clusterformer.tasks.translation import Translation

CODES = {np.uint8: 1, np.int16: 3, np.int32: 4, np.int64: 5, np.uint16: 8}
EOS = 2
DICTIONARIES = {"de": ["ein", "hun@@", "d", "a"], "en": ["a", "do@@", "g"]}
TEXTS = {"de": [[4, 5, 6], [7, 3]], "en": [[4, 5, 6], [4]]}  # numbers begin at 4; 3 is unknown


def write(
    folder: Path,
    part: str = "train",
    dtype: type = np.uint16,
    names: tuple[str, str] = ("de", "en"),
) -> Path:
    folder.mkdir(exist_ok=True)
    for name, (language, words) in zip(names, DICTIONARIES.items(), strict=True):
        lines = "".join(f"{word} {9 - rank}\n" for rank, word in enumerate(words))
        (folder / f"dict.{name}.txt").write_text(lines, encoding="utf-8")
        texts = [[*text, EOS] for text in TEXTS[language]]
        stem = folder / f"{part}.{'-'.join(names)}.{name}"
        tokens = np.concatenate(texts).astype(dtype)
        Path(f"{stem}.bin").write_bytes(tokens.tobytes())
        sizes = np.array([len(text) for text in texts], dtype=np.int32)
        pointers = np.concatenate([[0], sizes[:-1].cumsum() * tokens.itemsize]).astype(np.int64)
        with Path(f"{stem}.idx").open("wb") as index:
            index.write(b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", CODES[dtype]))
            index.write(struct.pack("<Q", len(sizes)))
            index.write(sizes.tobytes(order="C") + pointers.tobytes(order="C"))
    return folder


@pytest.mark.parametrize("dtype", CODES)
def test_texts_are_read_as_our_ids(tmp_path, dtype):
    folder = FairseqFolder(write(tmp_path, dtype=dtype), (None, None))
    assert folder.languages == ("de", "en")
    assert folder.words == ["ein", "hun@@", "d", "a", "do@@", "g"]
    sources, targets = folder.part("train")
    assert [sources[i].tolist() for i in range(len(sources))] == [
        [BOS_EOS + 1, BOS_EOS + 2, BOS_EOS + 3, BOS_EOS],
        [BOS_EOS + 4, UNK, BOS_EOS],
    ]
    tokenizer = SubwordTokenizer(folder.words)
    assert tokenizer.decode(sources[0]) == "ein hund"
    assert [tokenizer.decode(targets[i]) for i in range(2)] == ["a dog", "a"]
    assert targets.lengths.tolist() == [4, 2]


def test_either_direction_is_read_from_the_same_files(tmp_path):
    folder = FairseqFolder(write(tmp_path), ("en", None))
    assert folder.languages == ("en", "de")
    assert [side.lengths.tolist() for side in folder.part("train")] == [[4, 2], [4, 3]]
    assert folder.part("test") is None


@pytest.mark.parametrize(
    "names", [("zh-TW", "en"), ("en", "zh-Hant-TW"), ("zh-TW", "zh-CN"), ("zh-TW", "zh")], ids=str
)
def test_languages_may_have_hyphens(names: tuple[str, str], tmp_path: Path) -> None:
    write(tmp_path, names=names)
    for given, found in (((None, None), names), ((names[1], names[0]), names[::-1])):
        folder = FairseqFolder(tmp_path, given)
        assert folder.languages == found
        part = folder.part("train")
        assert part is not None
        assert sorted(side.lengths.tolist() for side in part) == [[4, 2], [4, 3]]


def test_subwords_have_the_ids_of_the_data(tmp_path):
    folder = FairseqFolder(write(tmp_path), (None, None))
    tokenizer = SubwordTokenizer(folder.words)
    sources, _ = folder.part("train")
    assert [*tokenizer.encode("ein hun@@ d"), BOS_EOS] == sources[0].tolist()
    assert tokenizer.encode("<edge>") == [UNK]


def test_faults_are_reported(tmp_path):
    with pytest.raises(InputError, match=r"no files train\.\*-\*"):
        FairseqFolder(tmp_path, (None, None))
    write(tmp_path)
    with pytest.raises(InputError, match=r"train\.fr-\*.*languages there: de-en"):
        FairseqFolder(tmp_path, ("fr", None))
    index, tokens = tmp_path / "train.de-en.de.idx", tmp_path / "train.de-en.de.bin"
    whole = index.read_bytes()
    for damaged, message in (
        (whole[:-3], "does not fit"),
        (b"TNTIDX" + whole[6:], "mmap format"),
        (whole[:9] + b"\x02" + whole[10:], "mmap format.*version 2"),
        (whole[:5], "mmap format"),
        (b"", "mmap format"),
    ):
        index.write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            FairseqFolder(tmp_path, (None, None)).part("train")
    index.write_bytes(whole)
    tokens.write_bytes(tokens.read_bytes()[:4])
    with pytest.raises(InputError, match=r"text 1 of 2 has 4 tokens .* 2 tokens; binarise"):
        FairseqFolder(tmp_path, (None, None)).part("train")
    for content in (b"", b"abc"):
        tokens.write_bytes(content)
        with pytest.raises(InputError, match=r"de\.bin: not tokens of u2"):
            FairseqFolder(tmp_path, (None, None)).part("train")
    (tmp_path / "dict.de.txt").write_bytes(b"\xff 1\n")
    with pytest.raises(InputError, match=r"dict\.de\.txt: bytes ff"):
        FairseqFolder(tmp_path, (None, None))
    (tmp_path / "dict.de.txt").write_text("ein\n")
    with pytest.raises(InputError, match=r"dict\.de\.txt:1: 'ein', allowed is a word and"):
        FairseqFolder(tmp_path, (None, None))


SIZES, POINTERS = 26, 26 + 2 * 4  # offsets in the index of two texts


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (SIZES, struct.pack("<i", -4), "text 1 of 2 has -4 tokens"),
        (SIZES, struct.pack("<i", 0), "text 1 of 2 has 0 tokens"),
        (SIZES, struct.pack("<i", 2**31 - 1), "text 1 of 2 has 2,147,483,647 tokens"),
        (POINTERS, struct.pack("<q", -2), "from byte -2 of"),
        (POINTERS, struct.pack("<q", 1), "from byte 1 of"),
        (POINTERS, struct.pack("<q", 2**62), "text 1 of 2"),
        (POINTERS + 8, struct.pack("<q", 14), "text 2 of 2 has 3 tokens from byte 14 of"),
    ],
)
def test_every_text_is_checked_against_the_bounds_of_the_file(tmp_path, offset, value, message):
    index = write(tmp_path) / "train.de-en.de.idx"
    content = bytearray(index.read_bytes())
    content[offset : offset + len(value)] = value
    index.write_bytes(content)
    with pytest.raises(InputError, match=message):
        FairseqFolder(tmp_path, (None, None)).part("train")


@pytest.mark.parametrize(("dtype", "token"), [(np.int32, -1), (np.int32, 8), (np.uint16, 65_535)])
def test_every_token_is_checked_against_the_dictionary(tmp_path, dtype, token):
    path = write(tmp_path, dtype=dtype) / "train.de-en.de.bin"
    tokens = np.fromfile(path, dtype)
    tokens[3] = token
    path.write_bytes(tokens.tobytes())
    with pytest.raises(InputError, match=f"token {token:,}, allowed are 0 to 7"):
        FairseqFolder(tmp_path, (None, None)).part("train")


@pytest.mark.parametrize("file", ["train.de-en.de.idx", "train.de-en.en.bin", "dict.en.txt"])
def test_no_changed_byte_is_a_traceback(tmp_path, file):
    """Each byte in turn becomes another: all texts can be read, or the error is an InputError."""
    path = write(tmp_path, dtype=np.int32) / file
    whole = path.read_bytes()
    refused = 0
    for offset in range(len(whole)):
        for change in (1, 128):
            content = bytearray(whole)
            content[offset] ^= change
            path.write_bytes(content)
            try:
                sides = FairseqFolder(tmp_path, (None, None)).part("train")
                assert all(len(side[i]) >= 1 for side in sides for i in range(len(side)))
            except InputError:
                refused += 1
    assert refused >= len(whole) // 2


def test_it_trains_and_keeps_to_its_dictionaries(tmp_path):
    write(tmp_path / "bin")
    write(tmp_path / "bin", "valid")
    task = Translation(data_bin=str(tmp_path / "bin"), batch_size=2)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(ClusterFormer(FullAttention, d_model=16, num_layers=1), task)
    assert {task.monitor, "val/tokenised_bleu", "val/loss"} <= set(trainer.callback_metrics)
    assert not {"val/sacrebleu", "val/chrf"} & set(
        trainer.callback_metrics
    )  # these want plain text
    other = Translation(data_bin=str(tmp_path / "bin"))
    other.load_state({"tokenizer": SubwordTokenizer(["other"]).state()})
    with pytest.raises(InputError, match="not those of the checkpoint"):
        other.setup("fit")


def test_unknown_words_of_references_match_nothing(tmp_path):
    write(tmp_path, "train")
    write(tmp_path, "valid")
    task = Translation(data_bin=str(tmp_path), source_lang="en")
    task.setup("validate")
    [batch] = task.val_dataloader()
    found = {
        task.tokenizer.decode(row[row >= 0].tolist()): reference.tokenised
        for row, reference in zip(batch.target, batch.references, strict=True)
    }
    assert found["ein hund"] == "ein hund"
    assert not set(found["a <unk>"].removeprefix("a ")) & set("<unk>")


def test_limits_count_subwords(tmp_path, caplog):
    write(tmp_path, "train")
    write(tmp_path, "valid")
    task = Translation(data_bin=str(tmp_path), max_length=2, limit_unit="subwords")
    task.setup("fit")
    assert [row.target.tolist() for row in task.train_dataloader()] == [[[BOS_EOS + 4, BOS_EOS]]]
    assert len(task._pairs["valid"].lengths) == 1
    assert caplog.messages == [
        f"{tmp_path}: {split} pairs dropped: 1 with more than max_length 2 subwords"
        for split in ("train", "valid")
    ]
    for options, message in (
        ({"unfit": "error"}, "train pair 1: more than max_length 2 subwords"),
        ({"max_length": 1, "max_ratio": 1}, "no train pair is within the limits"),
    ):
        limits = {"max_length": 2, "limit_unit": "subwords", **options}
        with pytest.raises(InputError, match=message):
            Translation(data_bin=str(tmp_path), **limits).setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moses": True, "vocab_size": 500}, "leave out moses, vocab_size"),
        ({"lowercase": True}, "leave out lowercase"),
        ({"max_ratio": 1.5}, "set data.limit_unit to subwords"),
        ({"max_length": 100}, "set data.limit_unit to subwords"),
        ({"unfit": "error"}, "set data.limit_unit to subwords"),
    ],
)
def test_options_that_change_nothing_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        Translation(data_bin=str(write(tmp_path)), **options)


def test_pieces_of_sentencepiece_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "dict.en.txt").write_text("\u2581a 3\n\u2581do 2\ng 1\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"dict\.en\.txt: pieces of sentencepiece"):
        Translation(data_bin=str(tmp_path)).setup("fit")
