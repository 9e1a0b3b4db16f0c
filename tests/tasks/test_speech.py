"""Speech recognition learns tones, names its errors, and survives bad recordings."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_audio import tones, write_table, write_wav

import clusterformer
from clusterformer.attention import FullAttention
from clusterformer.cli.main import main
from clusterformer.data.audio import read_audio
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.long_audio import read_windows
from clusterformer.data.speech_batches import compute
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.spec_augment import SpecAugment
from clusterformer.tasks import speech
from clusterformer.tasks.speech import SpeechRecognition
from clusterformer.training.evaluation import Evaluation

SMALL = FilterBanks(rate=8000, num_mels=10, deltas=1)


def fit(folder, *options: str) -> int:
    return main(
        [
            "fit", "--data=SpeechRecognition", f"--data.train={folder / 'train.tsv'}",
            "--data.features.rate=8000", "--data.features.num_mels=10", "--data.features.deltas=1",
            "--data.augment.bands=0", "--data.subsampling=2", "--model.attention=FullAttention",
            "--model.d_model=32", "--model.num_layers=1", "--model.dropout=0", "--model.lr=0.01",
            "--model.warmup=5", "--trainer.accelerator=cpu", f"--runs={folder / 'runs'}", *options,
        ]
    )  # fmt: skip


@pytest.mark.parametrize("epochs", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_tones_are_learnt_and_recordings_told(tmp_path, capsys, caplog, epochs: int) -> None:
    learnt = epochs > 1
    write_table(tmp_path, 60 if learnt else 12)
    write_table(tmp_path, 8, "other.tsv", seed=1)
    others = [f"--data.{part}={tmp_path / 'other.tsv'}" for part in ("valid", "test")]
    assert fit(tmp_path, *others, f"--trainer.max_epochs={epochs}", "--data.batch_size=12") == 0
    lines = capsys.readouterr().out.splitlines()
    (found,) = [line for line in lines if "test/error_rate" in line]
    assert not learnt or float(found.split()[-1]) < 0.1
    (run,) = (tmp_path / "runs").glob("*/1")
    assert f"recognise: clusterformer predict --checkpoint {run} --input FILE.wav" in lines

    words = "low high high mid"
    path = write_wav(tmp_path / "new.wav", tones(words))
    predict = ["predict", "--checkpoint", str(run), "--input", str(path), "--format", "jsonl"]
    assert main([*predict, "--data.beam=4"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert len(record["times"]) == len(record["text"].split())
    assert not learnt or record["text"] == words
    for at, (first, end) in enumerate(record["times"] if learnt else []):
        assert -0.03 < first - (0.06 + 0.18 * at) < 0.15
        assert first < end <= 0.18 * (at + 1) + 0.06

    model = clusterformer.load(run, device="cpu")
    twice = write_wav(tmp_path / "fast.wav", tones(words, 16000), 16000)
    texts = [each["text"] for each in model.predict([path, twice, str(twice)])]
    assert texts[1] == texts[2]
    assert not learnt or set(texts) == {words}
    said = [record.getMessage() for record in caplog.records]
    assert sum("recordings of 16000 Hz are resampled to 8000 Hz" in line for line in said) == 1
    long = " ".join(["low high mid mid high low"] * 4)
    found = model.predict([write_wav(tmp_path / "long.wav", tones(long))])[0]["text"]
    assert not learnt or found == long
    with pytest.raises(InputError, match=r"input 1: .*none\.wav: no such recording"):
        model.predict([tmp_path / "none.wav"])


def test_a_recording_is_in_one_part_and_told_otherwise(tmp_path, caplog) -> None:
    def made(**tables: str) -> SpeechRecognition:
        caplog.clear()
        task = SpeechRecognition(features=SMALL, augment=None, **tables)
        task.setup("fit")
        task.setup("test")
        return task

    def paths(task: SpeechRecognition, split: str) -> set[Path]:
        utterances, kept = task._corpus.read(split)
        return {utterances.paths[index] for index in kept}

    table = write_table(tmp_path, 20)
    header, *lines = table.read_text().splitlines(keepends=True)
    (tmp_path / "test.tsv").write_text(header + "".join(lines[:5]))
    made(train=str(table), test=str(tmp_path / "test.tsv"))  # two of them validate
    told = [message for message in caplog.messages if "training part" in message]
    assert [message[:44] for message in told] == ["test: 3 of 5 recordings are in the training "]

    table.write_text(header + "".join(3 * lines))
    task = made(train=str(table))
    parts = [paths(task, split) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 20


def test_a_run_keeps_its_features_and_exchange_searches_as_test_does(tmp_path, capsys) -> None:
    write_table(tmp_path, 12)
    options = "--data.units=character", "--data.beam=4", "--trainer.max_steps=1"
    assert fit(tmp_path, *options, "--pictures=false") == 0
    (run,) = (tmp_path / "runs").glob("*/1")
    rates = []
    for beam in ("4", "1"):
        capsys.readouterr()
        assert main(["test", "--checkpoint", str(run), f"--data.beam={beam}"]) == 0
        lines = capsys.readouterr().out.splitlines()
        rates += [line.split()[-1] for line in lines if line.startswith("test/error_rate")]
    assert rates[0] != rates[1]
    assert main(["test", "--checkpoint", str(run), "--data.features.rate=16000"]) == 2
    assert "--data.features: " in capsys.readouterr().err
    exchange = ["bench", "exchange", "--runs", str(run), "--with", "full", "--stage", "test"]
    assert main(exchange) == 0
    assert f"with own: error_rate {rates[0]}, keys seen 1\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_resumed_training_ends_as_one_that_never_stopped(tmp_path) -> None:
    write_table(tmp_path, 30)
    options = "--data.augment.bands=2", "--model.schedule=constant", "--data.batch_size=6"
    for stop in (3, 6):
        assert fit(tmp_path, *options, f"--trainer.max_steps={stop}") == 0
    stopped, whole = sorted((tmp_path / "runs").glob("*/*"))
    assert main(["fit", f"--resume={stopped}", "--trainer.max_steps=6"]) == 0
    ends = [torch.load(run / "checkpoints/last.ckpt")["state_dict"] for run in (stopped, whole)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_predict_keeps_what_comes_before_a_bad_recording(tmp_path, capsys) -> None:
    soundfile = pytest.importorskip("soundfile")
    table = write_table(tmp_path, 12)
    assert fit(tmp_path, "--trainer.max_steps=1", "--pictures=false") == 0
    (run,) = (tmp_path / "runs").glob("*/1")
    (tmp_path / "deep").mkdir()
    for name in ("a.wav", "b.wav"):
        write_wav(tmp_path / "deep" / name, tones("low high"))
    soundfile.write(tmp_path / "deep/nan.wav", tones("low") * np.nan, 8000, subtype="FLOAT")

    def predict(path, *options: str) -> tuple[int, list[str], str]:
        capsys.readouterr()
        code = main(["predict", f"--checkpoint={run}", f"--input={path}", *options])
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    paths = tmp_path / "paths.txt"
    paths.write_text("".join(f"{tmp_path}/deep/{name}.wav\n" for name in ("a", "b", "nan", "a")))
    code, lines, error = predict(paths)
    assert (code, len(lines)) == (2, 2)
    assert "paths.txt:3: " in error
    assert "nan.wav: samples that are no finite numbers" in error

    table = tmp_path / "deep/calls.csv"
    rows = "id,audio,text\n", '"1\n2",a.wav,low\n', "3,b.wav,low\n", "4,none.wav,low\n"
    table.write_text("".join(rows[:3]))
    code, lines, error = predict(table, "--format=jsonl")
    assert (code, error) == (0, "")
    first, second = map(json.loads, lines)
    assert list(second) == ["id", "audio", "text", "predicted_text", "times"]
    assert (first["id"], second["id"], second["audio"]) == ("1\n2", "3", "b.wav")
    table.write_text("".join(rows))
    code, lines, error = predict(table)
    assert (code, len(lines)) == (2, 4)
    assert "calls.csv:5: " in error
    assert "none.wav: no such recording" in error


def made(folder, **options) -> SpeechRecognition:
    task = SpeechRecognition(train=str(folder / "train.tsv"), features=SMALL, **options)
    task.setup("fit")
    return task


def test_bad_recordings_are_counted_and_nothing_is_lost(tmp_path, caplog) -> None:
    table = write_table(tmp_path, 20)
    loud = np.clip(5 * tones("low mid"), -1, 1)
    write_wav(tmp_path / "loud.wav", loud)
    write_wav(tmp_path / "empty.wav", np.zeros(0))
    (tmp_path / "nothing.wav").write_bytes(b"")
    write_wav(tmp_path / "other.wav", tones("low", 16000), 16000)
    short = write_wav(tmp_path / "short.wav", tones("low mid high"))
    short.write_bytes(short.read_bytes()[:-1000])
    with table.open("a") as file:
        file.write("loud.wav\tlow mid\nempty.wav\tlow\nnothing.wav\tlow\n")
        file.write("other.wav\tlow\nshort.wav\tlow mid high\n")
        file.write(f"other.wav\t{'low ' * 90}\n")
    task = made(tmp_path, valid=str(table), test=str(table))
    said = [record.getMessage() for record in caplog.records]
    for expected in (
        "recordings left out, empty or too short: 2, ",
        "recordings of 16000 Hz are resampled to 8000 Hz",
        "train: 1 of 24 transcripts are longer than CTC can write in their frames, left out",
        "valid: 1 of 24 transcripts are longer than CTC can write in their frames, without",
        "of 24 training recordings some are clipped: 1, ",
        "of 24 training recordings some are shorter than their headers say: 1, ",
    ):
        assert sum(expected in line for line in said) == 1, (expected, said)
    trained = [text for batch in task.train_dataloader() for text in batch.texts]
    assert len(trained) == 23
    assert len([text for batch in task.val_dataloader() for text in batch.texts]) == 24


def test_samples_that_are_no_numbers_are_found_with_their_line(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "nan.wav", tones("low") * np.nan, 8000, subtype="FLOAT")
    table = write_table(tmp_path, 12)
    with table.open("a") as file:
        file.write("nan.wav\tlow\n")
    with pytest.raises(InputError, match=r"train.tsv:14: .*nan.wav: samples that are no finite"):
        made(tmp_path, valid=str(table), test=str(table))


@pytest.mark.parametrize("longest", [20, 1000])
def test_a_recording_cut_short_is_read_and_told(tmp_path, caplog, longest: int) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low mid high low"))
    assert list(read_windows(path, SMALL, longest, 2))
    assert not caplog.records
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert list(read_windows(path, SMALL, longest, 2))
    assert "a.wav: damaged, only 0." in caplog.messages.pop()
    caplog.clear()
    soundfile = pytest.importorskip("soundfile")
    flac = tmp_path / "a.flac"
    soundfile.write(flac, np.random.default_rng(0).uniform(-0.5, 0.5, 40_000), 8000)
    flac.write_bytes(flac.read_bytes()[: flac.stat().st_size // 2])
    assert list(read_windows(flac, SMALL, longest, 2))
    (record,) = caplog.records
    assert "a.flac: damaged, only 2." in record.getMessage()
    assert "of 4.98 seconds can be read" in record.getMessage()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("audio\ttext\nnone.wav\tlow\n", r"train.tsv:2: .*none.wav: no such recording"),
        ("audio\ttext\na.wav\t\n", r"train.tsv:2: empty text"),
        ("audio\ttext\n\tlow\n", r"train.tsv:2: nothing in column 'audio'"),
        ("audio\ttext\na.wav\tlow\n", r"train.tsv: no recording in it is as long as 25 ms"),
        ("path\ttext\na.wav\tlow\n", r"no column 'audio'"),
        ("audio\ttext\nb.wav\tlow\n", r"train.tsv: too few .*; give data.valid and data.test$"),
        ("audio\ttext\na.wav\tl\udcf6w\n", r"train.tsv:2: .* are not utf-8; convert the file$"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, capsys, content: str, message: str) -> None:
    write_wav(tmp_path / "a.wav", np.zeros(10))
    write_wav(tmp_path / "b.wav", np.zeros(4000))
    (tmp_path / "train.tsv").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=message):
        made(tmp_path)


def test_a_bad_table_is_told_before_recordings_are_read(tmp_path, monkeypatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("long work before the check")

    write_table(tmp_path, 12)
    monkeypatch.setattr(speech, "feature_statistics", never)
    for part in ("valid", "test"):
        with pytest.raises(InputError, match=r"none\.tsv: no such file"):
            made(tmp_path, **{part: "none.tsv"})


def test_parts_of_own_recordings_share_none(tmp_path) -> None:
    write_table(tmp_path, 30)
    task = made(tmp_path)
    task.setup("test")
    loaders = task.train_dataloader(), task.val_dataloader(), task.test_dataloader()
    parts = [
        [each for batch in loader for each in batch.features.sum((1, 2))] for loader in loaders
    ]
    assert [len(part) for part in parts] == [24, 3, 3]
    assert task.units.symbols == ["high", "low", "mid"]


def test_characters_have_words_and_spaces(tmp_path) -> None:
    write_table(tmp_path, 12)
    task = made(tmp_path, units="character")
    assert task.units.symbols == [" ", "d", "g", "h", "i", "l", "m", "o", "w"]
    assert {*task.metrics()} == {"error_rate", "word_error_rate"}
    numbers, unknown = task.units.encode("how  big")
    assert (task.units.join(task.units.decode(numbers)), unknown) == ("how ig", 1)


def test_a_run_is_measured_in_the_units_that_it_recognises(tmp_path) -> None:
    write_table(tmp_path, 12)
    state = made(tmp_path, units="character").state()
    with pytest.raises(InputError, match=r"data.units must be character.*, got word"):
        SpeechRecognition(train="any.tsv", features=SMALL).load_state(state)


def test_errors_are_edits_over_units(tmp_path) -> None:
    write_table(tmp_path, 12)
    task = made(tmp_path)
    metrics = task.metrics()
    batch = next(iter(task.val_dataloader()))
    logits = torch.zeros(*batch.mask.shape, 4)
    logits[..., 2] = 9.0  # one "low" for each recording
    task.update(metrics, clusterformer.task.Output(logits, None), batch, None)  # type: ignore[arg-type]
    words = [text.split() for text in batch.texts]
    wrong = sum(len(text) - ("low" in text) for text in words)
    assert metrics.compute()["error_rate"].item() == pytest.approx(wrong / sum(map(len, words)))


@torch.no_grad()
def test_errors_count_where_no_transcript_has_a_loss(tmp_path) -> None:
    write_table(tmp_path, 12)
    long, unknown = tmp_path / "long.tsv", tmp_path / "unknown.tsv"
    long.write_text(f"audio\ttext\ntrain.tsv-0.wav\t{'low ' * 200}\n")
    unknown.write_text("audio\ttext\ntrain.tsv-0.wav\tzebra\n")
    config = TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1)
    for table in (long, unknown):
        task = made(tmp_path, valid=str(table))
        network = task.build(config).eval()
        network.head.bias[0] = 99.0  # nothing is recognised
        evaluation = Evaluation(task, torch.device("cpu"))
        (batch,) = task.val_dataloader()
        evaluation.add(network, network(batch), batch)
        measures = evaluation.compute()
        assert measures["loss"].isnan()
        assert measures["error_rate"] == 1


def test_augmentation_may_be_changed_or_switched_off(tmp_path) -> None:
    write_table(tmp_path, 12)
    config = TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1)
    assert made(tmp_path).build(config).augment == SpecAugment()
    assert made(tmp_path, augment=SpecAugment(bands=0)).build(config).augment.stretches == 2
    assert made(tmp_path, augment=None).build(config).augment is None


@pytest.mark.parametrize("beam", [1, 3])
def test_a_long_recording_is_decoded_in_windows(tmp_path, monkeypatch, beam: int) -> None:
    write_table(tmp_path, 12)
    task = made(tmp_path, beam=beam)
    longest = max(task.train_dataloader().dataset.lengths)  # type: ignore[attr-defined]
    config = TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1)
    network = task.build(config).eval()
    decoded = []
    name = "best_path" if beam == 1 else "prefix_beam"
    decode = getattr(speech, name)
    monkeypatch.setattr(
        speech, name, lambda rows, *more: decoded.append(len(rows)) or decode(rows, *more)
    )
    path = write_wav(tmp_path / "long.wav", tones(" ".join(["low", "mid", "high"] * 12)))
    with torch.inference_mode():
        found = task.recognise(network, path)
    assert max(decoded) <= 2 * longest < sum(decoded)
    assert all(0 <= first < end <= sum(decoded) for first, end in found.frames)


@pytest.mark.parametrize("longest", [20, 33, 1000])
def test_windows_cover_a_recording_once(tmp_path, longest: int) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low mid high low"))
    whole = compute(SMALL, read_audio(path, 8000))
    for subsampling in (1, 2, 4):
        parts = list(read_windows(path, SMALL, longest, subsampling))
        assert sum(part.end - part.first for part in parts) == -(-len(whole) // subsampling)
        assert all(len(part.features) <= longest for part in parts)
        if subsampling == 1:  # energies hang on their own frame alone
            counted = torch.cat([part.features[part.first : part.end, :10] for part in parts])
            torch.testing.assert_close(counted, whole[:, :10])


@pytest.mark.parametrize("rate", [11_025, 16_000, 44_100])
def test_windows_of_a_resampled_recording_lose_no_frame(tmp_path, rate: int) -> None:
    path = write_wav(tmp_path / "a.wav", tones("low mid high low mid"), rate=rate)
    whole = compute(SMALL, read_audio(path, 8000))
    for longest in (20, 33):
        parts = list(read_windows(path, SMALL, longest, 1))
        assert sum(len(part.features[part.first : part.end]) for part in parts) == len(whole)


def test_a_set_that_is_not_free_says_what_to_make(tmp_path) -> None:
    with pytest.raises(InputError, match=r"wsj/train.tsv; it is not free: make the tables"):
        SpeechRecognition("wsj", root=str(tmp_path)).setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give either a named set"),
        ({"name": "fsdd", "test": "x.tsv"}, "give either a named set .* and test 'x.tsv'"),
        ({"name": "fsdd", "features": SMALL, "beam": 0}, "beam must be at least 1, got 0"),
        ({"name": "fsdd", "features": FilterBanks()}, "the recordings of fsdd have 8000 Hz"),
    ],
)
def test_bad_options_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SpeechRecognition(**options)
