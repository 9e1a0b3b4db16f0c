"""`bench decode`: the cache of full attention grows with the text, that of clusters does not."""

import json
from pathlib import Path

import pytest

from clusterformer.attention import FullAttention, LocalAttention, NeuralClusteringAttention
from clusterformer.bench import decoding
from clusterformer.cli.main import main


def test_the_cache_of_full_attention_grows_and_that_of_clusters_does_not() -> None:
    kinds = {kind.__name__: kind for kind in (FullAttention, NeuralClusteringAttention)}
    sizes = {"d_model": 16, "num_heads": 2, "repeats": 2}
    rows = list(decoding.measure(kinds, [2304, 9216], **sizes))
    size = {(row["mechanism"], row["length"]): row["cache_mib"] for row in rows}
    full, clusters = "FullAttention", "NeuralClusteringAttention"
    assert size[full, 9216] > 3.5 * size[full, 2304]
    assert size[clusters, 9216] < 1.5 * size[clusters, 2304]
    assert all(row["step_ms"] > 0 for row in rows)
    seen = {(row["mechanism"], row["length"]): row["keys_seen"] for row in rows}
    assert seen[full, 2304] == seen[full, 9216] == 1
    assert 0 < seen[clusters, 9216] <= 128 / 9216  # two chunks of 64


def test_keys_seen_are_those_that_the_further_token_attends_to() -> None:
    kinds = {"LocalAttention": LocalAttention}
    sizes = {"d_model": 16, "num_heads": 2, "repeats": 1}
    (row,) = decoding.measure(kinds, [600], **sizes)
    window = LocalAttention(16, 2, causal=True).window
    assert row["keys_seen"] == pytest.approx(window / 601)


def test_the_command_writes_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "decode.json"
    names = ["FullAttention", "BlockTopKAttention", "IndexerAttention"]
    arguments = ["--lengths", "8", "40", "--d_model", "16", "--num_heads", "2", "--repeats", "1"]
    assert main(["bench", "decode", "--mechanisms", *names, *arguments, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["length"], row["mechanism"]) for row in rows] == [
        (length, name) for length in (8, 40) for name in names
    ]
    assert "cache MiB" in capsys.readouterr().out


def test_a_mechanism_that_cannot_decode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--mechanisms", "ClusteredAttention"]) == 2
    assert "ClusteredAttention has no strictly causal form" in capsys.readouterr().err
