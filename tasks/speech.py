"""Speech recognition by connectionist temporal classification: recordings to text.

B batch   N frames   F features   M frames after subsampling   V units and blank
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import WordErrorRate

from clusterformer.ctc import Transcript, best_path, ctc_loss, cut_at_blanks, joined, prefix_beam
from clusterformer.data.audio import expanded, read_header
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.long_audio import read_windows
from clusterformer.data.named_sets import Split
from clusterformer.data.output_units import OutputUnits, OutputUnitsState, UnitKind, split
from clusterformer.data.speech_batches import SpeechBatch, SpeechDataset, make_batch
from clusterformer.data.speech_corpora import SpeechCorpus, SpeechCorpusName, feature_statistics
from clusterformer.data.spoken_digits import RATE, DigitStrings
from clusterformer.data.tables import Column
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.config import TransformerConfig
from clusterformer.models.spec_augment import SpecAugment
from clusterformer.models.speech import Convolutions, SpeechNetwork
from clusterformer.plots import spectrogram_clusters
from clusterformer.task import Output
from clusterformer.tasks.split_task import STAGE_SPLITS, SplitTask, require_one_source

_log = logging.getLogger(__name__)

_AUGMENT = SpecAugment()


class RecordingBatch(NamedTuple):
    """Recordings of the user, read when they are recognised."""

    paths: list[str]


class SpeechState(TypedDict):
    """State of the task in a checkpoint."""

    units: OutputUnitsState
    longest: int


class SpeechRecognition(SplitTask):
    """Write down what is said in recordings.

    A named set, or own tables (.tsv, .csv, .jsonl) of recordings and transcripts. WAV is read as it
    is, FLAC with the soundfile library. Recordings of another rate are resampled.

    Args:
        name: Named data set: fsdd for strings of spoken digits; librispeech; wsj, whose tables you
            make yourself.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own table of training recordings.
        valid: Own table of validation recordings; without it, a tenth of `train` validates.
        test: Own table of test recordings; without it, another tenth of `train` tests.
        audio_column: Column of the recordings' paths, by name or by number from 1.
        text_column: Column of the transcripts, by name or by number from 1.
        units: Unit of recognition: characters, or the phones or words between spaces.
        features: Log-mel filter banks and their deltas; by default at 16,000 hertz, of fsdd 8,000.
        strings: Form and number of the strings of fsdd.
        subsampling: Frames that the encoder reads as one, by convolutions: 1, 2 or 4.
        convolutions: Whether the convolutions before the encoder are over time, "1d", or over time
            and frequency, "2d": these read a spectrogram as a picture, also without subsampling.
        context_convolutions: Number of convolutions over five such frames before the encoder, each
            with a residual connection: any attention then knows what stands near.
        augment: What SpecAugment hides and warps in training; null for nothing.
        beam: Number of beginnings of a text that are followed in a test and in prediction; 1 is
            greedy. Validation is greedy.
        batch_size: Maximum number of recordings in a batch, over all processes; 16 by default, or
            no limit if `frames_per_batch` is given.
        frames_per_batch: Maximum number of frames in a batch, over all processes, padding counted.
    """

    monitor = "val/error_rate"
    mode = "min"
    state_type = SpeechState
    reads = "recording"
    commands: Mapping[str, str] = {"recognise": "predict --checkpoint {run} --input FILE.wav"}
    usage = "model.predict([RECORDING])"
    sizes = ("longest",)
    kept_options = ("features",)
    smooths_labels = False

    def __init__(
        self,
        name: SpeechCorpusName | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        audio_column: Column = "audio",
        text_column: Column = "text",
        units: UnitKind = "word",
        features: FilterBanks | None = None,
        strings: DigitStrings | None = None,
        subsampling: int = 1,
        convolutions: Convolutions = "1d",
        context_convolutions: int = 0,
        augment: SpecAugment | None = _AUGMENT,
        beam: int = 1,
        batch_size: int | None = None,
        frames_per_batch: int | None = None,
    ) -> None:
        super().__init__()
        files: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
        require_one_source(name, files, "tables")
        require_at_least(0, context_convolutions=context_convolutions)
        require_at_least(1, beam=beam, batch_size=batch_size, frames_per_batch=frames_per_batch)
        if strings is not None and name != "fsdd":
            raise InputError(f"data.strings needs data.name fsdd, got {name or 'own tables'}")
        self._kind: UnitKind = units
        self._banks = features or FilterBanks(rate=RATE if name == "fsdd" else 16_000)
        if name == "fsdd" and self._banks.rate != RATE:
            raise InputError(f"the recordings of fsdd have {RATE} Hz; set features.rate to that")
        self._corpus = SpeechCorpus(
            name,
            root,
            files,
            (audio_column, text_column),
            self._banks,
            strings or DigitStrings(),
            subsampling,
        )
        self._own_test = test is not None
        self._subsampling, self._convolutions = subsampling, convolutions
        self._context_convolutions = context_convolutions
        self._augment, self._beam = augment, beam
        if batch_size is None and frames_per_batch is None:
            batch_size = 16
        self._batch_size, self._frames_per_batch = batch_size, frames_per_batch
        self._units: OutputUnits | None = None
        self._longest = 0
        self._resampled: set[int] = set()  # rates that a warning has named
        self._statistics: tuple[Tensor, Tensor] | None = None
        self._parts: dict[Split, SpeechDataset] = {}

    @property
    def units(self) -> OutputUnits:
        """Units of the transcripts; available after `setup()` or `load_state()`."""
        assert self._units is not None
        return self._units

    def setup(self, stage: str) -> None:
        """Read the parts that the stage needs; learn units and statistics unless restored."""
        if stage == "predict":
            return
        learning = self._units is None
        if learning:
            self._units = OutputUnits.learn(self._kind, self._corpus.read("train").texts)
        own_test: tuple[Split, ...] = ("test",) if stage == "fit" and self._own_test else ()
        # what is wrong with a table is told before a long reading, and before the training
        for part in (*STAGE_SPLITS[stage], *own_test):
            self._part(part)
        if learning:
            trained = self._part("train")
            self._longest = max(trained.lengths)
            self._statistics = feature_statistics(trained)
            self._corpus.check()

    def _part(self, split: Split) -> SpeechDataset:
        if split not in self._parts:
            self._parts[split] = self._corpus.encode(split, self.units)
            if split != "train":
                self._corpus.warn_of_known(split, fitting="train" in self._parts)
        return self._parts[split]

    def loader(self, split: Split) -> DataLoader:
        part = self._part(split)
        return self.bucketed(split, part, part.lengths, self._batch_size, self._frames_per_batch)

    def build(self, config: TransformerConfig) -> SpeechNetwork:
        network = SpeechNetwork(
            config,
            num_features=self._banks.width,
            num_mels=self._banks.num_mels,
            num_units=len(self.units),
            subsampling=self._subsampling,
            convolutions=self._convolutions,
            context_convolutions=self._context_convolutions,
            augment=self._augment,
        )
        if self._statistics is not None:  # else a checkpoint's weights bring them
            network.mean.copy_(self._statistics[0])
            network.scale.copy_(self._statistics[1])
        return network

    def loss(
        self, output: Output, batch: SpeechBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return ctc_loss(output.logits, batch.mask, batch.target)

    def metrics(self) -> MetricCollection:
        """Errors by edit distance over units; of characters also over words."""
        rates: dict[str, Any] = {"error_rate": WordErrorRate()}
        if self._kind == "character":
            rates["word_error_rate"] = WordErrorRate()
        return MetricCollection(rates, compute_groups=False)

    def update(
        self, metrics: MetricCollection, output: Output, batch: SpeechBatch, network: nn.Module
    ) -> None:
        for log_probs, real, text in zip(
            output.logits.float().log_softmax(-1), batch.mask, batch.texts, strict=True
        ):
            if not text:
                continue
            found = self._decode(log_probs[real], self._beam if self.testing else 1)
            units = self.units.decode(found.units)
            metrics["error_rate"].update(_spaced(units), _spaced(split(self._kind, text)))
            if self._kind == "character":
                metrics["word_error_rate"].update(self.units.join(units), text)

    def _decode(self, log_probs: Tensor, beam: int) -> Transcript:
        return best_path(log_probs) if beam == 1 else prefix_beam(log_probs, beam)

    def text_dataloader(self, lines: Iterable[str]) -> Iterable[RecordingBatch]:
        """Make batches of paths of recordings, one each."""
        return (RecordingBatch([line]) for line in lines)

    def check_text(self, line: str) -> None:
        header = read_header(expanded(line))
        if not header.num_samples:
            raise InputError(f"{line}: an empty recording")
        if header.rate not in (self._banks.rate, *self._resampled):
            self._resampled.add(header.rate)
            rates = f"{header.rate} Hz are resampled to {self._banks.rate} Hz"
            rank_zero_only(_log.warning)(f"recordings of {rates}, such as {line}")

    def predictions(self, network: nn.Module, batch: RecordingBatch) -> list[dict[str, Any]]:
        """Text of each recording, and when each of its words or phones was recognised, seconds.

        CTC may recognise a word within a few of its frames: the times are inside the word, but
        shorter.
        """
        records = []
        for path in batch.paths:
            found = self.recognise(network, Path(path))
            units = self.units.decode(found.units)
            records.append({"text": self.units.join(units), "times": self._times(units, found)})
        return records

    def recognise(self, network: nn.Module, path: Path) -> Transcript:
        """Recognise the units of a recording.

        One longer than the longest of training is read in overlapping windows of that length, and
        decoded in parts, so that memory does not grow with it.
        """
        return joined(
            (len(log_probs), self._decode(log_probs, self._beam))
            for log_probs in cut_at_blanks(self.log_probabilities(network, path))
        )

    def log_probabilities(self, network: nn.Module, path: Path) -> Iterator[Tensor]:
        """Compute log-probabilities (M, V) of each window of a recording, on the CPU."""
        device = next(network.parameters()).device
        for window in read_windows(path, self._banks, self._longest, self._subsampling):
            batch = make_batch([window.features], [[]], [""], self._subsampling, self._banks.width)
            log_probs = network(batch.to(device)).logits[0].float().log_softmax(-1)
            yield log_probs[window.first : window.end].cpu()

    def _times(self, units: Sequence[str], found: Transcript) -> list[tuple[float, float]]:
        """Begin and end of what CTC took for each word, or each phone, seconds."""
        step = self._banks.hop * self._subsampling / self._banks.rate
        spans: list[tuple[float, float]] = []
        inside = False  # a word, after its first character
        for unit, (first, end) in zip(units, found.frames, strict=True):
            begin, stop = round(first * step, 3), round(end * step, 3)
            if self._kind != "character":
                spans.append((begin, stop))
            elif unit != " ":
                begin = spans.pop()[0] if inside else begin
                spans.append((begin, stop))
            inside = unit != " "
        return spans

    def describe(self, batch: SpeechBatch, index: int) -> list[str]:
        """Time of each frame that the encoder reads, seconds."""
        step = self._banks.hop * self._subsampling / self._banks.rate
        return [f"{frame * step:.2f}" for frame in range(int(batch.mask[index].sum()))]

    def draw(self, network: nn.Module, folder: Path) -> list[Path]:
        """Draw the shortest validation recording with its words and the cluster of each frame.

        Of a mechanism that clusters in each head, the first head is drawn.
        """
        part = self._part("valid")
        index = part.lengths.index(min(part.lengths))
        device = next(network.parameters()).device
        batch = part[[index]]
        with torch.inference_mode():
            output = network.eval()(batch.to(device))
        found = self._decode(output.logits[0].float().log_softmax(-1).cpu(), 1)
        text = self.units.join(self.units.decode(found.units))
        spans = self._times(self.units.decode(found.units), found)
        strips = {
            f"layer {layer}": grouping.assignment[0].reshape(-1, len(batch.mask[0]))[0].cpu()
            for layer, grouping in enumerate(output.encoded.groupings, 1)
            if grouping is not None
        }
        path = folder / "recording.png"
        spectrogram_clusters(
            batch.features[0, :, : self._banks.num_mels],
            list(strips.values()),
            path,
            seconds=len(batch.features[0]) * self._banks.hop / self._banks.rate,
            words=[(word, *times) for word, times in zip(text.split(), spans, strict=True)],
            labels=list(strips),
            title="Words recognised" + ", clusters of frames" * bool(strips),
        )
        return [path]

    def state(self) -> dict[str, Any]:
        return {"units": self.units.state(), "longest": self._longest}

    def load_state(self, state: dict[str, Any]) -> None:
        require_at_least(1, longest=state["longest"])
        if (kind := state["units"]["kind"]) != self._kind:
            raise InputError(f"data.units must be {kind}, as in training, got {self._kind}")
        self._units, self._longest = OutputUnits.from_state(state["units"]), state["longest"]


def _spaced(units: Sequence[str]) -> str:
    """Write units as words, so that each counts as one; U+2420 is the symbol for a space."""
    return " ".join("\u2420" if unit == " " else unit for unit in units)
