"""`clusterformer convert`: a pretrained model with another attention, taught by its own."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from clusterformer import huggingface
from clusterformer.cli.main import main
from clusterformer.models.pretrained_model import read_weights

pytest.importorskip("transformers")

WORDS = [f"word{number}" for number in range(60)]
SMALL = ["--max_length", "24", "--batch_size", "4", "--calibration", "8", "--steps", "3"]
CLUSTERS = ["--attention.num_clusters", "4", "--attention.block_size=4"]
CLUSTERS += ["--attention.dense_length", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random encoder with its tokenizer, and texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS])}
    library = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(root / "encoder")
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(root / "encoder")
    (root / "encoder" / "1_Pooling").mkdir()
    (root / "encoder" / "1_Pooling" / "config.json").write_text("{}")
    (root / "encoder" / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')
    numbers = torch.randint(60, (40, 30), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [" ".join(WORDS[n] for n in row) for row in numbers]
    (root / "texts.txt").write_text("\n".join(lines))
    (root / "texts.jsonl").write_text("\n".join(json.dumps({"said": line}) for line in lines))
    return root


def convert(folder: Path, made: Path, *options: str, text: str = "texts.txt") -> int:
    given = ["--text", str(folder / text), *SMALL, *options]
    return main(["convert", str(folder / "encoder"), str(made), *given])


def test_a_converted_folder_is_an_ordinary_model(folder, tmp_path, capsys) -> None:
    assert convert(folder, tmp_path / "made", *CLUSTERS) == 0, capsys.readouterr().err
    told = capsys.readouterr()
    assert "cosine with the original" in told.out
    assert "a token sees 79% of a text" in told.out
    assert "selects nothing" not in told.err
    model = huggingface.load(tmp_path / "made")
    assert type(model).__name__ == "BertForSequenceClassification"
    assert model.config.num_labels == 3
    saved = model.config.clusterformer["options"]
    assert (saved["block_size"], saved["global_tokens"], saved["local_heads"]) == (4, 1, 2)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    batch = tokenizer(" ".join(WORDS[:20]), return_tensors="pt")  # more than it had positions for
    assert model(**batch).logits.isfinite().all()
    assert (tmp_path / "made" / "1_Pooling" / "config.json").is_file()
    limits = json.loads((tmp_path / "made" / "sentence_bert_config.json").read_text())
    assert limits == {"max_seq_length": 24}  # else sentence-transformers cuts at the old one
    again = [str(tmp_path / "made"), str(tmp_path / "again"), "--text", str(folder / "texts.txt")]
    assert main(["convert", *again]) == 2
    assert "converted already, to NeuralClusteringAttention" in capsys.readouterr().err


def test_a_model_without_some_of_its_weights_is_refused(folder, tmp_path, capsys) -> None:
    source = shutil.copytree(folder / "encoder", tmp_path / "encoder")
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": 3}
    (source / "config.json").write_text(json.dumps(config))
    text = ["--text", str(folder / "texts.txt")]
    assert main(["convert", str(source), str(tmp_path / "made"), *text, *SMALL]) == 2
    said = "no weights for bert.encoder.layer.2.attention.output.LayerNorm.bias, which config.json"
    assert f"pretrained {source}: {said} asks for, and 15 more" in capsys.readouterr().err


def test_a_pooler_may_be_missing_only_where_no_head_reads_it(folder, tmp_path, capsys) -> None:
    from safetensors.torch import load_file, save_file
    from transformers import AutoModel

    source = shutil.copytree(folder / "encoder", tmp_path / "encoder")
    weights = load_file(source / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if "pooler" not in name}
    save_file(kept, source / "model.safetensors", {"format": "pt"})
    encoder = read_weights(AutoModel, source)
    assert torch.equal(
        encoder.embeddings.word_embeddings.weight, kept["bert.embeddings.word_embeddings.weight"]
    )
    text = ["--text", str(folder / "texts.txt")]
    assert main(["convert", str(source), str(tmp_path / "made"), *text, *SMALL]) == 2
    assert "no weights for bert.pooler.dense.bias, which config.json" in capsys.readouterr().err


def test_the_same_command_makes_the_same_weights(folder, tmp_path) -> None:
    found = []
    for name, text in (("a", "texts.txt"), ("b", "texts.txt"), ("c", "texts.jsonl")):
        assert convert(folder, tmp_path / name, *CLUSTERS, text=text) == 0
        found.append(huggingface.load(tmp_path / name).state_dict())
    assert all(torch.equal(x, found[1][key]) for key, x in found[0].items())
    assert not all(torch.equal(x, found[2][key]) for key, x in found[0].items())  # other windows


def test_a_conversion_that_was_killed_goes_on_to_the_same_weights(folder, tmp_path, caplog) -> None:
    made, checkpoint = tmp_path / "made", tmp_path / "made.checkpoint"
    options = ["--steps", "60", "--attention.exploration", "1", "--threads", "1", *CLUSTERS]
    given = [str(folder / "encoder"), str(made), "--text", str(folder / "texts.txt"), *SMALL]
    command = [sys.executable, "-m", "clusterformer", "convert", *given, *options]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        while not checkpoint.exists() and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    assert checkpoint.exists()
    assert not made.exists()
    for other in (["--lr", "0.1"], ["--dtype", "bf16"], ["--seed", "5"], ["--steps", "0"]):
        assert convert(folder, made, *options, *other) == 2  # not what was begun
        assert checkpoint.exists()
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    assert convert(folder, made, *options) == 2
    checkpoint.write_bytes(whole)
    assert convert(folder, made, *options) == 0
    assert "goes on after step" in caplog.text
    assert not checkpoint.exists()
    assert convert(folder, tmp_path / "at once", *options) == 0
    found, expected = (huggingface.load(tmp_path / name) for name in ("made", "at once"))
    for name, weight in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight), name


def test_mechanisms_without_clusters_of_ours_are_taught_too(folder, tmp_path, capsys) -> None:
    options = ["--attention", "ImprovedClusteredAttention", "--attention.num_clusters", "4"]
    assert convert(folder, tmp_path / "made", *options, "--attention.top_k", "3") == 0
    told = capsys.readouterr()
    assert "cosine with the original" in told.out
    assert "selects nothing" not in told.err  # each key counts, many by their cluster
    assert huggingface.load(tmp_path / "made").config.clusterformer["options"]["top_k"] == 3


def test_a_conversion_that_selects_nothing_says_so(folder, tmp_path, capsys) -> None:
    assert convert(folder, tmp_path / "made", "--steps", "0") == 0  # up to 512 tokens: all
    assert "selects nothing" in capsys.readouterr().err


def test_a_decoder_without_a_padding_token_stays_strictly_causal(folder, tmp_path, capsys) -> None:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "decoder")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=32,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path / "decoder")
    given = [str(tmp_path / "decoder"), str(tmp_path / "made"), *SMALL]
    texts = ["--text", str(folder / "texts.txt"), "--attention.chunk_size", "4"]
    assert main(["convert", *given, *texts, *CLUSTERS[:2]]) == 0, capsys.readouterr().err
    model = huggingface.load(tmp_path / "made")
    tokens = torch.randint(4, 60, (1, 30))
    changed = tokens.clone()
    changed[:, 20:] = 5
    with torch.no_grad():
        pair = [model(x).logits[:, :20] for x in (tokens, changed)]
    assert torch.equal(*pair)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attention", "NoAttention"], "got 'NoAttention'"),
        (["--attention.clusters", "many"], "clusters must be"),
        (["--attention.colour", "red"], "colour"),
        (["--attention.num_clusters", "x"], "num_clusters must be int or None, got 'x'"),
        (["--attention.num_clusters"], "needs a value"),
        (["--attention.block_size", "["], "--attention.block_size:1: not valid YAML"),
        (["--text", "missing.txt"], "missing.txt"),
        (["--max_length", "4"], "--max_length must be at least 8"),
        (["--steps", "-1"], "--steps"),
        (["--colour", "red"], "--colour"),
    ],
)
def test_bad_input_gives_one_line_and_no_folder(folder, tmp_path, capsys, options, said) -> None:
    assert convert(folder, tmp_path / "made", *options) == 2
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_a_model_without_its_tokenizer_is_refused(folder, tmp_path, capsys) -> None:
    shutil.copytree(
        folder / "encoder", tmp_path / "encoder", ignore=shutil.ignore_patterns("tokenizer*")
    )
    assert convert(tmp_path, tmp_path / "made", text=str(folder / "texts.txt")) == 2
    assert "no tokenizer; save it beside the model" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "made").exists()


def test_a_folder_that_holds_something_is_kept(folder, tmp_path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert convert(folder, tmp_path) == 2
    assert "not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
