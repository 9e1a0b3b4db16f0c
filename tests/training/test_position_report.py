"""Loss by position: each target counts once, where it stands; long contexts have measures."""

import csv
import math
from pathlib import Path

import pytest
import torch

from clusterformer.data.streams import unpadded_batch
from clusterformer.models.transformer import Output, StackOutput
from clusterformer.task import IGNORE
from clusterformer.training.position_report import PositionReport


def reported(length: int, shares: int) -> PositionReport:
    """A model that needs 1 bit before position 4 and 3 bits from there on, of 8 tokens."""
    report = PositionReport(length)
    target = torch.zeros(6, length, dtype=torch.long)
    target[3:, : length // 2] = IGNORE  # as windows with a stride have
    logits = torch.zeros(6, length, 8)
    logits[:, :4, 2:] = -torch.inf
    for rows in range(shares):
        part = slice(rows, None, shares)
        batch = unpadded_batch(target[part], target[part])
        report.update(Output(logits[part], StackOutput(logits, [])), batch)
    return report


@pytest.mark.parametrize("shares", [1, 3])
def test_bits_stand_where_the_tokens_are(tmp_path: Path, shares: int) -> None:
    found = reported(100, shares).compute()
    assert found.count == 3 * 100 + 3 * 50
    assert found.tokens[:50].tolist() == [3] * 50
    assert found.bits(0, 4) == pytest.approx(1)
    assert found.bits(4, 100) == pytest.approx(3)
    assert found.bits(0, 8) == pytest.approx(2)
    assert found.measures() == {}
    assert [row[0] for row in found.summary()] == ["tokens before it", "0 to 64", "64 to 100"]
    path, picture = found.write(tmp_path / "test")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["first"]) for row in rows] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert int(rows[-1]["last"]) == 99
    assert [float(row["bits_per_token"]) for row in rows] == [1] * 3 + [3] * 5
    assert sum(int(row["tokens"]) for row in rows) == found.count


def test_a_long_context_has_measures_beyond_1024() -> None:
    measures = reported(3000, 1).compute().measures()
    parts = ("0_1024", "1024_2048", "2048_3000")
    assert list(measures) == [f"bits_per_token_{part}" for part in parts]
    assert measures["bits_per_token_2048_3000"] == pytest.approx(3)
    assert measures["bits_per_token_0_1024"] < 3


def test_positions_that_were_never_read_have_no_loss() -> None:
    report = PositionReport(2000)
    short = unpadded_batch(*torch.zeros(2, 1, 10, dtype=torch.long))
    report.update(Output(torch.zeros(1, 10, 4), StackOutput(torch.zeros(1), [])), short)
    found = report.compute()
    assert found.bits(0, 1024) == pytest.approx(2)
    assert math.isnan(found.bits(1024, 2000))
    assert list(found.measures()) == ["bits_per_token_0_1024"]
    assert [row[0] for row in found.summary()[1:]] == ["0 to 64"]
