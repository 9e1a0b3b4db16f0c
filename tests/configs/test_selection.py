"""`compare selection`: every row sees one share of keys, in every column that needs no data."""

import pytest
import torch

from clusterformer.cli.options import Options, make_model_and_task
from clusterformer.compare.plan import find_plan, read_plan
from clusterformer.stack_groupings import keys_seen, stacks

SEE_ALL = ("Transformer", "NSA", "NSA, blocks of 4")


@pytest.mark.parametrize(
    ("name", "column", "share"),
    [
        ("selection", "MQAR 256/32", 0.10),
        ("selection", "MQAR 512/64", 0.10),
        ("selection", "partner 1024", 0.10),
        ("selection-25", "MQAR 256/32", 0.25),
        ("selection-25", "MQAR 512/64", 0.25),
    ],
)
def test_every_row_sees_about_the_same_share_of_keys(name: str, column: str, share: float) -> None:
    plan = read_plan(find_plan(name)).part(columns=[column], seeds=1)
    found = {}
    for run in plan.runs:
        if run.row in found or run.row in SEE_ALL:
            continue
        one = ["--data.test_texts=1", "--data.batch_size=1"]
        model, task = make_model_and_task([*run.arguments(), *one])
        task.setup("test")
        torch.manual_seed(0)
        network = task.build(model.transformer_config).eval()
        batch = next(iter(task.test_dataloader()))
        with torch.no_grad():
            sums, counts = keys_seen(stacks(network(batch), batch))
        found[run.row] = float(sums / counts)
    assert len(found) >= 13
    assert found == pytest.approx(dict.fromkeys(found, share), abs=0.02)


@pytest.mark.parametrize("name", ["selection", "selection-25"])
def test_every_rival_that_takes_blocks_chooses_one_beside_its_own(name: str) -> None:
    rivals = ("MoBA", "NSA", "indexer of blocks")
    runs = [run for run in read_plan(find_plan(name)).runs if run.row in rivals]
    assert len(runs) > 30
    assert all(run.options["model.attention.top_k"] > 1 for run in runs)
    warm = read_plan(find_plan(name)).part(rows=["indexer, dense warm-up"], seeds=1).runs
    for run in warm:  # sparse at least for half of the training
        options = Options(run.arguments(), fitting=True)
        steps = options.trainer_options["max_steps"]
        assert 0 < 2 * run.options["model.attention.dense_steps"] <= steps
