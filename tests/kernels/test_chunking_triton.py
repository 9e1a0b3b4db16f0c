"""Chunking in Triton against plain PyTorch, interpreted on CPU: equal in every index."""

import pytest
import torch
from torch import Tensor

from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.chunking import (
    cluster_chunks,
    equal_blocks,
    single_block,
    window_blocks,
)
from clusterformer.kernels.dispatch import VARIABLE
from clusterformer.kernels.reference import sort

pytest.importorskip("triton")
from clusterformer.kernels import _chunking_triton


def mask_of(length: int, padding: str) -> Tensor | None:
    """Three texts: padded behind, with padding in between, or of nothing but padding."""
    if padding == "none":
        return None
    if padding == "scattered":
        return torch.rand(3, length) < 0.6
    lengths = [length, length // 2, 0] if padding == "all of a text" else [length, length // 3, 1]
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def blocks_by(kernel: str, monkeypatch: pytest.MonkeyPatch, cut, *args, **options) -> Blocks:
    monkeypatch.setenv(VARIABLE, kernel)
    return cut(*args, **options)


def agree(monkeypatch: pytest.MonkeyPatch, cut, *args, **options) -> None:
    plain, fused = (
        blocks_by(kernel, monkeypatch, cut, *args, **options) for kernel in ("reference", "triton")
    )
    for name in Blocks._fields:
        theirs, ours = getattr(plain, name), getattr(fused, name)
        if isinstance(theirs, Tensor):
            assert ours.dtype == theirs.dtype, name
            assert torch.equal(ours, theirs), name
        elif name != "grouped":
            assert ours == theirs, name


LOOKS = [(1, 0), (1, 1), (0, 0), (2, 3)]
PADDINGS = ["none", "behind", "scattered", "all of a text"]
CASES = [
    pytest.param(looks, padding, marks=[] if quick else pytest.mark.slow)
    for looks in LOOKS
    for padding in PADDINGS
    for quick in [looks == (1, 1) or padding == "scattered"]
]


@pytest.mark.parametrize(("looks", "padding"), CASES, ids=str)
def test_equal_blocks(looks, padding, monkeypatch) -> None:
    for length, number, width in [(1, 1, 1), (23, 4, 1), (23, 23, 5), (300, 1, 1)]:
        mask = mask_of(length, padding)
        grouped = sort(torch.randint(7, (3, length)), 7, mask)
        agree(monkeypatch, equal_blocks, grouped, number, mask, *looks, min_width=width)


@pytest.mark.parametrize(("looks", "padding"), CASES, ids=str)
def test_chunks_of_clusters(looks, padding, monkeypatch) -> None:
    for length, clusters, width in [(1, 1, 4), (23, 5, 3), (11, 20, 4), (300, 2, 280)]:
        mask = mask_of(length, padding)
        chosen = (torch.rand(3, length).square() * clusters).long()  # sizes differ, some are 0
        agree(monkeypatch, cluster_chunks, sort(chosen, clusters, mask), width, mask, *looks)


@pytest.mark.parametrize(("looks", "padding"), CASES, ids=str)
def test_windows(looks, padding, monkeypatch) -> None:
    back, ahead = looks
    for length, width in [(1, 4), (5, 4), (18, 4), (300, 260)]:
        options = {"device": torch.device("cpu"), "look_back": back, "look_ahead": ahead}
        mask = mask_of(length, padding)
        agree(monkeypatch, window_blocks, length, 3, width, mask, **options)


@pytest.mark.parametrize("padding", PADDINGS)
def test_what_the_kernels_of_attention_read(padding, monkeypatch) -> None:
    """Each block is held by its own entry and by its repetitions in the circle, or by none."""
    monkeypatch.setenv(VARIABLE, "reference")
    mask = mask_of(23, padding)
    grouped = sort(torch.randint(7, (3, 23)), 7, mask)
    for blocks in (
        equal_blocks(grouped, 4, mask, 1, 2),
        cluster_chunks(grouped, 3, mask),
        single_block(23, 3, mask, device=torch.device("cpu")),
    ):
        members, own_entries = _chunking_triton.packed(blocks)
        assert torch.equal(members.long(), blocks.members.masked_fill(~blocks.filled, -1))
        for text, entries in enumerate(own_entries.tolist()):
            for block, held in enumerate(entries):
                own = blocks.members[text, block + blocks.look_back]
                live = bool(blocks.own_filled[text, block].any())
                found = [entry for entry in held if entry >= 0]
                assert found[:1] == ([block + blocks.look_back] if live else [])
                assert all(torch.equal(blocks.members[text, entry], own) for entry in found)
