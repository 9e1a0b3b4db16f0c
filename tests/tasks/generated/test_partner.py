"""The partner task: texts as promised, the same on any process, solvable only by attention."""

from functools import partial

import pytest
import torch
from default_dtype import default_dtype
from lightning.pytorch import Trainer

from clusterformer.attention import FullAttention, LocalAttention, NeuralClusteringAttention
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.module import ClusterFormer
from clusterformer.task import IGNORE
from clusterformer.tasks.generated.partner import Partner, PartnerTexts, reach


@pytest.fixture
def batch():
    return PartnerTexts(30, 10, (0, 1))[[4, 0, 7]]


def network(task, attention=FullAttention, **options):
    shape = {"d_model": 16, "num_heads": 2, "num_layers": 2, "d_ff": 16, "positions": "none"}
    return task.build(TransformerConfig(attention, **{**shape, **options}))


def test_every_key_stands_twice_and_the_partner_is_the_other(batch):
    positions = torch.arange(30)
    for row in range(3):
        assert sorted(batch.tokens[row].tolist()) == sorted([*range(1, 16)] * 2)
        partner = batch.partner[row]
        assert (partner != positions).all()
        assert (partner[partner] == positions).all()
        assert (batch.tokens[row][partner] == batch.tokens[row]).all()


def test_keys_that_are_not_shared_stand_once_and_have_fixed_partners():
    own = PartnerTexts(30, 10, (0, 1), shared_keys=False)[[4, 0, 7]]
    shared = PartnerTexts(30, 10, (0, 1))[[4, 0, 7]]
    for row in range(3):
        assert sorted(own.tokens[row].tolist()) == list(range(1, 31))
        asks = own.values[row] == 10
        partners = own.tokens[row][own.partner[row]]
        assert (partners[asks] == own.tokens[row][asks] - 15).all()
    assert all(torch.equal(a, b) for a, b in zip(own[1:], shared[1:], strict=True))


def test_a_state_of_before_keys_could_differ_has_shared_ones():
    Partner(num_tokens=20).load_state({"num_tokens": 20, "num_values": 10})
    with pytest.raises(InputError, match="shared_keys must be True, as it was in training, got"):
        Partner(num_tokens=20, shared_keys=False).load_state({"num_tokens": 20, "num_values": 10})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_tokens": 40}, "num_pairs must be 10, as it was in training, got 20"),
        ({"num_pairs": 20}, "num_pairs must be 10, as it was in training, got 20"),
        ({"num_values": 4}, "num_values must be 10, as it was in training, got 4"),
    ],
)
def test_a_model_refuses_texts_of_other_keys_or_values(options, message):
    trained = Partner(num_tokens=20).state()
    with pytest.raises(InputError, match=message):
        Partner(**{"num_tokens": 20, **options}).load_state(trained)


def test_texts_draw_from_all_pairs_that_there_are():
    batch = PartnerTexts(30, 10, (0, 1), shared_keys=False, num_pairs=40)[list(range(50))]
    asks = batch.values == 10
    partners = batch.tokens.gather(1, batch.partner)
    assert (partners[asks] == batch.tokens[asks] - 40).all()
    assert all(len(set(row)) == 30 for row in batch.tokens.tolist())
    assert set(batch.tokens.flatten().tolist()) == set(range(1, 81))
    shared = PartnerTexts(30, 10, (0, 1), num_pairs=40)[list(range(50))]
    assert (shared.tokens == shared.tokens.gather(1, shared.partner)).all()
    assert set(shared.tokens.flatten().tolist()) == set(range(1, 41))


def test_texts_with_all_pairs_are_the_same_with_their_number():
    named = PartnerTexts(30, 10, (0, 1), num_pairs=15)[[4, 0]]
    assert all(map(torch.equal, named, PartnerTexts(30, 10, (0, 1))[[4, 0]]))
    with pytest.raises(InputError, match="num_pairs must be at least 15, got 14"):
        Partner(num_tokens=30, num_pairs=14)


def test_a_model_takes_longer_texts_of_its_pairs():
    trained = Partner(num_tokens=20, num_pairs=30)
    longer = Partner(num_tokens=60, num_pairs=30)
    longer.load_state(trained.state())
    assert longer.state() == trained.state()
    batch = next(iter(longer.val_dataloader()))
    assert batch.tokens.shape[1] == 60
    assert network(longer)(batch).logits.shape[1] == 60
    learned = network(trained, positions="learned").state_dict()
    network(longer, positions="learned").load_state_dict(learned)


def test_one_of_a_pair_asks_for_the_value_of_the_other(batch):
    asks = batch.values == 10
    assert (asks.sum(1) == 15).all()
    assert (asks != asks.gather(1, batch.partner)).all()
    answers = batch.values.gather(1, batch.partner)
    assert (batch.target[asks] == answers[asks]).all()
    assert (batch.target[~asks] == IGNORE).all()


def test_positions_and_values_are_spread_evenly():
    batch = PartnerTexts(20, 4, (0,))[list(range(2000))]
    asks = (batch.values == 4).float().mean(0)
    assert (asks - 0.5).abs().max() < 0.06
    shares = torch.bincount(batch.target[batch.target != IGNORE]) / 20_000
    assert (shares - 0.25).abs().max() < 0.02


def test_text_depends_on_its_index_only(batch):
    single = PartnerTexts(30, 10, (0, 1))[[0]]
    assert all(torch.equal(one[0], many[1]) for one, many in zip(single, batch, strict=True))
    other = PartnerTexts(30, 10, (0, 2))[[0]]
    assert not torch.equal(single.tokens, other.tokens)


def test_training_is_endless_and_evaluation_fixed(monkeypatch):
    task = Partner(num_tokens=8, batch_size=4, epoch_steps=3, valid_texts=6, test_texts=5)
    data = task.train_dataloader()
    first = [text for batch in data for text in batch.tokens.tolist()]
    data.sampler.set_epoch(1)
    second = [text for batch in data for text in batch.tokens.tolist()]
    assert len(first) == len(second) == 12
    assert first != second
    evaluated = [batch.tokens.tolist() for batch in task.val_dataloader()]
    assert [len(texts) for texts in evaluated] == [4, 2]
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    assert [batch.tokens.tolist() for batch in task.val_dataloader()] == evaluated
    assert next(iter(task.train_dataloader())).tokens.tolist() != first[:4]
    assert next(iter(task.test_dataloader())).tokens.tolist() != evaluated[0]


@pytest.mark.slow
def test_full_attention_learns_it():
    torch.manual_seed(0)
    task = Partner(num_tokens=8, num_values=3, batch_size=64, epoch_steps=150, valid_texts=64)
    model = ClusterFormer(
        FullAttention,
        d_model=32,
        num_heads=2,
        dropout=0.0,
        positions="none",
        lr=5e-3,
        warmup=20,
    )
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(model, task)
    assert trainer.validate(model, task, verbose=False)[0]["val/accuracy"] > 0.95


def test_linear_baseline_stays_far_behind():
    found = Partner(num_tokens=64, test_texts=64).linear_baseline(steps=100)
    assert 0.08 < found.measures["accuracy"] < 0.3


def test_reach_follows_the_blocks_that_are_in_sight():
    task = Partner(num_tokens=16, valid_texts=8)
    batch = next(iter(task.val_dataloader()))

    def share(**options):
        attention = partial(NeuralClusteringAttention, **options)
        encoded = network(task, attention, num_layers=1)(batch).encoded
        blocks = encoded.groupings[0].blocks
        return reach(encoded.groupings, encoded.cores, batch.partner), blocks

    def apart(blocks):
        block = blocks.slot // blocks.members.shape[-1]
        return (block - block.gather(1, batch.partner)).abs()

    reached, blocks = share(num_clusters=8, look_back=0, look_ahead=0)
    assert torch.equal(reached, apart(blocks) == 0)

    torch.manual_seed(0)
    back, blocks = share(num_clusters=8, look_ahead=0)
    assert torch.equal(back, (apart(blocks) <= 1) | (apart(blocks) == 7))
    torch.manual_seed(0)
    assert torch.equal(share(num_clusters=8, look_ahead=1)[0], back)

    assert share(num_clusters=2)[0].all()


def test_full_attention_reaches_everything():
    task = Partner(num_tokens=16, valid_texts=8)
    batch = next(iter(task.val_dataloader()))
    net = network(task)
    mean, number = task.means(net(batch), batch)["reach"]
    assert (mean, number) == (1, batch.mask.sum())


def test_reach_is_not_rounded_under_bf16_true():
    """Shares of whole numbers are in torch's default dtype, which Lightning sets there."""
    task = Partner(num_tokens=600, valid_texts=2, batch_size=2)
    batch = next(iter(task.val_dataloader()))
    output = network(task, partial(NeuralClusteringAttention, num_clusters=32))(batch)
    mean, _ = task.means(output, batch)["reach"]
    with default_dtype(torch.bfloat16):
        assert task.means(output, batch)["reach"][0] == mean
    assert mean != mean.bfloat16()


def test_a_mechanism_that_does_not_say_whom_a_token_sees_has_no_reach():
    task = Partner(num_tokens=16, valid_texts=8)
    batch = next(iter(task.val_dataloader()))
    net = network(task, partial(LocalAttention, window=3))
    assert task.means(net(batch), batch) == {}


def test_dummy_row_counts_for_nothing():
    task = Partner(num_tokens=8, valid_texts=4)
    dummy = task.train_dataloader().dataset[[]]
    net = network(task).eval()
    total, count = task.loss(net(dummy), dummy, 0.1)
    assert (total.item(), count.item()) == (0, 0)
    batch = next(iter(task.val_dataloader()))
    results = []
    for batches in ([batch], [dummy, batch]):
        metrics = task.metrics()
        for each in batches:
            task.update(metrics, net(each), each, net)
        results.append({name: value.item() for name, value in metrics.compute().items()})
    assert results[0] == results[1]


def test_pictures_get_names_and_links():
    task = Partner(num_tokens=8)
    batch = next(iter(task.val_dataloader()))
    names, links = task.describe(batch, 0), task.links(batch, 0)
    assert len(links) == 4
    for one, other in links:
        assert names[one].split(":")[0] == names[other].split(":")[0]
        assert (names[one] + names[other]).count("?") == 1


def test_predictions_name_a_value_for_each_that_asks():
    task = Partner(num_tokens=8, valid_texts=3)
    batch = next(iter(task.val_dataloader()))
    rows = task.predictions(network(task), batch)
    assert [len(row["values"]) for row in rows] == [4, 4, 4]


@pytest.mark.parametrize("options", [{"num_tokens": 7}, {"num_tokens": 0}, {"num_values": 1}])
def test_impossible_sizes_are_refused(options):
    with pytest.raises(InputError, match="must be"):
        Partner(**options)


def test_text_of_ones_own_is_refused():
    with pytest.raises(InputError, match="reads no text"):
        Partner().text_dataloader(["hello"])
