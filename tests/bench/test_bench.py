"""`clusterformer bench`: what it prints and writes, and what it refuses."""

import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from clusterformer.attention import (
    FullAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
    mechanisms,
)
from clusterformer.bench import approximation, pretrained, regret
from clusterformer.bench.recording import Inputs, record
from clusterformer.bench.similarity import MeanPoolingEncoder, ScoredPairs
from clusterformer.bench.step_memory import step_memory
from clusterformer.bench.subjects import Setting, Subject
from clusterformer.bench.synthetic_text import write_parallel_text
from clusterformer.cli.bench_report import print_times
from clusterformer.cli.main import main
from clusterformer.errors import InputError

SMALL = ["--tokens", "64", "--d_model", "16", "--num_heads", "2", "--repeats", "1"]


def test_every_mechanism_at_every_length_is_measured(tmp_path: Path, capsys) -> None:
    out = tmp_path / "new" / "bench.json"
    arguments = ["bench", *SMALL, "--lengths", "16", "40", "--no-memory", "--out", str(out)]
    assert main([*arguments, "--mechanisms", "FullAttention", "paper", "neural"]) == 0
    report = json.loads(out.read_text())
    found = [(row["length"], row["batch"], row["mechanism"]) for row in report["rows"]]
    forms = ["FullAttention", "paper", "neural"]
    assert found == [(n, 64 // n, form) for n in (16, 40) for form in forms]
    for row in report["rows"]:
        assert len(row["samples_ms"]) == len(row["forward_samples_ms"]) == 1
        assert row["times_floor"] > 0
        assert 0 < row["keys_seen"] <= 1
    assert report["environment"]["packages"]["torch"]
    assert "started" not in report["environment"]  # it is described when all is measured
    assert report["environment"]["written"].endswith("+00:00")
    assert report["settings"]["threads"] >= 1
    table = capsys.readouterr().out.splitlines()
    assert table[2].split()[:2] == ["16", "FullAttention"]
    assert table[2].split()[-1] == "1.00"
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_layers_of_another_paper_have_its_names() -> None:
    setting = Setting(length=40, tokens=80, d_model=16, num_heads=2)
    cores = {name: Subject(name, setting)._layer.core for name in ("lsh-1", "lsh-4")}
    assert [(core.num_hashes, core.chunk_size) for core in cores.values()] == [(1, 32), (4, 32)]
    assert Subject("i-clustered-100", setting)._layer.core.num_clusters == 100


def test_times_are_compared_with_full_attention_by_either_name(capsys) -> None:
    rows = [{"length": 16, "mechanism": "full", "median_ms": 2.0}]
    rows.append({"length": 16, "mechanism": "lsh-1", "median_ms": 3.0})
    for number in (1, 2):
        print_times(rows[number - 1], rows[:number])
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "1.00",
        "1.50",
    ]


@pytest.mark.slow
def test_every_mechanism_is_measured_unless_told_otherwise(capsys) -> None:
    arguments = [*SMALL, "--lengths", "32", "--tokens", "32", "--no-memory"]
    for causal in ([], ["--causal"]):
        assert main(["bench", *arguments, *causal]) == 0
        shown = {line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]}
        kinds = {kind.__name__ for kind in mechanisms() if not causal or True in kind.causal_forms}
        assert shown == kinds - {"NeuralClusteringAttention"} | {"neural"} | (
            set() if causal else {"paper"}
        )


@pytest.mark.slow
def test_a_compiled_layer_is_measured_beside_the_eager_one(capsys) -> None:
    arguments = ["bench", *SMALL, "--no-memory", "--lengths", "64"]
    assert main([*arguments, "--mechanisms", "paper", "paper-compiled"]) == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[1] for row in rows] == ["paper", "paper-compiled"]
    assert rows[0].split()[-2] == rows[1].split()[-2]  # keys seen


@pytest.mark.slow
def test_a_stack_of_layers_and_fewer_parts_can_be_measured(capsys) -> None:
    arguments = ["bench", *SMALL, "--lengths", "16", "--no-memory", "--mechanisms", "neural"]
    assert main([*arguments, "--layers", "2", "--d_ff", "8"]) == 0
    assert main([*arguments, "--no-output"]) == 0
    assert capsys.readouterr().out.count("neural") == 2


@pytest.mark.slow
def test_a_batch_may_have_a_fixed_number_of_sequences_and_slow_ones_are_left_out(capsys) -> None:
    arguments = ["bench", *SMALL, "--no-memory", "--mechanisms", "FullAttention", "--batch", "2"]
    assert main([*arguments, "--lengths", "64", "128", "256"]) == 0  # more than --tokens
    assert capsys.readouterr().out.count("FullAttention") == 3
    assert main([*arguments, "--lengths", "64", "128", "256", "--limit", "1e-9"]) == 0
    assert capsys.readouterr().out.count("FullAttention") == 1
    assert main([*arguments, "--lengths", "256", "64", "--limit", "1e-9"]) == 0
    (row,) = [x for x in capsys.readouterr().out.splitlines() if "FullAttention" in x]
    assert row.split()[0] == "64"  # the shorter one


def test_a_layer_that_cannot_run_is_left_out(capsys, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from clusterformer.attention import AttentionCore\n"
        "class FloatOnly(AttentionCore):\n"
        "    def forward(self, q, k, v, **_):\n"
        "        raise RuntimeError('expected Float')\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", *SMALL, "--no-memory", "--lengths", "64"]
    assert main([*arguments, "--mechanisms", "mine.FloatOnly", "FullAttention"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("FullAttention") == 1
    told = "left out: mine.FloatOnly at 64 tokens in fp32: expected Float\n"
    assert printed.err == told
    out = tmp_path / "none.json"
    assert main([*arguments, "--mechanisms", "mine.FloatOnly", "--out", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"{told}clusterformer: error: no layer could run")
    assert not out.exists()


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "stopped.py").write_text(
        "from clusterformer.attention import FullAttention\n"
        "class Interrupted(FullAttention):\n"
        "    def forward(self, q, k, v, **rest):\n"
        "        if q.shape[2] > 32:\n"
        "            raise KeyboardInterrupt\n"
        "        return super().forward(q, k, v, **rest)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", *SMALL, "--no-memory", "--mechanisms", "stopped.Interrupted"]
    assert main([*arguments, "--lengths", "32", "64", "--out", "some.json"]) == 130
    [row] = json.loads(Path("some.json").read_text())["rows"]
    assert row["length"] == 32


def test_regret_compares_the_default_with_every_form(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(
        regret, "SHAPES", (regret.BatchShape(20, 2, 64), regret.BatchShape(70, 1, 64))
    )
    out = tmp_path / "regret.json"
    arguments = ["--repeats", "1", "--shapes", "3", "--threads", "1", "--out", str(out)]
    assert main(["bench", "regret", *arguments]) == 0
    report = json.loads(out.read_text())
    rows = report["rows"]
    assert [(r["length"], r["causal"], r["dtype"]) for r in rows] == [
        (20, False, "fp32"), (20, False, "bf16"), (70, True, "fp32"),
    ]  # fmt: skip
    for row in rows:
        assert row["regret"] >= 0
        assert row["median_ms"][row["best"]] == min(filter(None, row["median_ms"].values()))
        assert row["keys_seen"] == pytest.approx(1) or row["causal"]
    assert report["summary"]["worst_regret"] == max(row["regret"] for row in rows)
    assert "mean regret" in capsys.readouterr().out


def test_a_profile_lists_the_operations_of_a_step(tmp_path: Path, capfd) -> None:
    out = tmp_path / "profile.json"
    sizes = ["--length", "64", "--tokens", "64", "--d_model", "16", "--num_heads", "2"]
    arguments = ["--mechanisms", "paper", *sizes, "--repeats", "1", "--top", "3"]
    assert main(["bench", "profile", *arguments, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert next(row for row in rows if row["operation"] == "aten::addmm")["calls"] == 4
    assert rows[0]["ms"] == max(row["ms"] for row in rows)
    printed, noise = capfd.readouterr()
    assert len(printed.splitlines()) == 5
    assert not noise


def test_what_a_layer_mixes_is_recorded() -> None:
    full = FullAttention(16, 2)
    layer = MultiHeadAttention(full)
    x = torch.randn(3, 7, 16)
    (inputs,) = record(layer, lambda: layer(x))
    expected = layer(x).values
    mixed = full(*inputs, hidden=x)[0].transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.out_proj(mixed), expected)
    assert not full._forward_pre_hooks


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """Folder of a small Hugging Face encoder that knows the words a to h."""
    transformers = pytest.importorskip("transformers")
    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *"abcdefgh"])}
    spelling = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    spelling.pre_tokenizer = Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=spelling, pad_token="[PAD]")
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=10, intermediate_size=8, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_first_pass_of_an_encoder_is_not_timed(encoder: Path) -> None:
    pairs = ScoredPairs(["a b", "c d e"], ["a c", "f"], [1.0, 2.0])
    subject = MeanPoolingEncoder(encoder, 8)

    def work_at_first(*_: object) -> None:
        hook.remove()
        begun = time.process_time()
        while time.process_time() - begun < 1:
            pass

    hook = subject.model.register_forward_pre_hook(work_at_first)
    row = next(pretrained.measure(subject, [pairs], ["ClusteredAttention"]))
    assert row["cpu_seconds"] < 1


@pytest.mark.slow
def test_a_pretrained_encoder_is_measured_under_each_attention(encoder: Path, capsys) -> None:
    pairs, out = encoder / "pairs.tsv", encoder / "found.json"
    rows = ["a b c\tb c d\t3", "a a\th g f e d c b a\t0", "a b\ta b\t5", "c d\td c\t4"]
    pairs.write_text("\n".join(rows), encoding="utf-8")
    arguments = ["--model", str(encoder), "--pairs", str(pairs), "--num_clusters", "8"]
    assert main(["bench", "pretrained", *arguments, "--seeds", "2", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["settings"]["pairs"] == "pairs.tsv"
    improved, multipole = "ImprovedClusteredAttention", "MultipoleAttention"
    assert [(row["mechanism"], row["options"]) for row in report["rows"]] == [
        ("FullAttention", {}), ("ClusteredAttention", {}),
        (improved, {}), (improved, {"top_k": 64}), (improved, {"top_k": 96}),
        (multipole, {}), (multipole, {"damped": True, "exact_clusters": 2}),
    ]  # fmt: skip
    for row in report["rows"]:  # a cluster for each token: all are full attention
        assert row["spearman_with_full"] == pytest.approx([1, 1])
    printed = capsys.readouterr().out
    assert "+0.0000 ±0.0000" in printed
    assert "exact_clusters=2" in printed
    made = encoder / "made"
    text = encoder / "text.txt"
    text.write_text("a b c d e f g h " * 20, encoding="utf-8")
    texts = ["--text", str(text), "--steps", "1", "--calibration", "2", "--max_length", "8"]
    wide = ["--attention.block_size", "8", "--attention.dense_length", "0"]
    assert main(["convert", str(encoder), str(made), *texts, *wide]) == 0
    arguments += ["--converted", str(made), "--out", str(out)]
    assert main(["bench", "pretrained", *arguments]) == 0
    full, found = json.loads(out.read_text())["rows"]
    assert (full["keys_seen"], found["mechanism"]) == (1, "made")
    assert found["converted"]["options"]["block_size"] == 8
    assert found["spearman_with_full"][0] > 0.5
    capsys.readouterr()
    for option in ("--seeds", "--join", "--length", "--num_clusters"):
        assert main(["bench", "pretrained", *arguments, option, "0"]) == 2
        assert capsys.readouterr().err.endswith(f"{option} must be at least 1, got 0\n")


@pytest.mark.slow
def test_errors_on_what_a_trained_model_attends_to_are_measured(encoder: Path, capsys) -> None:
    text, out = encoder / "text.txt", encoder / "found.json"
    text.write_text("a b c d e f g h a a " * 10, encoding="utf-8")
    arguments = ["--model", str(encoder), "--text", str(text), "--out", str(out)]
    sizes = ["--length", "24", "--texts", "3", "--num_clusters", "3", "--repeats", "1"]
    assert main(["bench", "approximation", *arguments, *sizes]) == 0
    report = json.loads(out.read_text())
    assert report["settings"]["model"] == encoder.name
    full, *rows = report["rows"]
    assert full["of_layers"] == [0, 0]
    assert len(rows) == 3 + 3 + 1 + 3 + 2
    for row in rows:
        assert len(row["of_layers"]) == 2
        exact = row["mechanism"].startswith("Improved")  # its 32 best keys are all 24
        assert row["relative_squared_error"] > 0 or exact or row["options"]["exact_clusters"] > 2
    assert "exact_clusters=4" in capsys.readouterr().out
    for block, exact in ((None, False), (24, True)):  # half of the tokens, and all of them
        options = ["--causal", "--iterations", "1"]
        options += ["--block_size", str(block)] if block else []
        assert main(["bench", "approximation", *arguments, *sizes, *options]) == 0
        full, *rows = json.loads(out.read_text())["rows"]
        assert {row["options"]["block_size"] for row in rows} == {block or 12}
        assert (max(row["relative_squared_error"] for row in rows) < 1e-9) == exact
    clustered = ["--causal", "--mechanisms", "ClusteredAttention"]
    assert main(["bench", "approximation", *arguments, *sizes, *clustered]) == 2
    assert "causal" in capsys.readouterr().err
    assert main(["bench", "approximation", *arguments, "--length", "600"]) == 2
    assert "has positions for 512 tokens" in capsys.readouterr().err
    text.write_bytes(b"a b\n\xff\xfe")
    assert main(["bench", "approximation", *arguments]) == 2
    assert "text.txt:2: bytes ff are not utf-8" in capsys.readouterr().err


def test_mechanisms_without_clusters_have_errors_too() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = [Inputs(*(torch.randn(1, 2, 16, 8, generator=generator) for _ in range(3)))]
    forms = [form for name in ("OracleTopAttention", "ClusteredAttention")
             for form in approximation.forms_of(name, [4], [1])]  # fmt: skip
    assert forms == [("OracleTopAttention", {}), ("ClusteredAttention", {"num_clusters": 4})]
    *_, oracle, clustered = approximation.measure(layers, forms, repeats=1)
    assert oracle["relative_squared_error"] == pytest.approx(0, abs=1e-9)  # its keys are all
    assert clustered["relative_squared_error"] > 0.01
    with pytest.raises(InputError, match="ReformerAttention shares queries and keys"):
        list(approximation.measure(layers, [("ReformerAttention", {})], repeats=1))


def test_what_is_no_text_or_encoder_gets_one_line(tmp_path: Path, capsys) -> None:
    pytest.importorskip("transformers")
    exported, text = tmp_path / "exported", tmp_path / "text.txt"
    exported.mkdir()
    (exported / "config.json").write_text('{"model_type": "clusterformer"}', encoding="utf-8")
    arguments = ["approximation", "--model", str(exported), "--text", str(text)]
    text.write_bytes(b"tea\ncaf\xe9 au lait")
    assert main(["bench", *arguments]) == 2
    assert f"{text}:2: bytes e9 are not utf-8" in capsys.readouterr().err
    text.write_bytes(b"tea")
    for further in (arguments, ["converted", *arguments[1:], "--calibrate", str(text)]):
        assert main(["bench", *further]) == 2
        error = capsys.readouterr().err
        assert "a model that `clusterformer export` wrote" in error
        assert error.count("\n") == 1


def test_a_run_of_another_task_has_no_layers_to_compare(tmp_path: Path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c", encoding="utf-8")
    few = ["--data.num_tokens=16", "--data.valid_texts=2", "--data.test_texts=2"]
    small = ["--model.d_model=8", "--model.num_heads=2", "--model.num_layers=1", "--model.d_ff=8"]
    quick = ["--trainer.max_steps=1", "--trainer.accelerator=cpu", "--pictures=false"]
    assert main(["fit", "--data=Partner", *few, *small, *quick, f"--runs={tmp_path}"]) == 0
    run = tmp_path / "partner" / "1"
    capsys.readouterr()
    assert main(["bench", "approximation", "--model", str(run), "--text", str(text)]) == 2
    assert f"{run}: a run of Partner; --model takes a run of Lan" in capsys.readouterr().err


@pytest.mark.slow
def test_memory_is_that_of_a_fresh_process(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    arguments = ["--d_model", "64", "--num_heads", "2", "--repeats", "1", "--out", str(out)]
    sizes = ["--lengths", "1024", "--tokens", "8192", "--mechanisms", "FullAttention"]
    assert main(["bench", *arguments, *sizes]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    rows_mib = 8192 * 64 * 4 / 2**20
    assert 3 * rows_mib < row["peak_mib"] < 60 * rows_mib
    sizes = ["--lengths", "1024", "--tokens", "1024", "--mechanisms", "paper"]
    assert main(["bench", *arguments, *sizes]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["peak_mib"] < 20  # torch._dynamo, which its kernel imports, is not counted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanisms", "Ful"], "no mechanism 'Ful'; there is"),
        (["--lengths", "512", "--tokens", "64"], "--lengths must be in 1..--tokens (64)"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--lenghts", "5"], "no option --lenghts; did you mean --lengths?\n"),
        (["--foo"], "no option --foo; --help lists all\n"),
        (["--d_model", "30"], "--num_heads must divide --d_model, got 4 and 30"),
        (["decode", "--d_model", "30"], "--num_heads must divide --d_model, got 4 and 30"),
        (["decode", "--dtype", "bf16"], "no option --dtype; "),
        (["regret", "--mechanisms", "full"], "no option --mechanisms; "),
        (["mass", "--repeats", "3"], "no option --repeats; "),
        (["--out", "plot.png"], "--out: must be a file for JSON, got plot.png"),
        (["pairs", "--out", "."], "--out: must be a file for JSON, got ."),
        (["profile", "--no-memory"], "no option --no-memory; "),
        (["profile", "--mechanisms", "full", "Ful"], "no mechanism 'Ful'; there is"),
        (["parallel", "--predict", "--out", "a.json"], "--out writes measurements, and --predict"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], message: str, capsys) -> None:
    assert main(["bench", *arguments]) == 2
    out, error = capsys.readouterr()
    assert message in error
    assert error.count("\n") == 1
    assert not out  # nothing was measured


def test_the_papers_form_keeps_its_options() -> None:
    from clusterformer.attention import PAPER_FORM

    core = NeuralClusteringAttention(16, 2, **PAPER_FORM)
    assert core.log_alpha is None
    assert core.space.weight.shape == (16, 16)


@pytest.mark.slow
def test_preparation_of_pairs_is_measured(tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "pairs.json"
    assert main(["bench", "pairs", "--pairs", "300", "--vocab_size", "300", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [row["stage"] for row in rows] == ["byte pairs", "tokens", "batches"]
    assert rows[0]["pairs"] == 300
    assert 250 < rows[1]["pairs"] == rows[2]["pairs"]
    assert all(row["seconds"] > 0 and row["peak_mib"] > 100 for row in rows)
    assert not (tmp_path / "cache" / "clusterformer").exists()
    assert capfd.readouterr().err.startswith("train.en: pairs dropped: ")
    assert main(["bench", "pairs", "--pairs", "0"]) == 2
    assert "--pairs must be at least 1, got 0" in capfd.readouterr().err


@pytest.mark.slow
def test_the_first_stage_of_pairs_has_its_imports_behind_it() -> None:
    code = "import sys; from clusterformer.bench import parallel_text; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "tokenizers", "clusterformer.data.parallel"} <= set(done.stdout.split())


@pytest.mark.slow
def test_memory_is_that_of_the_threads_that_are_timed() -> None:
    check = partial(exec, "import torch; assert torch.get_num_threads() == 3")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert step_memory(check, partial(eval, "lambda: None"), "cpu") >= 0
    finally:
        torch.set_num_threads(before)


def test_pairs_are_made_up_from_their_seed(tmp_path: Path) -> None:
    made = []
    for number, seed in enumerate((0, 0, 1)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        made.append([path.read_text() for path in write_parallel_text(folder, 100, seed)])
    assert made[0] == made[1] != made[2]
    english, german = made[0]
    assert len(english.splitlines()) == len(german.splitlines()) == 100
    assert 20 < len(english.split()) / 100 < 30


@pytest.mark.slow
def test_a_converted_encoder_is_compared_with_itself(encoder: Path, capsys) -> None:
    text, out = encoder / "text.txt", encoder / "found.json"
    text.write_text("a b c d e f g h " * 200, encoding="utf-8")
    arguments = ["--model", str(encoder), "--text", str(text), "--calibrate", str(text)]
    arguments += ["--length", "16", "--texts", "3", "--calibration_texts", "5"]
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(encoder)
    for layer in model.encoder.layer:  # random weights of 0.02 look at all tokens alike
        for part in layer.attention.self.children():
            getattr(part, "weight", torch.ones(1)).data *= 10
        layer.attention.output.dense.weight.data *= 10
    model.save_pretrained(encoder)
    assert main(["bench", "converted", *arguments, "--keys", "4", "0.2", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 28
    for row in rows:
        assert len(row["text"]) == len(row["token"]) == 3
        if row["share"] == 4:
            assert row["keys_seen"] == 1
            assert min(row["token"]) > 0.99
        else:
            assert row["keys_seen"] < 0.5
            assert min(row["token"]) < 0.99
    assert "16 tokens" in capsys.readouterr().out
    text.write_text("a b c", encoding="utf-8")
    assert main(["bench", "converted", *arguments]) == 2
    assert "too short for 3 texts of" in capsys.readouterr().err
