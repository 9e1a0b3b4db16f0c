"""Whatever the user gives, the command line answers in one line, and never with a traceback."""

import random
import re
from pathlib import Path

import pytest
from toy_command import TOY, error_of

from clusterformer.cli.main import main
from clusterformer.cli.options import Options
from clusterformer.errors import InputError
from clusterformer.training.config_files import shipped

FAST = [*TOY, "--data.size=4", "--model.attention=FullAttention", "--model.d_ff=8"]
FAST += ["--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"]

OPTIONS = {
    "--trainer.val_check_interval=0": "trainer.val_check_interval must be above 0, got 0",
    "--trainer.max_epochs=0": "trainer.max_epochs must be above 0, got 0",
    "--trainer.max_steps=0": "trainer.max_steps must be above 0, got 0",
    "--trainer.limit_train_batches=0": "trainer.limit_train_batches must be above 0, got 0",
    "--trainer.limit_train_batches=0.0": "trainer.limit_train_batches must be above 0, got 0",
    "--trainer.accumulate_grad_batches=0": "trainer.accumulate_grad_batches must be at least 1",
    "--trainer.check_val_every_n_epoch=0": "trainer.check_val_every_n_epoch must be at least 1",
    "--trainer.gradient_clip_val=.nan": "trainer.gradient_clip_val must be finite, got nan",
    "--trainer.max_epochs=-5": "trainer.max_epochs must be at least -1, got -5",
    "--trainer.callbacks=EMAWeightAveraging": "EMAWeightAveraging cannot be used; --average N",
    "--trainer.callbacks=LearningRateFinder": "LearningRateFinder cannot be used; `comp",
    "--trainer.barebones=true": "trainer.barebones cannot be used",
    "--trainer.overfit_batches=5": "trainer.overfit_batches cannot be used",
    "--trainer.max_time=00:00:00:00": "trainer.max_time must be above 0, got 0:00:00",
    "--trainer.devices=foo": "devices",
    "--trainer.devices=1000000": "trainer.devices must be at most",
    "--trainer.precision=transformer-engine": "",
    "--trainer.strategy=deepspeed": "",
    "--seed_everything=-1": "seed_everything",
    "--seed_everything=99999999999": "seed_everything",
    "--model.attention=AttentionCore": "model.attention: AttentionCore is abstract; there is ",
    "--data=Task": "data",
    "--model.d_model=1000000000": "machine has",
    "--model.num_layers=1000000000": "machine has",
    f"--model.num_layers={'9' * 4000}": "needs over 1,000,000,000 GiB",
    f"--model.num_layers={'9' * 5000}": "",
    "--model.d_ff=100000000000": "machine has",
    "--model.lr=1e400": "model.lr must be finite, got inf",
    "--model.lr=.nan": "model.lr must be finite, got nan",
    "--model.warmup=.inf": "model.warmup must be finite, got inf",
    "--model.betas=[0.9, .nan]": "model.betas[1] must be finite, got nan",
    "--trainer.limit_val_batches=.nan": "trainer.limit_val_batches must be finite, got nan",
    "--runs=\0": "an argument holds a null byte",
    "--data.size=-1": "negative dimension",
    "--data.size=1000000000000000": "too large for the memory of this machine",
    f"--model.lr={'[' * 3000}": "model.lr",
}

NEURAL = "--model.attention=NeuralClusteringAttention"


@pytest.mark.parametrize("value", [".nan", ".inf", "0", "-1"])
@pytest.mark.parametrize("option", ["temperature", "alpha"])
def test_a_senseless_temperature_is_one_line(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of([*FAST, NEURAL, f"--model.attention.{option}={value}"], capsys)
    assert f"{option} must be {'finite' if value[0] == '.' else 'above 0'}" in message


@pytest.mark.parametrize(("option", "printed"), OPTIONS.items())
def test_a_senseless_option_is_one_line(
    option: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of([*FAST, option], capsys)
    assert printed in message
    assert len(message) < 1000


def test_a_file_that_has_the_name_of_a_value_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cpu", "auto", "FullAttention"):
        (tmp_path / name).write_text("class_path: os.system\n")
    assert Options(FAST[1:], fitting=True).make_trainer().num_devices == 1


COMMANDS = [["generate", "--temperature=nan"], ["translate", "--length_penalty=-inf"]]
COMMANDS += [["bench", "--limit=inf"], ["cluster", "--balance=nan"]]
COMMANDS += [["bench", "approximation", "--model=m", "--text=t", "--caps=nan"]]


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_number_that_is_not_finite_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    option, _, value = command[-1].partition("=")
    assert error_of(command, capsys) == f"{option} must be finite, got {value}"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
FILES = {
    "model: null\n": "bad.yaml: model must hold options, got None",
    "trainer: [1]\n": "bad.yaml: trainer must hold options, got [1]",
    "model: {5: 3}\n": "bad.yaml: model must hold options",
    "keep: null\n": "keep must not be null",
    "model: {warmup: null}\n": "model.warmup must not be null",
    "trainer: {accumulate_grad_batches: null}\n": "accumulate_grad_batches must not be null",
    "- 1\n": "bad.yaml: holds no options",
    "model: &m {attention: *m}\n": "bad.yaml:1: not valid YAML: an alias stands inside its own",
    BOMB: "bad.yaml:5: not valid YAML: more than 10,000 values",
    MERGES: "bad.yaml:5: not valid YAML: more than 10,000 values",
    f"model:\n  d_model: {'9' * 5000}\n": "bad.yaml:2: not a YAML mapping of options",
    f"model: {'[' * 900}{']' * 900}\n": "bad.yaml: nested too deeply",
    "model:\n\tlr: 1\n": "bad.yaml:2: not valid YAML: found character '\\t'",
    "model:\n  lr: 1\n  lr: 2\n": "bad.yaml:3: not valid YAML: 'lr' is given twice",
    "model: !!python/object/apply:os.system [id]\n": "bad.yaml:1: not valid YAML: could not deter",
    "model: {lr: 2020-13-45}\n": "bad.yaml:1: not a YAML mapping",
    "x: " + "y" * 2**20: "bad.yaml: 1048579 characters",
}


@pytest.mark.parametrize(("content", "printed"), FILES.items(), ids=range(len(FILES)))
def test_a_hostile_configuration_is_one_line(
    content: str, printed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content, encoding="utf-8")
    assert printed in error_of([*FAST, f"--config={path}"], capsys)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_one_line(
    encoding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes("model: {norm: é}\n".encode(encoding))
    assert "allowed is a text file in UTF-8" in error_of([*FAST, f"--config={path}"], capsys)


VALUES = ["", "null", ".nan", "-.inf", "-1", "0", "0.5", "1e400", "1e-300", "9" * 5000, "10" * 9]
VALUES += ["[]", "{}", "[1, x]", "{a: 1}", "[" * 2000, "'", "foo", "true", "2020-13-45", "*a"]
VALUES += ["&a [*a]", "!!python/name:os.system", "os.system", "clusterformer.cli.main.main"]
VALUES += ["AttentionCore", "FullAttention", "é\t", "\x00", "%", "- -", "--x", "class_path: 5"]


def mutated_text(text: str, rng: random.Random) -> bytes:
    """Change a configuration in one to four places: values, keys, indents, lines, bytes."""
    lines = text.splitlines()
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(7)
        if kind < 3:  # a value
            lines[at] = re.sub(r":.*", lambda _: f": {rng.choice(VALUES)}", lines[at], count=1)
        elif kind == 3:
            lines[at] = rng.choice([" ", "  ", "\t", ""]) + lines[at].strip()
        elif kind == 4:
            lines.insert(at, rng.choice(lines))
        elif kind == 5:
            lines[at] = lines[at].replace(rng.choice("aeiou:"), rng.choice(VALUES), 1)
        elif len(lines) > 2:
            del lines[at]
    found = bytearray("\n".join(lines).encode())
    if rng.random() < 0.2:
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


LEFT_OUT = re.compile(
    r"--(runs|wandb|config|data\.pause|data\.notes|trainer\.(devices|strategy|num_nodes|max_time))"
)


@pytest.fixture(scope="module")
def flags() -> list[str]:
    """The options of `fit` that neither wait nor start processes, as "--model.lr"."""
    parser = Options(FAST[1:], fitting=True).parser
    found = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    return [flag for flag in found if not LEFT_OUT.match(flag) and "help" not in flag]


COUNTS = [pytest.param(25, id="few"), pytest.param(1500, id="many", marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
def test_any_command_line_ends_well_or_in_one_line(
    count: int,
    flags: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = random.Random(count)
    for _ in range(count):
        chosen = [f"{rng.choice(flags)}={rng.choice(VALUES)}" for _ in range(rng.randint(1, 2))]
        capfd.readouterr()
        try:
            code = main([*FAST, *chosen])
        except SystemExit as done:  # --print_config
            code = done.code
        printed = capfd.readouterr().err.splitlines()
        assert code == 0 or (code == 2 and len(printed) == 1), (chosen, code, printed)


@pytest.mark.parametrize("count", COUNTS)
def test_any_configuration_is_read_or_refused(count: int, tmp_path: Path) -> None:
    rng = random.Random(count)
    path = tmp_path / "mutated.yaml"
    texts = [found.read_text(encoding="utf-8") for found in shipped().values()]
    messages = []
    for _ in range(count):
        path.write_bytes(mutated_text(rng.choice(texts), rng))
        try:
            Options(["--config", str(path), "--trainer.accelerator=cpu"], fitting=True)
        except InputError as error:
            messages.append(" ".join(str(error).split()))
    assert len(messages) > count / 4
    assert max(map(len, messages)) < 2000


MINE = """
from clusterformer.attention import FullAttention
from clusterformer.attention.base import AttentionCore
from toy_task import Toy

class MyAttention(FullAttention): ...
class MyTask(Toy): ...
class Half(AttentionCore): ...
class Broken(FullAttention):
    def __init__(self, d_model: int, num_heads: int) -> None:
        self.nothing.at_all
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of the user's in the current folder."""
    name = f"mymechanisms{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.slow
def test_classes_of_the_current_folder_train_and_are_measured(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [f"--model.attention={mine}.MyAttention", f"--data={mine}.MyTask"]
    assert main(["fit", *chosen, *FAST[2:], chosen[0]]) == 0
    small = ["--lengths", "32", "--tokens", "32", "--d_model", "8", "--num_heads", "2"]
    measured = ["bench", "--mechanisms", f"{mine}.MyAttention", *small, "--repeats", "1"]
    assert main([*measured, "--out", str(tmp_path / "rows.json")]) == 0  # memory in a new process
    assert f"{mine}.MyAttention" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["Half", "Nope"])
def test_bench_refuses_what_is_no_mechanism(
    name: str, mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of(["bench", "--mechanisms", f"{mine}.{name}", "--lengths", "32"], capsys)
    assert f"{mine}.{name} is no mechanism" in message


def test_an_error_in_a_class_of_the_user_names_its_line(
    mine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = error_of([*FAST, f"--model.attention={mine}.Broken"], capsys)
    assert "has no attribute 'nothing'" in message
    assert "CLUSTERFORMER_DEBUG=1 shows more" in message
