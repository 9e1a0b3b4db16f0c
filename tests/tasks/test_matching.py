"""Matching: ranked answers are scored by question, whichever process saw which of them."""

import pytest
import torch
from forked import in_processes
from torch import nn

from clusterformer.attention import FullAttention
from clusterformer.data.batches import BucketPlan, DistributedBatchSampler
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import StackOutput
from clusterformer.task import Output
from clusterformer.tasks.matching import Matching
from clusterformer.tasks.pairs import PairDataset

# question, label, score: ranks of right answers 1 and 3, 2, none, 1
ANSWERS = [
    (1, 0, -3.0), (1, 1, -1.0), (1, 0, -2.0), (1, 1, -2.5),
    (2, 0, 5.0), (2, 1, 4.0), (2, 0, 3.0),
    (3, 0, 1.0), (3, 0, 2.0),
    (4, 1, 0.5),
]  # fmt: skip
MAP = ((1 / 1 + 2 / 3) / 2 + 1 / 2 + 1) / 3
MRR = (1 + 1 / 2 + 1) / 3


@pytest.fixture
def ranked_file(tmp_path):
    lines = [f"{i % 20}\tq {i % 20}\tanswer {i}\t{int(i < 20)}" for i in range(60)]
    path = tmp_path / "ranked.tsv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def ranking(file="ranked.tsv"):
    columns = {"group_column": 1, "first_column": 2, "second_column": 3, "label_column": 4}
    return Matching(train=file, batch_size=8, **columns)


def measured(rank, world_size, answers=ANSWERS):
    """MAP and MRR of answers as one process of several measures them, in batches of three."""
    groups, labels, scores = zip(*answers, strict=True)
    tokens = [[2]] * len(answers)
    data = PairDataset(tokens, tokens, list(labels), list(groups), None)
    plan = BucketPlan([1] * len(answers), batch_size=3, shuffle=False)
    task = ranking()
    metrics = task.metrics()
    for share in DistributedBatchSampler(plan, rank=rank, world_size=world_size):
        margin = torch.tensor([scores[index] for index in share] or [9.0])
        logits = torch.stack([-3 * torch.ones_like(margin), margin - 3], 1)
        output = Output(logits, StackOutput(logits, []))
        task.update(metrics, output, data[share], nn.Identity())
    return {name: value.item() for name, value in metrics.compute().items()}


def measured_together(rank, rendezvous):
    """MAP and MRR of ANSWERS as each of two processes knows them in the end."""
    torch.distributed.init_process_group("gloo", rendezvous, rank=rank, world_size=2)
    found = measured(rank, 2)
    torch.distributed.destroy_process_group()
    return found


def test_map_and_mrr_by_hand():
    assert measured(0, 1) == pytest.approx({"map": MAP, "mrr": MRR})


@pytest.mark.parametrize(("lower", "higher"), [(18.0, 30.0), (-120.0, -119.0), (99.0, 100.0)])
def test_a_sure_model_ranks_its_answers(lower: float, higher: float):
    """Probabilities of such margins are 0 or 1 in float32."""
    assert measured(0, 1, [(1, 0, lower), (1, 1, higher)]) == {"map": 1, "mrr": 1}
    assert measured(0, 1, [(1, 0, higher), (1, 1, lower)]) == {"map": 0.5, "mrr": 0.5}


def test_two_processes_measure_what_one_does(tmp_path):
    found = in_processes(2, measured_together, f"file://{tmp_path}/rendezvous")
    assert found[0] == found[1] == pytest.approx({"map": MAP, "mrr": MRR})


def test_ranking_watches_map_and_sees_every_question(ranked_file):
    task = ranking(ranked_file)
    assert task.monitor == "val/map"
    assert Matching("quora").monitor == "val/accuracy"
    task.setup("fit")
    batches = list(task.train_dataloader())
    questions = {
        " ".join(task.describe(batch, row)): int(batch.group[row])
        for batch in batches
        for row in range(len(batch.target))
    }
    assert len(questions) == len(set(questions.values())) == 16
    assert min(questions.values()) == 1


def test_matching_without_questions_is_measured_by_accuracy(ranked_file):
    task = Matching(train=ranked_file, first_column=2, second_column=3, label_column=4)
    task.setup("fit")
    net = task.build(TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1, d_ff=8))
    batch = next(iter(task.val_dataloader()))
    metrics = task.metrics()
    task.update(metrics, net(batch), batch, net)
    assert set(metrics.compute()) == {"accuracy", "f1"}
    assert batch.group.unique().tolist() == [0]


def test_ranking_needs_right_and_wrong_by_0_and_1(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{i}\tq{i}\ta{i}\t{'yes' if i % 2 else 'no'}\n" for i in range(30)))
    with pytest.raises(InputError, match=r"label 1 for right .* found \['no', 'yes'\]"):
        ranking(str(path)).setup("fit")


def test_a_held_out_part_that_gets_no_pair_is_one_line(tmp_path):
    """24 pairs share a text, so they stay together; each other label is of one pair and trains."""
    path = tmp_path / "linked.tsv"
    linked = [f"{i % 2}\tone\ttwo {i}" for i in range(24)]
    others = [f"{label}\ta{i}\tb{i}" for i, label in enumerate("abcde")]
    path.write_text("\n".join(["label\tfirst\tsecond", *linked, *others]))
    with pytest.raises(InputError, match=r"linked\.tsv:2: too few pairs of a label, 29 of 7"):
        Matching(train=str(path)).setup("fit")


def test_a_named_set_has_its_own_questions():
    with pytest.raises(InputError, match="group_column is for own files, got 1 with quora"):
        Matching("quora", group_column=1)


def test_real_wikiqa_ranks_its_questions(data_root):
    task = Matching("wikiqa-part", root=str(data_root))
    task.setup("test")
    groups = torch.cat([batch.group for batch in task.test_dataloader()])
    assert len(groups.unique()) == 126


def test_questions_without_a_right_answer_are_told(ranked_file, tmp_path, caplog):
    path = tmp_path / "wrong.tsv"
    path.write_text("1\tq\tanswer\t0\n1\tq\tother\t0\n")
    columns = {"group_column": 1, "first_column": 2, "second_column": 3, "label_column": 4}
    Matching(train=ranked_file, valid=str(path), test=ranked_file, **columns).setup("fit")
    assert "valid: no question has a right answer (label 1), so map and mrr are 0" in caplog.text
    assert "test: no question" not in caplog.text
