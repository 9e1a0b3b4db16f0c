"""Where the number of a run comes from."""

import json
from pathlib import Path

import pytest
from toy_runs import write_run

from clusterformer.compare.origin import origin_of
from clusterformer.compare.page import page
from clusterformer.compare.results import read_results
from clusterformer.compare.statistics import summarise


@pytest.mark.parametrize(
    ("later", "named"),
    [
        (["abc"], "abc"),
        (["def0123456789abc", "abc"], "abc, then def0123456789abc"),
        ([None], "abc, then unknown"),
    ],
)
def test_a_resumed_run_has_the_commits_of_all_starts(
    later: list[str | None], named: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run" / "1")
    for number, commit in enumerate(later, start=2):
        (run / f"environment-{number}.json").write_text(json.dumps({"commit": commit}))
    results = read_results([str(run)], pytest.fail)
    assert origin_of(results[0].environment).commit == named
    shown = named.replace("def0123456789abc", "def012345678")
    assert f"<code>{shown}</code>" in page(summarise(results), title="", command="")
