"""Parts of a speech corpus: a named set, or own tables of recordings and transcripts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from clusterformer.data.doubtful_examples import warn_of_known
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.holding_out import TENTHS, deal, select
from clusterformer.data.named_sets import Split, data_folder, missing_file
from clusterformer.data.output_units import OutputUnits, frames_needed
from clusterformer.data.speech_batches import SpeechDataset
from clusterformer.data.spoken_digits import DigitStrings, SpokenDigits
from clusterformer.data.tables import Column
from clusterformer.data.utterances import ListedUtterances, Utterances
from clusterformer.errors import InputError, MissingDataError

_log = logging.getLogger(__name__)

SpeechCorpusName = Literal["fsdd", "librispeech", "wsj"]

_MEASURED = 500  # training recordings from which mean and deviation of the features are learnt


class Part(NamedTuple):
    """Recordings, and the numbers of those that belong to a part of the data."""

    utterances: Utterances
    kept: Sequence[int]

    @property
    def texts(self) -> list[str]:
        """Transcripts of the part."""
        return [self.utterances.texts[index] for index in self.kept]


class SpeechCorpus:
    """Recordings with transcripts, in parts that train, validate and test.

    Args:
        name: Named data set; None for own tables.
        root: Folder of the named data sets.
        files: Own tables; a part without one is a tenth of the training part.
        columns: Columns of paths and of transcripts.
        banks: Features of the recordings.
        strings: Strings of fsdd.
        subsampling: Frames that the encoder reads as one.
    """

    def __init__(
        self,
        name: SpeechCorpusName | None,
        root: str | None,
        files: dict[Split, str | None],
        columns: tuple[Column, Column],
        banks: FilterBanks,
        strings: DigitStrings,
        subsampling: int,
    ) -> None:
        self._name, self._root, self._files, self._columns = name, root, files, columns
        self._banks, self._strings, self._subsampling = banks, strings, subsampling
        self._listed: dict[Path, ListedUtterances] = {}

    def read(self, split: Split) -> Part:
        """Open the recordings of a part.

        Raises:
            InputError: if there are none, or a table is bad.
        """
        if self._name == "fsdd":
            digits = SpokenDigits(self._strings, split, self._root)
            return Part(digits, range(len(digits.texts)))
        held_out: list[Split] = []
        if self._name is not None:
            table = data_folder(self._root) / self._name / f"{split}.tsv"
            if not table.exists():
                if self._name == "wsj":
                    raise MissingDataError(
                        f"wsj: no file {table}; it is not free: make the tables train.tsv, "
                        "valid.tsv and test.tsv of your copy, with columns audio and text"
                    )
                raise missing_file(self._name, table)
        else:
            held_out = [part for part in ("valid", "test") if self._files[part] is None]
            table = Path(str(self._files[split] or self._files["train"])).expanduser()
        utterances = self._open(table)
        everything = range(len(utterances.texts))
        if split != "train" and split not in held_out:
            return Part(utterances, everything)
        firsts = dict.fromkeys(utterances.paths)  # a recording stays in one part
        tenth_of = dict(zip(firsts, deal([""] * len(firsts), TENTHS), strict=True))
        tenths = [tenth_of[path] for path in utterances.paths]
        kept = select(everything, tenths, split, held_out)
        if not kept:
            own = " and ".join(f"data.{part}" for part in held_out)
            raise InputError(f"{table}: too few recordings to hold some out; give {own}")
        return Part(utterances, kept)

    def _open(self, table: Path) -> ListedUtterances:
        if table not in self._listed:
            audio, text = self._columns
            self._listed[table] = ListedUtterances(
                table, self._banks, audio_column=audio, text_column=text
            )
        return self._listed[table]

    def warn_of_known(self, split: Split, fitting: bool) -> None:
        """Warn of recordings of an own table that train too.

        Args:
            split: "valid" or "test".
            fitting: Whether the model is trained now; else the table of training may be gone, and
                only the same table is compared.
        """
        table, trained = self._files[split], self._files["train"]
        if table is not None and (fitting or table == trained):
            paths = self._open(Path(str(trained)).expanduser()).paths
            kept = self.read("train").kept
            measured = self._open(Path(table).expanduser()).paths
            warn_of_known(split, "recordings", measured, (paths[index] for index in kept))

    def encode(self, split: Split, units: OutputUnits) -> SpeechDataset:
        """Make the data set of a part.

        A transcript that is too long for CTC is left out of training; elsewhere its errors count.
        Both are counted in one line, and so are units that training lacks.
        """
        utterances, kept = self.read(split)
        encoded = [units.encode(text) for text in utterances.texts]
        targets, unknown = zip(*encoded, strict=True)
        if some := sum(unknown[index] for index in kept):
            _warn(f"{split}: {some} units do not occur in the training transcripts: always errors")
        fits = [index for index in kept if self._fits(utterances, index, targets[index])]
        if len(fits) < len(kept):
            left = "left out" if split == "train" else "without a loss, but their errors count"
            _warn(
                f"{split}: {len(kept) - len(fits)} of {len(kept)} transcripts are longer than CTC "
                f"can write in their frames, {left}"
            )
        if split == "train":
            kept = fits
        if not kept:
            raise InputError("data.train: all transcripts are too long; lower data.subsampling")
        return SpeechDataset(utterances, self._banks, targets, self._subsampling, kept)

    def _fits(self, utterances: Utterances, index: int, target: Sequence[int]) -> bool:
        frames = self._banks.num_frames(utterances.num_samples[index])
        return frames_needed(target) <= -(-frames // self._subsampling)

    def check(self) -> None:
        """Read some training recordings, and say how many of them are damaged."""
        utterances, _ = self.read("train")
        if isinstance(utterances, ListedUtterances):
            utterances.check(_MEASURED)


def feature_statistics(part: SpeechDataset) -> tuple[Tensor, Tensor]:
    """Mean of each feature over up to 500 recordings, and 1 / its standard deviation, (F,)."""
    step = -(-len(part.lengths) // _MEASURED)
    count, total, squares = 0, torch.zeros(1), torch.zeros(1)
    for index in range(0, len(part.lengths), step):
        features = part.features(index).double()
        count += len(features)
        total, squares = total + features.sum(0), squares + features.square().sum(0)
    mean = total / count
    deviation = (squares / count - mean.square()).clamp(min=1e-6).sqrt()
    return mean.float(), (1 / deviation).float()


def _warn(message: str) -> None:
    rank_zero_only(_log.warning)(message)
