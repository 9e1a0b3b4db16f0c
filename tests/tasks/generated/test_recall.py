"""Multi-query associative recall: its texts are Zoology's, and its network is causal."""

from functools import partial
from itertools import islice
from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from default_dtype import default_dtype

from clusterformer.attention import (
    BlockTopKAttention,
    FullAttention,
    IndexerAttention,
    NeuralClusteringAttention,
)
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.tasks.generated.generated_task import AskingBatch
from clusterformer.tasks.generated.recall import Recall


def test_each_key_comes_twice_and_its_value_is_the_answer() -> None:
    task = Recall(length=64, num_pairs=8, vocab_size=64)
    batch = task.texts(0, 1)[list(range(20))]
    assert batch.tokens.shape == (20, 64)
    assert batch.tokens.min() >= 1
    assert batch.tokens.max() < 64
    for tokens, target, asked in zip(batch.tokens, batch.target, batch.asked, strict=True):
        keys, values = tokens[:16:2], tokens[1:16:2]
        assert len(set(keys.tolist())) == len(set(values.tolist())) == 8
        assert keys.max() < 32 <= values.min()
        assert torch.equal(tokens[asked], keys)
        assert torch.equal(target, values)
        assert asked.min() >= 16
        assert (asked % 2 == 0).all()
        assert len(set(asked.tolist())) == 8


def test_no_block_of_two_tokens_holds_a_pair_of_shifted_texts() -> None:
    plain, moved = (
        Recall(length=16, num_pairs=3, vocab_size=64, shifted=shifted).texts(0)[list(range(50))]
        for shifted in (False, True)
    )
    assert torch.equal(moved.tokens[:, 1:7], plain.tokens[:, :6])
    assert torch.equal(moved.target, plain.target)
    assert torch.equal(moved.asked, plain.asked + 1)
    assert moved.asked.max() == 15
    assert torch.equal(moved.tokens.gather(1, moved.asked), plain.tokens[:, :6:2])


def test_learned_positions_reach_the_longest_texts_of_training() -> None:
    task = Recall(length=16, num_pairs=3, vocab_size=64, also_train=[(32, 3)], batch_size=2)
    network = task.build(TransformerConfig(FullAttention, positions="learned"))
    batch = task.train_texts(0, 1)[[2, 3]]
    assert batch.tokens.shape == (2, 32)
    assert network(batch).logits.shape == (2, 3, 64)
    restored = Recall(length=8, num_pairs=2, vocab_size=64)
    restored.load_state(task.state())
    assert restored.build(TransformerConfig(FullAttention, positions="learned"))(batch)


def test_accuracy_clear_leaves_out_keys_that_stand_before_by_chance() -> None:
    task = Recall(length=12, num_pairs=2, vocab_size=16)
    #       pairs       random   asked: 1, 1 stands at 5 too; 2, at 11 only behind its question
    text = [1, 9, 2, 10, 7, 1, 12, 3, 1, 7, 2, 2]
    batch = AskingBatch(torch.tensor([text]), torch.ones(1, 12, dtype=torch.bool),
                        torch.tensor([[9, 10]]), torch.tensor([[8, 10]]))  # fmt: skip
    for answers, wanted in (([12, 10], 1.0), ([9, 11], 0.0)):
        logits = F.one_hot(torch.tensor([answers]), 16).float()
        mean, number = task.means(SimpleNamespace(logits=logits), batch)["accuracy_clear"]
        assert (mean.item(), number.item()) == (wanted, 1)


def test_accuracy_clear_is_not_rounded_under_bf16_true() -> None:
    """Shares of whole numbers are in torch's default dtype, which Lightning sets there."""
    task = Recall(length=512, num_pairs=128, vocab_size=1024)
    batch = task.texts(1)[[0, 1, 2]]
    answers = batch.target.clone()
    answers[0, 0] = -1  # no value
    logits = F.one_hot(answers.clamp(min=0), 1024).float()
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        with default_dtype(dtype):
            found.append(task.means(SimpleNamespace(logits=logits), batch)["accuracy_clear"][0])
    assert found[0] == found[1]


def test_texts_are_the_same_for_a_seed_and_differ_between_streams() -> None:
    task = Recall(length=64, num_pairs=8, vocab_size=64)
    first, again, other = (task.texts(*stream)[[3, 4]] for stream in ((1,), (1,), (2,)))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    assert torch.equal(task.texts(1)[[4]].tokens, first.tokens[1:])


def test_short_distances_are_more_frequent() -> None:
    task = Recall(length=128, num_pairs=4, vocab_size=64)
    asked = task.texts(0)[list(range(200))].asked.numpy()
    assert np.median(asked) < 40
    even = Recall(length=128, num_pairs=4, vocab_size=64, power=1.0)
    assert 60 < np.median(even.texts(0)[list(range(200))].asked.numpy()) < 76


def test_batches_of_other_sizes_take_turns() -> None:
    task = Recall(length=64, num_pairs=8, vocab_size=64, batch_size=4, short_batches=2,
                  also_train=[(16, 2), (32, 4)])  # fmt: skip
    lightning.seed_everything(0, verbose=False)
    batches = list(islice(task.train_dataloader(), 6))
    sizes = [(tuple(batch.tokens.shape), batch.asked.shape[1]) for batch in batches]
    short, middle, whole = ((16, 16), 2), ((8, 32), 4), ((4, 64), 8)
    assert sizes == [short, middle, middle, whole, short, middle]
    texts = [tuple(text) for batch in batches[:1] for text in batch.tokens.tolist()]
    assert len(set(texts)) == 16


@pytest.mark.parametrize(
    "mechanism",
    [
        FullAttention,
        partial(NeuralClusteringAttention, num_clusters=4, chunk_size=4),
        partial(BlockTopKAttention, block_size=8, top_k=2),
        partial(IndexerAttention, top_k=8),
    ],
)
def test_no_answer_depends_on_later_tokens(mechanism) -> None:
    task = Recall(length=64, num_pairs=8, vocab_size=64)
    config = TransformerConfig(mechanism, 32, 2, 2, 64, 0.0, positions="rotary")
    network, batch = task.build(config).eval(), task.texts(0)[[0, 1]]
    logits = network(batch).logits
    cut = int(batch.asked[0].sort().values[4])
    changed = batch.tokens.clone()
    changed[:, cut + 1 :] = torch.randint(1, 64, changed[:, cut + 1 :].shape)
    before = batch.asked <= cut
    found = network(batch._replace(tokens=changed)).logits
    torch.testing.assert_close(found[before], logits[before])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 63}, "length must be even and at least"),
        ({"length": 32, "num_pairs": 16}, r"at least 4 \* num_pairs = 64, got 32"),
        ({"also_train": [(32, 16)]}, r"at least 4 \* num_pairs = 64, got 32"),
        ({"short_batches": 3}, "short_batches needs also_train"),
        ({"vocab_size": 100}, r"vocab_size must be at least 2 \* num_pairs \+ 2 = 130, got 100"),
        ({"power": 0.0}, "power must be above 0 and finite, got 0.0"),
    ],
)
def test_impossible_sizes_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        Recall(**options)


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_a_model_is_tested_on_texts_of_another_length(positions: str) -> None:
    config = TransformerConfig(FullAttention, 32, 2, 1, 64, 0.0, positions=positions)
    trained = Recall(length=64, num_pairs=8, vocab_size=64)
    weights = trained.build(config).state_dict()
    task = Recall(length=128, num_pairs=16, vocab_size=64)
    task.load_state(trained.state())
    network = task.build(config)
    network.load_state_dict(weights)
    batch = next(iter(task.test_dataloader()))
    assert batch.tokens.shape[1] == 128
    if positions == "rotary":
        assert network(batch).logits.shape[:2] == (32, 16)
    else:
        with pytest.raises(InputError, match="128 tokens is longer than the 64 learned positions"):
            network(batch)


def test_a_model_refuses_another_vocabulary() -> None:
    with pytest.raises(InputError, match="vocab_size must be 64, as it was in training, got 80"):
        Recall(length=64, num_pairs=8, vocab_size=80).load_state({"vocab_size": 64, "length": 64})
