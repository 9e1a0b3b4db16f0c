"""CTC against all paths of tiny recordings: loss, decoding, alignment."""

import itertools
import math
from collections import defaultdict

import pytest
import torch

from clusterformer.ctc import align, best_path, ctc_loss, cut_at_blanks, joined, prefix_beam
from clusterformer.losses import IGNORE


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(unit for unit, _ in itertools.groupby(path) if unit)


def all_paths(log_probs: torch.Tensor) -> dict[tuple[int, ...], list[tuple[float, tuple]]]:
    """Log-probability of every path, by the units that it writes."""
    frames, size = log_probs.shape
    found = defaultdict(list)
    for path in itertools.product(range(size), repeat=frames):
        score = sum(float(log_probs[frame, unit]) for frame, unit in enumerate(path))
        found[collapse(path)].append((score, path))
    return found


def total(paths: list[tuple[float, tuple]]) -> float:
    return math.log(sum(math.exp(score) for score, _ in paths))


def draw(frames: int, size: int) -> torch.Tensor:
    return (2 * torch.randn(frames, size)).log_softmax(-1)


@pytest.mark.parametrize("target", [[1], [1, 2], [2, 2], [1, 2, 1]])
def test_loss_is_that_of_all_paths(target: list[int]) -> None:
    log_probs = draw(5, 3)
    padded = torch.zeros(1, 7, 3)
    padded[0, :5] = log_probs
    mask = torch.arange(7)[None] < 5
    loss, count = ctc_loss(padded, mask, torch.tensor([[*target, IGNORE]]))
    assert count == len(target)
    assert loss.item() == pytest.approx(-total(all_paths(log_probs)[tuple(target)]), rel=1e-4)


def test_transcripts_too_long_for_their_frames_are_left_out() -> None:
    logits = torch.randn(3, 3, 4, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool)
    target = torch.tensor([[1, 1, 1], [1, 2, 3], [IGNORE] * 3])  # needs 5 frames; 3; nothing
    loss, count = ctc_loss(logits, mask, target)
    alone, _ = ctc_loss(logits[1:2], mask[1:2], target[1:2])
    assert count == 3
    assert loss.item() == pytest.approx(alone.item())
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_padding_behind_a_transcript_needs_no_frames() -> None:
    logits, mask = torch.randn(1, 2, 4), torch.ones(1, 2, dtype=torch.bool)
    padded, count = ctc_loss(logits, mask, torch.tensor([[1, 2, IGNORE, IGNORE, IGNORE]]))
    alone, _ = ctc_loss(logits, mask, torch.tensor([[1, 2]]))
    assert count == 2
    assert padded.item() == pytest.approx(alone.item())


def test_greedy_takes_the_best_path() -> None:
    for _ in range(20):
        log_probs = draw(5, 3)
        score, path = max(itertools.chain(*all_paths(log_probs).values()))
        found = best_path(log_probs)
        assert tuple(found.units) == collapse(path)
        assert found.score == pytest.approx(score, abs=1e-4)
        for unit, (first, end) in zip(found.units, found.frames, strict=True):
            assert path[first:end] == (unit,) * (end - first)


def test_a_wide_beam_finds_the_most_probable_text() -> None:
    better = 0
    for _ in range(30):
        log_probs = draw(5, 3)
        by_text = all_paths(log_probs)
        expected = max(by_text, key=lambda text: total(by_text[text]))
        found = prefix_beam(log_probs, beam=100)
        assert tuple(found.units) == expected
        assert found.score == pytest.approx(total(by_text[expected]), abs=1e-4)
        better += expected != tuple(best_path(log_probs).units)
    assert better  # else best_path would do


def test_a_narrow_beam_gives_a_text_of_its_own_probability_at_most() -> None:
    log_probs = draw(6, 4)
    found = prefix_beam(log_probs, beam=2)
    assert found.score <= total(all_paths(log_probs)[tuple(found.units)]) + 1e-4


def test_a_beam_follows_as_many_units_beside_the_blank() -> None:
    log_probs = torch.tensor(
        [[0.01, 0.98, 0.01], [0.5, 0.3, 0.2], [0.01, 0.01, 0.98]]
    ).log()  # the last unit may come in the second frame, where blank and first are likelier
    found = prefix_beam(log_probs, beam=2)
    paths = {path for _, path in all_paths(log_probs)[1, 2]}
    assert (found.units, (1, 2, 2) in paths) == ([1, 2], True)
    assert found.score == pytest.approx(total(all_paths(log_probs)[1, 2]), abs=1e-4)


@pytest.mark.parametrize("units", [[1], [2, 1], [1, 1], [2, 2, 1]])
def test_alignment_is_the_best_path_of_the_units(units: list[int]) -> None:
    for _ in range(10):
        log_probs = draw(5, 3)
        _, path = max(all_paths(log_probs)[tuple(units)])
        frames = align(log_probs, units)
        runs = [(unit, len(list(group))) for unit, group in itertools.groupby(path)]
        expected, at = [], 0
        for unit, size in runs:
            if unit:
                expected.append((at, at + size))
            at += size
        assert frames == expected


def test_nothing_said_is_nothing_written() -> None:
    silence = torch.tensor([[0.9, 0.05, 0.05]] * 4).log()
    assert best_path(silence)[:2] == ([], [])
    assert prefix_beam(silence, 5)[:2] == ([], [])


@pytest.mark.parametrize("cuts", [[], [3], [0, 1, 2], [4, 4, 9], range(12)])
def test_stretches_of_a_recording_give_what_the_whole_gives(cuts) -> None:
    for _ in range(20):
        log_probs = (9 * torch.randn(12, 3)).log_softmax(-1)
        parts = log_probs.tensor_split(tuple(cuts))
        found = joined((len(part), best_path(part)) for part in parts)
        whole = best_path(log_probs)
        assert found[:2] == whole[:2]
        assert found.score == pytest.approx(whole.score, rel=1e-5)


def test_a_beam_does_not_write_twice_what_is_cut_in_two() -> None:
    units = torch.tensor([0, 1, 1, 1, 0, 2, 0, 2, 2])
    log_probs = torch.nn.functional.one_hot(units, 3).float().mul(9).log_softmax(-1)
    for cut in range(10):
        parts = log_probs.split([cut, 9 - cut])
        found = joined((len(part), prefix_beam(part, 4)) for part in parts)
        assert found[:2] == ([1, 2, 2], [(1, 4), (5, 6), (7, 9)])


def test_a_beam_over_parts_cut_at_blanks_finds_what_it_finds_in_the_whole() -> None:
    spoken = torch.tensor([0, 1, 1, 0, 0, 2, 0, 1, 2, 0] * 6)
    logits = 8.0 * torch.nn.functional.one_hot(spoken, 3) + torch.randn(60, 3)
    logits[[2, 35, 48], 0] = 8.2  # no frame is sure of the unit, all together are
    log_probs = logits.log_softmax(-1)
    whole = prefix_beam(log_probs, 4)
    for size in (5, 8, 13, 60, 70):
        parts = list(cut_at_blanks(log_probs.split(size)))
        torch.testing.assert_close(torch.cat(parts), log_probs)
        assert max(map(len, parts)) <= 2 * size
        assert joined((len(part), prefix_beam(part, 4)) for part in parts)[:2] == whole[:2]
