"""GLUE's tasks: their files, and the measures that its table has."""

import math
from pathlib import Path

import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from clusterformer.cli.main import main
from clusterformer.data import corpora
from clusterformer.data.batches import pad
from clusterformer.models.transformer import Output, StackOutput
from clusterformer.task import IGNORE, Task
from clusterformer.tasks.classification import Classification, TextBatch
from clusterformer.tasks.matching import Matching
from clusterformer.tasks.nli import Inference
from clusterformer.tasks.pairs import PairBatch
from clusterformer.training.text_baselines import Labelled

SENTENCES = [f"gj04\t{i % 3 and 1}\t{'' if i % 3 else '*'}\tthe cat {i} sat" for i in range(40)]
PAIRS = [f'{i % 2}\t1\t2\tthe "cat" {i}\ta cat {i}' for i in range(40)]
PHRASES = [f"the film {i} is {'good' if i % 2 else 'bad'} \t{i % 2}" for i in range(40)]
FOLLOWS = [f"{i}\ta cat {i}\tit {i} sat\t{'not_' * (i % 2)}entailment" for i in range(40)]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    heads = {"mrpc": "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"}
    heads["rte"] = "index\tsentence1\tsentence2\tlabel"
    heads["qnli"] = "index\tquestion\tsentence\tlabel"
    heads["sst2"] = "sentence\tlabel"
    tables = {"cola": SENTENCES, "sst2": PHRASES, "mrpc": PAIRS, "rte": FOLLOWS, "qnli": FOLLOWS}
    for name, lines in tables.items():
        folder = tmp_path / "glue" / name
        folder.mkdir(parents=True)
        for part, count in (("train", 30), ("dev", 10), ("test", 20)):
            head = [heads[name]] if name in heads else []
            text = "".join(f"{line}\n" for line in [*head, *lines[:count]])
            (folder / f"{part}.tsv").write_text(text)
    counts = {"train": 30, "dev": 10, "test": 20}
    for name in ("cola", "sst2"):
        monkeypatch.setitem(corpora._NUM_GLUE, name, counts)
    for name in ("mrpc", "rte", "qnli"):
        monkeypatch.setitem(corpora._NUM_PAIRS, name, counts)
    return tmp_path


def test_what_has_labels_tests(root: Path) -> None:
    tasks = (Classification("cola", root=str(root)), Matching("mrpc", root=str(root)))
    sizes = [[len(task.read(split)) for split in ("train", "valid", "test")] for task in tasks]
    assert sizes == [[27, 3, 10], [30, 10, 20]]
    assert tasks[0].read("test")[1].text == "the cat 1 sat"
    assert tasks[1].read("test")[1].texts == ('the "cat" 1', "a cat 1")
    for name in ("rte", "qnli"):
        task = Inference(name, root=str(root))
        task.setup("fit")
        assert task.state()["labels"] == ["entailment", "not_entailment"]
        assert len(task.read("test")) == 10
        assert task.read("test")[1].texts == ("a cat 1", "it 1 sat")
    films = Classification("sst2", root=str(root)).read("test")
    assert [(film.text.strip(), film.label) for film in films[:2]] == [
        ("the film 0 is bad", "0"),
        ("the film 1 is good", "1"),
    ]


def measured(task: Task, batch: object, logits: torch.Tensor) -> dict[str, float]:
    metrics = task.metrics()
    output = Output(logits, StackOutput(logits, []))
    for part in (slice(0, 7), slice(7, None)):  # the second with a dummy row, as processes have
        rows = [field[part] for field in batch]  # type: ignore[attr-defined]
        task.update(metrics, output._replace(logits=logits[part]), type(batch)(*rows), None)
    return {name: float(value) for name, value in metrics.compute().items()}


def test_measures_are_those_of_scikit_learn(root: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 2, generator=generator)
    target = torch.randint(2, (20,), generator=generator)
    target[-1] = IGNORE
    real, found = target[:-1].tolist(), logits.argmax(-1)[:-1].tolist()
    tokens, mask = pad([[3]] * 20)
    zero = torch.zeros(20, dtype=torch.long)

    task = Classification("cola", root=str(root))
    task.setup("fit")
    assert task.monitor == "val/matthews"
    values = measured(task, TextBatch(tokens, mask, target, zero), logits)
    assert values["matthews"] == pytest.approx(matthews_corrcoef(real, found))

    pairs = Matching("mrpc", root=str(root), joint=True)
    pairs.setup("fit")
    values = measured(pairs, PairBatch(tokens, mask, target, mask, zero, zero), logits)
    assert values["f1_positive"] == pytest.approx(f1_score(real, found))
    assert values["accuracy"] == pytest.approx(accuracy_score(real, found))


def test_simple_methods_have_the_same_measures(root: Path) -> None:
    cola, mrpc = Classification("cola", root=str(root)), Matching("mrpc", root=str(root))
    for task, name in ((cola, "matthews"), (mrpc, "f1_positive")):
        examples = task.read("test")
        labels = [example.label for example in examples]
        right = Labelled(labels, torch.zeros(len(labels)).numpy(), 0)
        assert task.measure(examples, right)[name] == pytest.approx(1)
        wrong = Labelled([str(1 - int(label)) for label in labels], right.scores, 0)
        assert task.measure(examples, wrong)[name] <= 0


def test_a_missing_file_says_where_it_comes_from(tmp_path: Path) -> None:
    for task, names in ((Classification, ("cola", "sst2")), (Inference, ("rte", "qnli"))):
        for name in names:
            with pytest.raises(ValueError, match=f"{name}: no file .*train.tsv; .*prepare {name}`"):
                task(name, root=str(tmp_path)).read("train")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cola", "mrpc", "rte", "stsb", "qqp", "mnli-joint"])
def test_the_real_ones_train(
    name: str, data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["--model.d_model=16", "--model.num_layers=1", "--trainer.max_steps=2"]
    tiny += ["--trainer.limit_val_batches=1", "--trainer.limit_test_batches=2"]
    tiny += ["--trainer.accelerator=cpu", "--baselines=false", f"--data.root={data_root}"]
    assert main(["fit", "--config", f"{name}.yaml", *tiny]) == 0
    told = capsys.readouterr().out
    measure = {"cola": "matthews", "stsb": "spearman", "mrpc": "f1_positive", "qqp": "f1_positive"}
    assert f"test/{measure.get(name, 'accuracy')}" in told
    assert not math.isnan(float(told.split("test/loss")[1].split()[0]))
