"""Batches of recordings as features, with the numbers of their units.

B batch   N frames   F features   M frames after subsampling   U units
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from clusterformer.data.audio import Samples
from clusterformer.data.filter_banks import FilterBanks
from clusterformer.data.utterances import Utterances
from clusterformer.task import IGNORE


class SpeechBatch(NamedTuple):
    """A batch of recordings.

    Attributes:
        features: (B, N, F), not normalised; 0 behind the end of a recording.
        frames: (B,), number of frames of each.
        mask: (B, M), True at what the encoder reads of a recording.
        target: (B, U) numbers of the units, IGNORE behind the last.
        texts: Transcript of each recording; empty where there is none, and in a dummy row.
    """

    features: Tensor
    frames: Tensor
    mask: Tensor
    target: Tensor
    texts: list[str]

    def to(self, device: torch.device) -> SpeechBatch:
        """Move the tensors."""
        features, frames, mask, target = (x.to(device) for x in self[:4])
        return SpeechBatch(features, frames, mask, target, self.texts)


def subsampled(frames: Tensor, subsampling: int) -> Tensor:
    """Number of frames that convolutions with a stride of 2 leave."""
    return (frames + subsampling - 1) // subsampling


def make_batch(
    features: Sequence[Tensor],
    targets: Sequence[Sequence[int]],
    texts: Sequence[str],
    subsampling: int,
    width: int,
) -> SpeechBatch:
    """Pad features (N, F) and targets of recordings; none of them make a dummy row."""
    if not features:
        features, targets, texts = [torch.zeros(0, width)], [[]], [""]
    frames = torch.tensor([len(each) for each in features])
    padded = pad_sequence([*features], batch_first=True)
    if not padded.shape[1]:
        padded = padded.new_zeros(len(features), subsampling, width)
    length = int(subsampled(torch.tensor(padded.shape[1]), subsampling))
    mask = torch.arange(length) < subsampled(frames, subsampling)[:, None]
    rows = [torch.tensor(target, dtype=torch.long) for target in targets]
    target = pad_sequence(rows, batch_first=True, padding_value=IGNORE)
    return SpeechBatch(padded, frames, mask, target, list(texts))


class SpeechDataset(Dataset[SpeechBatch]):
    """Features of recordings, computed when asked for; a list of indices gives a batch.

    Args:
        utterances: Recordings and transcripts.
        banks: Features to compute.
        targets: Numbers of the units of each transcript.
        subsampling: Frames that the encoder reads as one.
        kept: Numbers of the utterances of the set.

    Attributes:
        lengths: Number of frames of each.
    """

    def __init__(
        self,
        utterances: Utterances,
        banks: FilterBanks,
        targets: Sequence[Sequence[int]],
        subsampling: int,
        kept: Sequence[int],
    ) -> None:
        self._utterances, self._banks, self._targets = utterances, banks, targets
        self._subsampling, self._kept = subsampling, kept
        self.lengths = [banks.num_frames(utterances.num_samples[each]) for each in self._kept]

    def __getitem__(self, indices: list[int]) -> SpeechBatch:
        chosen = [self._kept[index] for index in indices]
        return make_batch(
            [self.features(index) for index in indices],
            [self._targets[each] for each in chosen],
            [self._utterances.texts[each] for each in chosen],
            self._subsampling,
            self._banks.width,
        )

    def features(self, index: int) -> Tensor:
        """Features (N, F) of one recording."""
        return compute(self._banks, self._utterances.samples(self._kept[index]))


def compute(banks: FilterBanks, samples: Samples) -> Tensor:
    """Compute features (N, F), or one frame of silence for a recording without a whole window."""
    features = banks(torch.from_numpy(samples))
    return features if len(features) else banks(torch.zeros(banks.window))
