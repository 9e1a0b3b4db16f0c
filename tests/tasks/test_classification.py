"""Classification of own files and named sets: what goes in, what comes out, what is refused."""

import io
import logging
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Trainer

from clusterformer.attention import FullAttention
from clusterformer.data.labelled_text import Row
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.module import ClusterFormer
from clusterformer.task import IGNORE
from clusterformer.tasks.classification import Classification

WORDS = {"pos": ["good", "great", "fine"], "neg": ["bad", "awful", "poor"]}
CONFIG = TransformerConfig(FullAttention, d_model=8, num_heads=2, num_layers=1, d_ff=16)


@pytest.fixture
def train_file(tmp_path):
    path = tmp_path / "train.tsv"
    lines = [
        f"{label}\ta {'very ' * (i % 7)}{words[i % 3]} film {i}"
        for i in range(30)
        for label, words in WORDS.items()
    ]
    path.write_text("\n".join(["label\ttext", *lines]) + "\n")
    return str(path)


def ready(*args, stage="fit", **options):
    task = Classification(*args, **options)
    task.setup(stage)
    return task


def test_own_file_is_split_batched_and_labelled(train_file):
    task = ready(train=train_file, batch_size=8)
    task.setup("test")
    train = list(task.train_dataloader())
    assert sum(len(batch.target) for batch in train) == 48
    for data in (task.val_dataloader(), task.test_dataloader()):
        assert sum(len(batch.target) for batch in data) == 6
    for batch in train:
        assert len(batch.target) <= 8
        for row in range(len(batch.target)):
            label = ["neg", "pos"][batch.target[row]]
            assert set(task.describe(batch, row)) & set(WORDS[label])


def never(*_: object, **__: object) -> None:
    raise AssertionError("long work before the check")


def test_a_missing_part_is_told_before_a_tokenizer_is_learnt(train_file, monkeypatch):
    monkeypatch.setattr("clusterformer.tasks.labelled_texts.learn_tokenizer", never)
    with pytest.raises(InputError, match=r"none\.tsv: no such file"):
        ready(train=train_file, valid="none.tsv")


def test_a_bad_test_file_is_told_before_the_training(train_file, tmp_path, monkeypatch):
    path = tmp_path / "test.tsv"
    for content, message in (
        ("what\ttext\nneg\tbad\n", "no column 'label'"),
        ("label\ttext\nother\tbad\n", "label 'other' is not among those of the training"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            Classification(train=train_file, test=str(path)).setup("fit")
    monkeypatch.setattr("clusterformer.tasks.labelled_texts.learn_tokenizer", never)
    with pytest.raises(InputError, match=r"none\.tsv: no such file"):
        Classification(train=train_file, test="none.tsv").setup("fit")


def test_own_validation_and_test_files_are_used_whole(train_file):
    task = Classification(train=train_file, valid=train_file, test=train_file)
    task.setup("fit")
    task.setup("test")
    for data in (task.train_dataloader(), task.val_dataloader(), task.test_dataloader()):
        assert sum(len(batch.target) for batch in data) == 60


def test_token_limit_replaces_the_default_batch_size(train_file):
    task = ready(train=train_file, tokens_per_batch=10_000)
    assert [len(batch.target) for batch in task.train_dataloader()] == [48]


def test_seed_of_the_run_orders_the_batches(train_file, monkeypatch):
    def first(seed):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
        return next(iter(ready(train=train_file, batch_size=4).train_dataloader())).tokens.tolist()

    assert first(1) == first(1) != first(2)


@pytest.mark.parametrize("tokenizer", ["word", pytest.param("bpe", marks=pytest.mark.slow)])
def test_trains_tests_and_predicts_better_than_chance(train_file, tokenizer, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    torch.manual_seed(0)
    task = Classification(train=train_file, test=train_file, tokenizer=tokenizer, batch_size=16)
    model = ClusterFormer(
        FullAttention, d_model=16, num_heads=2, num_layers=1, lr=0.02, warmup=2, dropout=0.0
    )
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        max_epochs=20,
        accelerator="cpu",
        num_sanity_val_steps=0,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(model, task)
    assert trainer.validate(model, task, verbose=False)[0]["val/accuracy"] > 0.6
    assert trainer.test(model, task, verbose=False)[0]["test/f1"] > 0.9
    batch = next(iter(task.text_dataloader(["a great film", "a very awful film"])))
    with torch.inference_mode():
        rows = task.predictions(model.network.eval(), batch)
    assert [row["label"] for row in rows] == ["pos", "neg"]
    assert all(0.5 < row["probability"] <= 1 for row in rows)


@pytest.mark.parametrize("vectors", [False, True])
def test_state_rebuilds_task_and_network_without_data(train_file, tmp_path, monkeypatch, vectors):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"max_length": 5}
    if vectors:
        (tmp_path / "glove.txt").write_text("good 1 2 3\nbad 3 2 1\n")
        options["vectors"] = str(tmp_path / "glove.txt")
    task = ready(train=train_file, **options)
    network = task.build(CONFIG).eval()
    torch.save(task.state(), tmp_path / "state.pt")

    again = Classification(train="gone.tsv")
    again.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    again.setup("predict")
    copy = again.build(CONFIG).eval()
    copy.load_state_dict(network.state_dict())
    lines = ["a good film", "very very very very bad film"]
    batches = [next(iter(each.text_dataloader(lines))) for each in (task, again)]
    assert batches[0].tokens.shape == (2, 5)
    torch.testing.assert_close(copy(batches[1]).logits, network(batches[0]).logits)


def test_word_vectors_start_the_embedding(train_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "glove.txt").write_text("good 1 2 2\nbad 2 2 1\n")
    task = ready(train=train_file, vectors=str(tmp_path / "glove.txt"))
    weight = task.build(CONFIG).embedding.tokens.weight
    [good] = task.tokenizer.encode("good")
    assert weight.shape == (task.tokenizer.vocab_size, 3)
    torch.testing.assert_close(weight[good] / weight[good].norm(), torch.tensor([1.0, 2, 2]) / 3)


def test_long_texts_are_cut_counted_and_reported_once(train_file, caplog):
    with caplog.at_level(logging.WARNING):
        task = ready(train=train_file, max_length=6)
    reports = [record.message for record in caplog.records]
    assert [report.split(":")[0] for report in reports] == ["train", "valid"]
    assert "longer than max_length 6 tokens" in reports[0]
    assert max(batch.tokens.shape[1] for batch in task.train_dataloader()) == 6


def test_a_test_may_cut_texts_at_another_length_than_the_training(train_file):
    trained = ready(train=train_file, max_length=5)
    for limit, longest in ((None, 5), (3, 3), (7, 7)):
        task = Classification(train=train_file, max_length=limit)
        task.load_state(trained.state())
        task.setup("test")
        assert max(batch.tokens.shape[1] for batch in task.test_dataloader()) == longest
        assert task.text_batch(["a very very very very very good film"]).tokens.shape[1] == longest
        assert task.state()["max_length"] == 5


def test_texts_beyond_learned_positions_are_refused_before_a_training(train_file, tmp_path):
    long = tmp_path / "long.tsv"
    long.write_text(f"label\ttext\npos\ta good film\nneg\t{'bad ' * 513}\n")
    learned = replace(CONFIG, positions="learned")
    told = "a text of 513 tokens is longer than the 512 learned positions of the model"
    for files in (
        {"train": str(long), "valid": train_file, "test": train_file},
        {"train": train_file, "valid": str(long)},
        {"train": train_file, "test": str(long)},
    ):
        task = ready(**files)
        task.build(CONFIG)
        with pytest.raises(InputError, match=rf"long\.tsv:3: {told}.* data\.max_length cuts"):
            task.build(learned)
    task = Classification(train=train_file, test=str(long))
    task.load_state(ready(train=train_file).state())
    task.build(learned)
    with pytest.raises(InputError, match=rf"long\.tsv:3: {told}"):
        task.setup("test")
    task.check_text("a good film")
    with pytest.raises(InputError, match=f"^{told}"):
        task.check_text("bad " * 513)
    cut = ready(train=train_file, test=str(long), max_length=5)
    cut.build(learned)
    cut.setup("test")
    cut.check_text("bad " * 513)


def test_empty_share_and_its_dummy_row_count_for_nothing(train_file):
    task = ready(train=train_file)
    batch = task.train_dataloader().dataset[[]]
    assert batch.target.tolist() == [IGNORE]
    assert not batch.mask.any()
    network = task.build(CONFIG)
    output = network(batch)
    total, count = task.loss(output, batch, 0.1)
    assert (total.item(), count.item()) == (0, 0)
    full = next(iter(task.val_dataloader()))
    results = []
    for batches in ([full], [batch, full]):
        metrics = task.metrics()
        for each in batches:
            logits = torch.nn.functional.one_hot(each.target.clamp(min=0), 2).float()
            task.update(metrics, output._replace(logits=logits), each, network)
        results.append({name: value.item() for name, value in metrics.compute().items()})
    assert results[0] == results[1] == {"accuracy": 1, "f1": 1}


def test_label_smoothing_is_that_of_cross_entropy(train_file):
    task = ready(train=train_file)
    batch = next(iter(task.train_dataloader()))
    network = task.build(CONFIG)
    output = network(batch)
    total, count = task.loss(output, batch, 0.2)
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.2)(output.logits, batch.target)
    torch.testing.assert_close(total / count, expected)


def test_balanced_class_weights_weigh_the_loss(tmp_path):
    path = tmp_path / "train.tsv"
    rows = [f"{'neg' if i < 10 else 'pos'}\tfilm {i}" for i in range(40)]
    path.write_text("\n".join(["label\ttext", *rows]) + "\n")
    task = ready(train=str(path), valid=str(path), class_weights="balanced")
    batch = next(iter(task.train_dataloader()))
    output = task.build(CONFIG)(batch)
    expected = torch.nn.functional.cross_entropy(
        output.logits, batch.target, torch.tensor([2.0, 2 / 3]), reduction="sum"
    )
    torch.testing.assert_close(task.loss(output, batch, 0.0)[0], expected)


def test_user_text_streams_in_order_and_empty_lines_keep_their_row(train_file):
    task = ready(train=train_file)
    lines = io.StringIO("".join(f"{'' if i == 70 else f'film {i}'}\n" for i in range(150)))
    batches = iter(task.text_dataloader(lines))
    first = next(batches)
    assert lines.readline() == "film 64\n"
    rest = list(batches)
    assert task.describe(first, 3) == ["film", "3"]
    assert len(first.tokens) + sum(len(batch.tokens) for batch in rest) == 149
    assert task.describe(rest[0], 5) == ["<unk>"]


def test_listops_is_generated_and_its_brackets_stay_whole():
    task = ready("listops", length=20, examples=50)
    batches = list(task.train_dataloader())
    assert sum(len(batch.target) for batch in batches) == 50
    assert sum(len(batch.target) for batch in task.val_dataloader()) == 5
    assert task.describe(batches[0], 0)[0] in ("[MIN", "[MAX", "[MED", "[SM")
    assert task.tokenizer.vocab_size <= 2 + 10 + 5


def test_listops_knows_every_digit_however_few_the_examples():
    task = ready("listops", length=20, examples=1)
    for stage in ("test", "validate"):
        task.setup(stage)
    assert task.state()["labels"] == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a named set .* or own files"),
        ({"name": "mr", "train": "a.tsv"}, r"own files \(train\), and null as"),
        ({"name": "mr", "test": "a.tsv"}, r"and null as .* got name 'mr' and test 'a.tsv'"),
        ({"name": "mr", "tokenizer": "bpe", "vectors": "a.txt"}, "need tokenizer: word"),
        ({"name": "mr", "max_length": 0}, "max_length must be at least 1, got 0"),
        ({"name": "mr", "fold": 10}, r"fold must be in 0..9, got 10"),
    ],
)
def test_options_that_contradict_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Classification(**options)


def test_unknown_label_is_named_with_its_line(train_file, tmp_path):
    (tmp_path / "valid.tsv").write_text("label\ttext\npos\tgood\nmeh\tso so\n")
    with pytest.raises(InputError, match=r"valid.tsv:3: label 'meh' is not among .* neg, pos"):
        ready(train=train_file, valid=str(tmp_path / "valid.tsv"))


def test_one_label_is_not_enough(tmp_path):
    (tmp_path / "a.tsv").write_text(
        "label\ttext\n" + "".join(f"pos\tgood {i}\n" for i in range(20))
    )
    with pytest.raises(InputError, match=r"2 labels or more, found \['pos'\]"):
        ready(train=str(tmp_path / "a.tsv"))


def test_real_news_loads_in_seconds_and_pads_little(data_root):
    task = ready(
        "20news", root=str(data_root), strip=True, max_length=1500, tokens_per_batch=32_000
    )
    masks = [batch.mask for batch in task.train_dataloader()]
    assert sum(len(mask) for mask in masks) == 10_190
    assert max(mask.numel() for mask in masks) <= 32_000
    assert sum(int(mask.sum()) for mask in masks) > 0.93 * sum(mask.numel() for mask in masks)
    assert len(task.state()["labels"]) == 20


def test_the_error_of_an_unknown_label_lists_some_of_very_many() -> None:
    task = Classification(train="t.csv")
    task._labels = [f"{number / 7:.3f}" for number in range(300)]
    with pytest.raises(InputError, match=r"t.csv:2: label 'x' is not among .*0\.143") as error:
        task.targets([Row("a film", "x", "t.csv:2")])
    assert len(str(error.value)) < 600


def test_a_header_that_is_read_as_an_example_is_told(tmp_path, caplog):
    path, rows = tmp_path / "t.csv", "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(40))
    columns = {"text_column": 1, "label_column": 2}
    for head, header, told in (("", False, False), ("what,stars\n", False, True),
                               ("what,stars\n", True, False)):  # fmt: skip
        caplog.clear()
        path.write_text(head + rows)
        Classification(train=str(path), header=header, **columns).setup("fit")
        line = f"{path}:1: read as an example, the only one of label 'stars'; if it is a header"
        assert (line in caplog.text) == told == bool(caplog.messages)


def test_texts_that_are_in_the_training_part_too_are_told(train_file, tmp_path, caplog):
    other = tmp_path / "other.tsv"
    other.write_text("text\tlabel\n" + "".join(f"another {i}\tneg\n" for i in range(20)))
    Classification(train=train_file, valid=train_file, test=str(other)).setup("fit")
    told = "valid: 60 of 60 texts are in the training part too, and a model that was trained"
    assert [told in message for message in caplog.messages] == [True]
    caplog.clear()
    ready(stage="test", train=train_file, test=train_file)
    ready(stage="test", train=train_file, test=str(other))
    assert [message[:21] for message in caplog.messages] == ["test: 60 of 60 texts "]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": 3}, "data.fold has no effect on own files; leave it out"),
        ({"strip": True}, "data.strip has no effect on own files"),
        ({"name": "20news", "fold": 3}, "data.fold has no effect on this named set"),
        ({"name": "mr", "text_column": "review"}, "data.text_column has no effect on this named"),
        ({"name": "mr", "label_column": 2}, "data.label_column has no effect on this named set"),
        ({"name": "mr", "header": True}, "data.header has no effect on this named set"),
        ({"name": "mr", "encoding": "cp1252"}, "data.encoding has no effect on this named set"),
    ],
)
def test_an_option_without_effect_is_refused_when_a_training_begins(options, message, train_file):
    data = {} if "name" in options else {"train": train_file}
    with pytest.raises(InputError, match=message):
        ready(**data, **options)
    with pytest.raises(InputError, match=message):
        Classification(**data, **options).baselines()
    if "name" not in options:
        ready(stage="test", **data, **options)
