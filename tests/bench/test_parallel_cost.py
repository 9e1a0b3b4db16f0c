"""The model of costs sends what was counted, and says where clusters do not pay."""

import json
from pathlib import Path

import pytest

from clusterformer.bench.parallel_cost import GIGA, Assumptions, SharedLayer, predict
from clusterformer.cli.main import main

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("processes", [2, 4])
def test_predicted_bytes_are_those_counted(processes: int) -> None:
    (row,) = json.loads((RESULTS / f"parallel-{processes}.json").read_text())["rows"]
    clusters = row["num_clusters"]
    layer = SharedLayer(
        row["length"], processes, row["d_model"], row["num_heads"], clusters,
        block=row["length"] // clusters, number_bytes=4,
    )  # fmt: skip
    assert layer.clusters_bytes() / 2**20 == pytest.approx(row["sent_mib"], rel=0.02)
    assert layer.ring_bytes() / 2**20 == pytest.approx(row["ring_mib"])


def test_clusters_pay_for_long_sequences_and_not_for_short_ones() -> None:
    slow = Assumptions(25 * GIGA)
    short, long = predict(SharedLayer(4096, 8), slow), predict(SharedLayer(2**20, 8), slow)
    assert short["ulysses"] is not None
    assert long["ulysses"] is not None
    assert short["ulysses"] < short["clusters"]
    assert long["clusters"] < 0.1 * long["ulysses"]
    assert predict(SharedLayer(2**20, 64), slow)["ulysses"] is None  # more GPUs than heads


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "parallel", "--predict"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "clusters ms" in lines[0]
    assert any(line.split()[0] == "1,024" for line in lines)
