"""What the assemblers say of the Triton kernels, for GPUs that need not be here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterformer.bench.compilation import TARGETS
from clusterformer.bench.roofline import ASSIGNING, MEANS_BACKWARD

pytest.importorskip("triton")

SCRIPT = """
import json, sys
from clusterformer.bench.compilation import compile_all
print(json.dumps(list(compile_all([sys.argv[1]]))))
"""


def report(target: str) -> list[dict]:
    """Rows of the report, made by a process that does not interpret."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, target],
        capture_output=True, text=True, env=environment, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def holds(rows: list[dict]) -> None:
    kernels = {"forward_kernel", "dq_kernel", "dkv_kernel", *ASSIGNING, *MEANS_BACKWARD}
    assert kernels <= {row["kernel"] for row in rows}
    for row in rows:
        assert row["registers"] > 0
        assert row["spilled_bytes"] == 0, row
        assert row["shared_bytes"] <= row["shared_limit"], row


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_no_form_spills_anywhere(target: str) -> None:
    holds(report(target))


def test_the_committed_report_has_no_spills() -> None:
    path = Path(__file__).parents[2] / "docs" / "results" / "compile-report.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {row["target"] for row in rows} == set(TARGETS)
    holds(rows)
