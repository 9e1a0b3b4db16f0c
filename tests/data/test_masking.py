"""Masked rows: the 80/10/10 rule, special tokens left alone, the same row in every process."""

from itertools import chain

import numpy as np
import pytest
import torch

from clusterformer.data.batches import DistributedBatchSampler
from clusterformer.data.framed_tokenizers import RowTokenizer
from clusterformer.data.masking import MaskedBatch, MaskedRows, NumberedWindowPlan, row_width
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.data.tokenizers import BOS
from clusterformer.task import IGNORE

TOKENIZER = RowTokenizer(ByteTokenizer())
STREAM = np.random.default_rng(0).integers(BOS + 1, 258, 4000).astype(np.uint16)
STREAM[::500] = BOS


def rows(context: int = 64, seed: tuple[int, ...] = (0, 0), **options) -> MaskedRows:
    return MaskedRows(STREAM, TOKENIZER, context, seed=seed, **options)


def restored(batch: MaskedBatch) -> torch.Tensor:
    """Put the hidden tokens back."""
    tokens = batch.tokens.clone()
    for row, asked, target in zip(tokens, batch.asked, batch.target, strict=True):
        row[asked[target != IGNORE]] = target[target != IGNORE]
    return tokens


def test_a_row_is_the_text_behind_its_masks() -> None:
    batch = rows()[[100, 2000]]
    assert batch.tokens.shape == (2, 64)
    for row, first in zip(restored(batch), (100, 2000), strict=True):
        assert row[0] == TOKENIZER.start
        assert row[-1] == TOKENIZER.separator
        assert row[1:-1].tolist() == STREAM[first : first + 62].tolist()


def test_shares_are_80_10_10_of_15_percent() -> None:
    batch = rows(400)[list(range(300))]
    hidden = batch.target != IGNORE
    shown = batch.tokens.gather(1, batch.asked)[hidden]
    target = batch.target[hidden]
    assert hidden.sum() / batch.tokens.numel() == pytest.approx(0.15, abs=0.002)
    assert (shown == TOKENIZER.blank).float().mean() == pytest.approx(0.8, abs=0.01)
    assert (shown == target).float().mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.01)
    assert target.min() > BOS  # neither the start of a document nor a special token is hidden
    assert (batch.tokens == TOKENIZER.blank).sum() == (shown == TOKENIZER.blank).sum()


def test_the_share_is_of_ordinary_tokens() -> None:
    batch = rows(12, share=0.5)[[100]]
    assert (batch.target != IGNORE).sum() == 5  # of 10, and two special ones


def test_masks_move_from_epoch_to_epoch_and_with_the_seed() -> None:
    first, second = (rows()[[100 + epoch * len(STREAM)]] for epoch in (0, 1))
    assert torch.equal(restored(first), restored(second))
    assert not torch.equal(first.asked, second.asked)
    assert not torch.equal(first.asked, rows(seed=(1, 0))[[100]].asked)
    plan = NumberedWindowPlan(len(STREAM), 62, batch_size=8)
    numbers = [set(chain(*plan.batches(epoch))) for epoch in (0, 1)]
    for epoch in (0, 1):
        assert {number // len(STREAM) for number in numbers[epoch]} == {epoch}


@pytest.mark.parametrize("pairs", [False, True])
def test_processes_share_the_rows_of_one(pairs: bool) -> None:
    data = rows(next_sentence=pairs)
    plan = NumberedWindowPlan(len(STREAM), row_width(len(STREAM), 64, pairs), batch_size=6)
    for epoch in (0, 3):
        whole = {i: data[[i]] for batch in plan.batches(epoch) for i in batch}
        for rank in range(3):
            for numbers in DistributedBatchSampler(plan, rank=rank, world_size=3, epoch=epoch):
                batch = data[numbers]
                for row, number in enumerate(numbers):
                    hidden = batch.target[row] != IGNORE
                    alone = whole.pop(number)
                    assert torch.equal(batch.tokens[row], alone.tokens[0])
                    assert torch.equal(batch.asked[row][hidden], alone.asked[0])
        assert not whole


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("left", [1, 20, 61])
def test_what_the_last_row_in_turn_reads_again_hides_nothing(left: int, pairs: bool) -> None:
    width = row_width(len(STREAM), 64, pairs)
    stream = STREAM[1 : 1 + 3 * width + left]
    data = MaskedRows(
        stream, TOKENIZER, 64, seed=(0, 1), share=0.9, next_sentence=pairs, in_turn=True
    )
    last = data[[3]]
    assert restored(last)[0, 1] == stream[3 * width]
    assert last.asked.shape == (1, max(1, round(0.9 * left)))
    assert last.asked.max() <= left + pairs


def test_half_of_the_second_segments_follow() -> None:
    batch = rows(next_sentence=True)[list(range(0, 4000, 10))]
    assert batch.follows.float().mean() == pytest.approx(0.5, abs=0.1)
    for number, row, second, follows in zip(
        range(0, 4000, 10), restored(batch), batch.second, batch.follows, strict=True
    ):
        cut = int(second.int().argmax())
        first, rest = row[1 : cut - 1], row[cut:-1]
        assert row[cut - 1] == row[-1] == TOKENIZER.separator
        assert second[cut:].all()
        text = STREAM[np.arange(number, number + 61) % 4000].tolist()
        assert first.tolist() == text[: cut - 2]
        assert (rest.tolist() == text[cut - 2 :]) == bool(follows)


def test_a_process_without_a_share_gets_a_row_that_counts_nothing() -> None:
    batch = rows()[[]]
    assert not batch.mask.any()
    assert (batch.target == IGNORE).all()
    assert (batch.follows == IGNORE).all()


def test_a_text_without_ordinary_tokens_hides_none() -> None:
    only_starts = np.full(40, BOS, dtype=np.uint16)
    batch = MaskedRows(only_starts, TOKENIZER, 16, seed=(0,))[[0, 3]]
    assert (batch.target == IGNORE).all()


def test_the_tokenizer_keeps_a_text_and_comes_back_from_its_state() -> None:
    again = RowTokenizer.from_state(TOKENIZER.state())
    assert again.decode(again.pair.around(again.encode("a b"), again.encode("ü"))) == "a b ü"
    assert again.ids_to_tokens([again.blank]) == ["<mask>"]
    assert again.vocab_size == 261
