"""`clusterformer export`: a folder that transformers and `clusterformer.load` read."""

import json
import pickle
import random
import re
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from tiny_pretrained import WORDS, write_bert, write_gpt2
from toy_command import TOY

pytest.importorskip("transformers")

import clusterformer
from clusterformer.cli.main import main
from clusterformer.data.pretrained_tokenizer import PretrainedTokenizer
from clusterformer.data.tokenizers import UNK, BytePairTokenizer, Tokenizer, WordTokenizer
from clusterformer.errors import InputError
from clusterformer.export.modeling import rebuild
from clusterformer.export.tokenizer_files import tokenizer_files
from clusterformer.models.pooling import pool
from clusterformer.models.pretrained import PretrainedClassifier
from clusterformer.training.saved import open_saved

TEXTS = ["a fine film", "the plot is dull . very dull", "how long"]
TRAINER = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--baselines=false"]
SLOW = pytest.mark.slow
SHORT = [
    *TRAINER,
    "--trainer.max_epochs=1",
    "--data.batch_size=20",
    "--model.attention.num_clusters=3",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    rows = [" ".join(rng.choices(WORDS, k=rng.randint(3, 20))) for _ in range(60)]
    path = tmp_path_factory.mktemp("data") / "texts.tsv"
    lines = ["text\tlabel", *(f"{row}\t{'good' if 'fine' in row else 'bad'}" for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(
    scope="module",
    params=["words", "bpe", *(pytest.param(s, marks=SLOW) for s in ("wordpiece", "pretrained"))],
)
def run(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A trained classifier: from a pretrained model, or from nothing."""
    runs = tmp_path_factory.mktemp("runs")
    if request.param == "pretrained":
        options = [f"--model.pretrained={write_bert(runs / 'bert')}", "--data.max_length=30"]
    else:
        kind = {"words": "word"}.get(request.param, request.param)
        options = [f"--data.tokenizer={kind}", "--model.d_model=8", "--model.num_heads=2"]
        options += ["--data.vocab_size=600"]
    fit = [
        "fit",
        "--pictures=false",
        "--data=Classification",
        f"--data.train={data}",
        *options,
        *SHORT,
    ]
    assert main([*fit, f"--runs={runs}"]) == 0
    return runs / "classification" / "1"


def test_the_folder_gives_what_the_run_gives(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path / "exported"
    assert main(["export", str(run), str(folder)]) == 0
    assert "loads with transformers and clusterformer.load" in capsys.readouterr().out
    expected = clusterformer.load(run).predict(TEXTS, probabilities=True)
    assert clusterformer.load(folder).predict(TEXTS, probabilities=True) == expected

    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model(**batch).logits.softmax(-1)
    for row, record in zip(found, expected, strict=True):
        for number, label in model.config.id2label.items():
            probability = record["probabilities"][label]
            assert float(row[int(number)]) == pytest.approx(probability, abs=1e-5)
    if isinstance(model.network, PretrainedClassifier):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(**batch).logits, model(**batch).logits)
    if not tokenizer("")["input_ids"]:  # ours make it one unknown token
        with torch.no_grad():
            unknown = model(torch.tensor([[UNK]])).logits[0]
            for texts in ([""], ["", *TEXTS]):
                batch = tokenizer(texts, padding=True, return_tensors="pt")
                torch.testing.assert_close(model(**batch).logits[0], unknown)


@pytest.mark.slow
def test_a_loaded_export_is_saved_and_trained_on_as_an_export(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments
    from transformers import Trainer as TheirTrainer

    def load(folder: Path | str, **options: object) -> torch.nn.Module:
        read = AutoModelForSequenceClassification.from_pretrained
        model: torch.nn.Module = read(folder, trust_remote_code=True, **options)
        return model

    assert main(["export", str(run), str(tmp_path / "first")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "first", trust_remote_code=True)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    model = load(tmp_path / "first")
    for name in ("second", "third"):
        expected = model(**batch).logits
        model.save_pretrained(tmp_path / name)  # type: ignore[operator]
        model = load(tmp_path / name)
        assert torch.equal(model(**batch).logits, expected)
    expected_records = clusterformer.load(tmp_path / "first").predict(TEXTS)
    assert clusterformer.load(tmp_path / "third").predict(TEXTS) == expected_records

    rows = [tokenizer(text) | {"labels": 0} for text in ["a fine film"] * 4]
    options = {"max_steps": 2, "save_steps": 2, "report_to": [], "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path / "out"), disable_tqdm=True, **options)
    TheirTrainer(model, arguments, train_dataset=rows).train()
    again = load(tmp_path / "out" / "checkpoint-2")
    assert torch.equal(again(**batch).logits, model.eval()(**batch).logits)
    assert not torch.equal(again(**batch).logits, expected)

    uploaded: list[str] = []
    hub = SimpleNamespace(
        create_repo=lambda name, **_: SimpleNamespace(repo_id=name),
        create_commit=lambda operations, **_: uploaded.extend(o.path_in_repo for o in operations),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.utils.hub.hf_api", lambda *_, **__: hub)
        card = SimpleNamespace(save=lambda path: None)
        patch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *_, **__: card)
        again.push_to_hub("me/model")  # type: ignore[operator]
    written = {path.name for path in (tmp_path / "third").iterdir()}
    assert set(uploaded) == written

    config = again.config  # as it comes from huggingface.co
    config.auto_map = {name: f"me/model--{path}" for name, path in config.auto_map.items()}
    named = type(again).from_pretrained(tmp_path / "first", config=config)  # type: ignore[attr-defined]
    assert named.config.id2label == {0: "bad", 1: "good"}

    assert str(load(tmp_path / "first", dtype="float16").dtype) == "torch.float16"
    assert type(pickle.loads(pickle.dumps(again))) is type(again)
    with pytest.raises(InputError, match="without dtype='half of it'"):
        type(again).from_pretrained(tmp_path / "first", dtype="half of it")  # type: ignore[attr-defined]

    for wrong in ({"num_labels": 3}, {"attn_implementation": "sdpa"}, {"device_map": "cpu"}):
        with pytest.raises(ValueError, match=f"as it was trained, without {next(iter(wrong))}="):
            load(tmp_path / "first", **wrong)


def test_a_loaded_export_gives_what_is_asked_for_as_models_of_transformers_do(
    run: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported", trust_remote_code=True)
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    read = partial(
        AutoModelForSequenceClassification.from_pretrained,
        tmp_path / "exported",
        trust_remote_code=True,
    )
    model = read()
    logits = model(**batch).logits
    assert model(**batch).hidden_states is None
    states = model(**batch, output_hidden_states=True).hidden_states
    assert [x.shape[:2] for x in states] == [batch["input_ids"].shape] * 3
    assert not any(torch.equal(*pair) for pair in pairwise(states))
    row = pool(states[-1], batch["attention_mask"].bool(), model.network.pooling)
    assert torch.equal(model.network.head(row), logits)

    found = model(**batch, labels=torch.tensor([0, 1, 0]), return_dict=False)
    assert isinstance(found, tuple)
    assert torch.equal(found[1], logits)
    always = read(output_hidden_states=True, return_dict=False)(**batch)
    assert torch.equal(always[1][-1], states[-1])

    for wrong in ({}, {"inputs_embeds": states[0]}, {**batch, "inputs_embeds": states[0]}):
        with pytest.raises(ValueError, match="give input_ids, no inputs_embeds"):
            model(**wrong)
    with pytest.warns(UserWarning, match="returns no attention weights"):
        assert model(**batch, output_attentions=True).attentions is None


@pytest.mark.slow
def test_accumulated_batches_move_a_loaded_export_as_one_batch_does(
    run: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments
    from transformers import Trainer as TheirTrainer

    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported", trust_remote_code=True)
    rows = [tokenizer("a fine film") | {"labels": number % 2} for number in range(4)]
    moved = []
    for size in (4, 1):
        read = AutoModelForSequenceClassification.from_pretrained
        model = read(tmp_path / "exported", trust_remote_code=True)
        for part in model.modules():
            if "Dropout" in type(part).__name__:
                part.p = 0.0
        start = {name: x.detach().clone() for name, x in model.named_parameters()}
        arguments = TrainingArguments(
            str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=size, optim="sgd",
            gradient_accumulation_steps=4 // size, learning_rate=0.1, max_grad_norm=0.0,
            save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        TheirTrainer(model, arguments, train_dataset=rows).train()
        steps = [(x - start[name]).flatten() for name, x in model.named_parameters()]
        moved.append(torch.cat(steps).detach())
    assert moved[0].any()
    torch.testing.assert_close(moved[1], moved[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["Matching", "Similarity"])
def test_a_pipeline_gives_what_a_run_of_pairs_gives(task: str, tmp_path: Path) -> None:
    from transformers import pipeline

    rng = random.Random(0)
    pairs = [[" ".join(rng.choices(WORDS, k=rng.randint(3, 9))) for _ in "ab"] for _ in range(40)]
    lines = ["first\tsecond\tlabel"]
    lines += [f"{first}\t{second}\t{rng.randint(0, 1)}" for first, second in pairs]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    fit = ["fit", "--pictures=false", f"--data={task}", f"--data.train={tmp_path / 'pairs.tsv'}"]
    fit += ["--data.joint=true", f"--model.pretrained={write_bert(tmp_path / 'bert')}", *SHORT]
    assert main([*fit, f"--runs={tmp_path}"]) == 0
    run, folder = tmp_path / task.lower() / "1", str(tmp_path / "exported")
    assert main(["export", str(run), folder]) == 0
    classify = pipeline("text-classification", model=folder, trust_remote_code=True)
    found = classify([{"text": first, "text_pair": second} for first, second in pairs])
    value = "score" if task == "Similarity" else "probability"
    expected = clusterformer.load(run).predict(pairs)
    values = [one[value] for one in expected]
    assert [one["score"] for one in found] == pytest.approx(values, abs=1e-6)
    if task == "Matching":
        assert [one["label"] for one in found] == [one["label"] for one in expected]


def test_a_configuration_that_does_not_parse_is_named_with_its_file(run: Path) -> None:
    saved = open_saved(run)
    saved.config["model"]["d_modell"] = 8
    with pytest.raises(InputError, match=re.escape(f"{saved.path}: ")):
        rebuild(saved)


def test_the_card_says_what_it_is(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "m"), "--licence", "apache-2.0"]) == 0
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    results = json.loads((run / "results.json").read_text())["results"]
    assert f"| test/accuracy | {results['test/accuracy']:.4f} |" in card
    assert "license: apache-2.0" in card
    for kind in ("Tokenizer", "ModelForSequenceClassification"):  # else transformers asks [y/N]
        assert f"Auto{kind}.from_pretrained(FOLDER, trust_remote_code=True)" in card
    assert "NeuralClusteringAttention(num_clusters=3" in card
    assert "labels: bad, good" in card
    base = yaml.safe_load((run / "config.yaml").read_text())["model"]["pretrained"]
    start = (
        "It started from the pretrained model" if base else "It was trained from random weights."
    )
    assert start in card
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["attention"]["init_args"]["num_clusters"] == 3
    assert main(["export", str(run / "checkpoints" / "last.ckpt"), str(tmp_path / "last")]) == 0
    card = (tmp_path / "last" / "README.md").read_text(encoding="utf-8")
    assert "Not known: no finished run was tested with these weights." in card  # but with best.ckpt


def test_the_card_imports_classes_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exported_own.py").write_text(
        "from clusterformer.attention import FullAttention\nclass Own(FullAttention): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main([*TOY, "--model.attention=exported_own.Own", f"--runs={tmp_path}"]) == 0
    assert main(["export", "toy/1", "exported", "--trust=exported_own,toy_task"]) == 0
    card = Path("exported/README.md").read_text(encoding="utf-8")
    code = card.partition("```python\n")[2].partition("```")[0]
    assert "import exported_own\nimport toy_task\n" in code
    assert "print(model.predict([TEXT]))" in code
    for name in ("exported_own", "toy_task"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    exec(code, {"FOLDER": "exported", "TEXT": "1 2 3"})


def test_texts_are_padded_behind_also_where_a_decoder_has_no_padding(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    files = PretrainedTokenizer.read(write_gpt2(tmp_path / "gpt2")).files
    settings = json.loads(files["tokenizer_config.json"]) | {"padding_side": "left"}
    for end in ("[SEP]", None):
        settings |= {"pad_token": None, "eos_token": end}
        tokenizer = PretrainedTokenizer(files | {"tokenizer_config.json": json.dumps(settings)})
        folder = tmp_path / str(end)
        folder.mkdir()
        for name, text in tokenizer_files(tokenizer, None).items():
            (folder / name).write_text(text, encoding="utf-8")
        theirs = AutoTokenizer.from_pretrained(folder)
        assert theirs.pad_token == (end or "[UNK]")
        mask = theirs(["a fine film", "fine"], padding=True)["attention_mask"]
        assert mask[1] == sorted(mask[1], reverse=True)
        assert sum(mask[1]) == len(mask[0]) - 2


def test_words_are_split_alike(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    texts = ["It's n't DON'T stop-gap, über 3.5 _x_ é! don't", "… “quoted” I'll we'd  two"]
    for split in ("words", "whitespace"):
        for lowercase in (True, False):
            ours = WordTokenizer.train(texts[:1], lowercase=lowercase, split=split)
            theirs = Tokenizer.from_str(tokenizer_files(ours, None)["tokenizer.json"])
            for text in texts:
                assert theirs.encode(text).ids == ours.encode(text), (split, lowercase, text)


@pytest.mark.parametrize("text", ["<unk> great <pad> fine", "a <pad>b <PAD>"])
def test_special_tokens_that_a_text_spells_are_words(tmp_path: Path, text: str) -> None:
    from transformers import AutoTokenizer

    made: list[Tokenizer] = [BytePairTokenizer.train([text, "a great film"] * 3, vocab_size=300)]
    for known in (["a great film"], ["a great film", text]):
        made += [WordTokenizer.train(known, split=split) for split in ("words", "whitespace")]
    for number, ours in enumerate(made):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in tokenizer_files(ours, None).items():
            (folder / name).write_text(content, encoding="utf-8")
        assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == ours.encode(text)


@pytest.mark.slow
def test_other_tasks_load_with_clusterformer_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text("a fine film and a plot\n" * 200)
    fit = [
        "fit",
        "--pictures=false",
        "--data=LanguageModeling",
        f"--data.train={tmp_path / 'text.txt'}",
    ]
    fit += ["--data.context=32", "--model.d_model=8", "--model.num_heads=2", *TRAINER]
    assert main([*fit, "--trainer.max_steps=2", f"--runs={tmp_path}"]) == 0
    run, folder = tmp_path / "languagemodeling" / "1", tmp_path / "exported"
    capsys.readouterr()
    assert main(["export", str(run), str(folder)]) == 0
    assert "transformers and" not in capsys.readouterr().out
    card = (folder / "README.md").read_text()
    assert "transformers cannot load this folder" in card
    assert "print(model.generate(TEXT))" in card
    given = {"prompt": "a fine", "tokens": 8, "temperature": 0.0}
    assert clusterformer.load(folder).generate(**given) == clusterformer.load(run).generate(**given)


def test_what_cannot_be_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "clusterformer.json").write_text("{}")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"none")
    for arguments, message in (
        ([], "give RUN and FOLDER, got 0 arguments"),
        (["--checkpoint", "a"], "no option --checkpoint; it is clusterformer export RUN FOLDER"),
        (["a", "b", "--fast"], "no option --fast; --help lists all"),
        (["a", "b", "--license=mit"], "no option --license; did you mean --licence?"),
        ([str(tmp_path / "none"), str(tmp_path / "new")], "no such run directory"),
        ([str(tmp_path), str(tmp_path / "full")], "already there and not empty"),
        ([str(tmp_path), "."], "has no name to be made by"),
        ([str(tmp_path / "broken"), str(tmp_path / "new")], "not weights of an exported model"),
    ):
        assert main(["export", *arguments]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
    assert not (tmp_path / "new").exists()
