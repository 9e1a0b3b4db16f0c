"""Pairs of texts: batches, the network's symmetries, own files, prediction."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

import clusterformer
from clusterformer.attention import FullAttention, NeuralClusteringAttention
from clusterformer.cli.main import main
from clusterformer.data.frames import Frame
from clusterformer.errors import InputError
from clusterformer.models.classifier import PairClassifier
from clusterformer.models.config import TransformerConfig
from clusterformer.module import ClusterFormer
from clusterformer.task import IGNORE
from clusterformer.tasks.nli import Inference
from clusterformer.tasks.pairs import PairDataset, pair_batch, split_pair

SEPARATOR = 9
FIRST, SECOND = [[2, 3, 4], [5], [6, 7]], [[8], [2, 5, 6, 7], [3]]


def frame(separator):
    return None if separator is None else Frame(between=(separator,), second=1)


def batch(first=FIRST, second=SECOND, separator=None):
    zeros = [0] * len(first)
    return pair_batch(first, second, zeros, zeros, frame(separator), zeros)


def rows(found, mask):
    return zip(found.tokens, mask, strict=True)


def network(attention=FullAttention, joint=False, pooling="mean"):
    config = TransformerConfig(
        attention, d_model=8, num_heads=2, num_layers=2, d_ff=16, pooling=pooling
    )
    return PairClassifier(config, vocab_size=10, num_labels=3, joint=joint).eval()


@pytest.fixture
def train_file(tmp_path):
    names = ["ann", "bob", "cat", "dan", "eve", "fay", "guy", "hal", "ida", "jon"]
    lines = [
        f"{one} met {two}\t{one if same else three} met {two}\t{'same' if same else 'other'}"
        for i, one in enumerate(names)
        for j, two in enumerate(names)
        for same, three in ((True, ""), (False, names[(i + j + 1) % 10]))
        if three != one
    ]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["first\tsecond\tlabel", *lines]) + "\n")
    return str(path)


def test_texts_apart_stand_in_rows_of_their_own():
    found = batch()
    assert [row[real].tolist() for row, real in rows(found, found.mask)] == FIRST + SECOND
    assert found.second.any(1).tolist() == [False] * 3 + [True] * 3
    assert torch.equal(found.second, found.mask & (torch.arange(6) >= 3)[:, None])


def test_joint_texts_stand_in_one_row_with_a_separator():
    found = batch(separator=SEPARATOR)
    pairs = zip(FIRST, SECOND, strict=True)
    assert [row[real].tolist() for row, real in rows(found, found.mask)] == [
        [*u, SEPARATOR, *v] for u, v in pairs
    ]
    assert [row[second].tolist() for row, second in rows(found, found.second)] == SECOND


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
@pytest.mark.parametrize("separator", [None, SEPARATOR], ids=["apart", "joint"])
@pytest.mark.parametrize("attention", [FullAttention, NeuralClusteringAttention])
def test_padding_and_batch_mates_change_nothing(attention, separator, pooling):
    net = network(attention, separator is not None, pooling)
    whole = batch(separator=separator)
    wide = whole._replace(
        tokens=torch.nn.functional.pad(whole.tokens, (0, 5), value=7),
        mask=torch.nn.functional.pad(whole.mask, (0, 5)),
        second=torch.nn.functional.pad(whole.second, (0, 5), value=separator is not None),
    )
    expected = net(whole).logits
    torch.testing.assert_close(net(wide).logits, expected)
    for row in range(3):
        single = batch(FIRST[row : row + 1], SECOND[row : row + 1], separator)
        torch.testing.assert_close(net(single).logits, expected[row : row + 1])


def test_a_text_is_encoded_alike_on_either_side():
    net = network()
    width = net.embedding.scale**2
    blocks = net.head[1].weight.data.split(round(width), 1)
    logits = net(batch(SECOND, FIRST)).logits
    net.head[1].weight.data = torch.cat([blocks[1], blocks[0], *blocks[2:]], 1)
    torch.testing.assert_close(net(batch(FIRST, SECOND)).logits, logits)


@pytest.mark.parametrize("joint", [False, True])
def test_only_joint_texts_attend_to_each_other(joint):
    net = network(joint=joint)
    separator = SEPARATOR if joint else None
    here = batch([[2, 3]], [[4, 5]], separator)
    there = batch([[2, 3]], [[6, 7]], separator)
    hidden, other = (net(each).encoded.hidden[0, :2] for each in (here, there))
    assert torch.equal(hidden, other) != joint


def test_joint_order_matters_even_to_equal_words():
    net = network(joint=True)
    net.embedding.positions = "none"
    there, back = batch([[2, 3]], [[4]], SEPARATOR), batch([[4]], [[2, 3]], SEPARATOR)
    assert not torch.allclose(net(there).encoded.hidden[0, 0], net(back).encoded.hidden[0, 2])


@pytest.mark.parametrize("separator", [None, SEPARATOR])
def test_an_empty_share_is_a_dummy_row_that_counts_for_nothing(separator):
    data = PairDataset(FIRST, SECOND, [0, 1, 2], [0, 0, 0], frame(separator))
    dummy = data[[]]
    assert dummy.target.tolist() == [IGNORE]
    assert not (dummy.mask | dummy.second).any()
    output = network(joint=separator is not None)(dummy)
    assert output.logits.isfinite().all()
    assert output.logits.shape == (1, 3)


def test_lengths_bound_the_tokens_of_a_batch():
    for separator in (None, SEPARATOR):
        data = PairDataset(FIRST, SECOND, [0, 1, 2], [0, 0, 0], frame(separator))
        assert data.lengths == [data[[i]].tokens.numel() for i in range(3)]


@pytest.mark.parametrize("joint", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_trains_tests_and_predicts_from_its_state(train_file, joint, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    torch.manual_seed(2)
    options = {"joint": joint, "batch_size": 16}
    task = Inference(train=train_file, test=train_file, **options)
    model = ClusterFormer(
        NeuralClusteringAttention, d_model=16, num_heads=2, num_layers=1, lr=0.02, warmup=5,
        dropout=0.0,
    )  # fmt: skip
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_epochs=24,
        check_val_every_n_epoch=12,
        accelerator="cpu",
        num_sanity_val_steps=0,
        enable_model_summary=False,
        **quiet,
    )
    trainer.fit(model, task)
    assert trainer.test(model, task, verbose=False)[0]["test/accuracy"] > 0.8
    again = Inference(train="gone.tsv", **options)
    again.load_state(task.state())
    lines = ["ann met bob\tann met bob\n", "hal met ida\teve met ida\n"]
    [found] = again.text_dataloader(lines)
    with torch.inference_mode():
        records = again.predictions(model.network.eval(), found)
    assert [record["label"] for record in records] == ["same", "other"]
    assert all(0.3 < record["probability"] <= 1 for record in records)


def test_predict_labels_pairs_and_names_the_line_without_a_tab(train_file, tmp_path, capsys):
    fit = [
        "fit",
        "--pictures=false",
        "--config=pairs.yaml",
        f"--data.train={train_file}",
        f"--runs={tmp_path}",
    ]
    small = ["--model.d_model=8", "--model.num_layers=1", "--trainer.accelerator=cpu"]
    assert main([*fit, *small, "--trainer.max_epochs=1"]) == 0
    run = str(tmp_path / "pairs" / "1")
    assert main(["test", "--checkpoint", run, "--trainer.accelerator=cpu"]) == 0
    lines = tmp_path / "lines.txt"
    lines.write_text("ann met bob\tann met bob\nann met bob\n")
    capsys.readouterr()
    assert main(["predict", "--checkpoint", run, "--input", str(lines), "--device=cpu"]) == 2
    out, error = capsys.readouterr()
    label, probability = out.split("\t")
    assert label in ("same", "other")
    assert 0 < float(probability) <= 1
    assert f"{lines}:2: no tab in 'ann met bob'" in error
    model = clusterformer.load(run)
    spaced = model.predict([("ann met bob", "hal met ida")])
    assert model.predict(np.array([["ann\tmet bob", "hal met\tida"]])) == spaced
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"first": ["ann met bob"], "second": ["hal met ida"]})
    assert model.predict(frame) == spaced
    with pytest.raises(InputError, match="input 1: got nan, allowed are texts"):
        model.predict(frame.assign(second=float("nan")))


def test_word_vectors_leave_room_for_the_separator(train_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "glove.txt").write_text("ann 1 2 2\nbob 2 2 1\n")
    task = Inference(train=train_file, joint=True, vectors=str(tmp_path / "glove.txt"))
    task.setup("fit")
    net = task.build(
        TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1, d_ff=16)
    )
    assert net.embedding.tokens.weight.shape == (task.tokenizer.vocab_size + 1, 3)
    assert net(next(iter(task.train_dataloader()))).logits.isfinite().all()


def test_held_out_pairs_share_no_first_text_with_training(train_file):
    task = Inference(train=train_file, batch_size=7)
    task.setup("fit")
    task.setup("test")
    loaders = task.train_dataloader(), task.val_dataloader(), task.test_dataloader()
    firsts = []
    for data in loaders:
        firsts.append(set())
        for found in data:
            firsts[-1] |= {" ".join(task.describe(found, i)) for i in range(len(found.target))}
    assert [len(part) for part in firsts] == [80, 10, 10]
    assert len(set.union(*firsts)) == 100


def test_pictures_show_the_words_of_a_row(train_file):
    apart, joint = (Inference(train=train_file, joint=joint) for joint in (False, True))
    for task in (apart, joint):
        task.setup("fit")
    lines = ["ann met bob\tcat met dan", "eve met fay\tbob"]
    [found] = apart.text_dataloader(lines)
    assert apart.describe(found, 1) == ["eve", "met", "fay"]
    assert apart.describe(found, 3) == ["bob"]
    [found] = joint.text_dataloader(lines)
    assert joint.describe(found, 1) == ["eve", "met", "fay", "<sep>", "bob"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("no tab", "no tab in .* two texts with one tab between"),
        ("a\tb\tc", "2 tabs in .* two texts with one tab between"),
        ("a\t ", "the second text is empty"),
        ("\ta", "the first text is empty"),
    ],
)
def test_a_line_without_two_texts_is_refused(line, found):
    with pytest.raises(InputError, match=found):
        split_pair(line)


def test_too_few_unlinked_pairs_to_hold_some_out(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("first\tsecond\tlabel\n" + "".join(f"q\t{i}\t{i % 2}\n" for i in range(20)))
    with pytest.raises(InputError, match=r"link all pairs into 1 groups.* valid and test"):
        Inference(train=str(path)).setup("fit")
    Inference(train=str(path), valid=str(path), test=str(path)).setup("fit")


def test_columns_of_own_files_are_named_or_numbered(tmp_path):
    lines = [f"{label},premise {i},hypothesis {i}" for i in range(30) for label in ("yes", "no")]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    task = Inference(train=str(tmp_path / "a.csv"), label_column=1, first_column=2, second_column=3)
    task.setup("fit")
    assert task.state()["labels"] == ["no", "yes"]
    (tmp_path / "b.jsonl").write_text('{"first": "a", "label": "x"}\n')
    with pytest.raises(InputError, match=r"b.jsonl:1: .* data.second_column; set it"):
        Inference(train=str(tmp_path / "b.jsonl")).setup("fit")


@pytest.mark.parametrize(("joint", "tokens"), [(False, 513), (True, 516)])
def test_pairs_beyond_learned_positions_are_refused_by_themselves(train_file, joint, tokens):
    task = Inference(train=train_file, joint=joint)
    task.setup("fit")
    config = TransformerConfig(FullAttention, d_model=8, num_heads=2, positions="learned")
    task.build(config)
    task.check_text("ann met bob\tann met")
    with pytest.raises(InputError, match=f"^a text of {tokens} tokens is longer than the 512 "):
        task.check_text(f"ann met\t{'ann ' * 513}")
    if not joint:
        task.check_text(f"{'ann ' * 300}\t{'bob ' * 300}")
