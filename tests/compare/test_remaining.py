"""How long the rest of a comparison takes: trainings by trainings, tests of models by tests."""

from pathlib import Path

import pytest

from clusterformer.compare.jobs import Job
from clusterformer.compare.model_tests import make_jobs
from clusterformer.compare.planned_run import PlannedRun
from clusterformer.compare.remaining import count_work, estimate


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    """Two trainings and a further test of each model."""
    trainings = [PlannedRun("a", "short", seed, {}, ()) for seed in (0, 1)]
    tests = [PlannedRun("a", "long", it.seed, {}, (), trained=it) for it in trainings]
    return make_jobs(tmp_path, [*trainings, *tests])


def test_a_test_of_a_model_is_not_expected_to_take_as_long_as_a_training(jobs: list[Job]) -> None:
    first, second, first_test, second_test = jobs
    assert estimate(jobs, []) is None
    assert estimate([second, first_test, second_test], [(first, 600.0)]) == 600
    assert estimate([first_test], [(first, 600.0)]) is None
    taken = [(first, 600.0), (first_test, 5.0), (second, 400.0)]
    assert estimate([second_test], taken) == 5
    assert estimate([second, second_test], taken) == 505


def test_work_is_counted_by_its_kind(jobs: list[Job]) -> None:
    assert count_work(jobs) == "2 runs to train, and 2 further tests of models"
    assert count_work(jobs[:1]) == "1 run to train"
    assert count_work(jobs[3:]) == "1 further test of models"
