"""Every shipped configuration parses, builds its model, and says at its top what it is."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from clusterformer.cli.options import Options
from clusterformer.data.pretrained import open_pretrained
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.models.transformer import Encoder
from clusterformer.task import Task
from clusterformer.tasks.generated.cloze import Cloze
from clusterformer.tasks.generated.needle import Needle
from clusterformer.tasks.generated.recall import Recall
from clusterformer.tasks.language_modeling import LanguageModeling
from clusterformer.training.config_files import resolve, shipped

CONFIGS = sorted(shipped())


def overlaid(name: str) -> list[str]:
    """Arguments for that configuration; what sets no data is meant to go over another one."""
    base = [] if "data" in yaml.safe_load(read(name)) else ["--config", "quickstart.yaml"]
    return [*base, "--config", name]


def read(name: str) -> str:
    return shipped()[name].read_text(encoding="utf-8")


def test_some_are_shipped() -> None:
    assert {"quickstart.yaml", "mr.yaml"} <= set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_builds_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments, _ = resolve(overlaid(name))
    options = Options([*arguments, "--trainer.accelerator", "cpu"], fitting=True)
    assert isinstance(options.task, Task)
    clip = options.make_trainer().gradient_clip_val
    assert clip is not None or "gradient_clip_val: null" in read(name)
    config = options.model.transformer_config
    if config.pretrained is not None:
        if name == "mr-pretrained.yaml":  # all start from one encoder
            check_pretrained(config)
        return
    config = replace(config, num_layers=min(config.num_layers, 2))
    x, mask = torch.randn(2, 7, config.d_model), torch.ones(2, 7, dtype=torch.bool)
    causal = isinstance(options.task, LanguageModeling | Cloze | Needle | Recall)
    stack = Decoder(config) if causal else Encoder(config)
    assert stack(x, mask).hidden.isfinite().all()


def check_pretrained(config: TransformerConfig) -> None:
    """Build the encoder that a configuration starts from, if it is on this machine."""
    pytest.importorskip("transformers")
    try:
        source = open_pretrained(str(config.pretrained))
    except InputError as error:
        pytest.skip(str(error))
    encoder = PretrainedEncoder(config, source.config).eval()
    tokens, mask = torch.randint(100, 200, (2, 7)), torch.ones(2, 7, dtype=torch.bool)
    with torch.no_grad():
        assert encoder(tokens, mask).hidden.isfinite().all()


@pytest.mark.parametrize("option", ["num_mels", "deltas"])
def test_the_features_of_spoken_digits_change_one_by_one(option: str) -> None:
    arguments, _ = resolve(["--config", "spoken-digits.yaml", f"--data.features.{option}", "1"])
    assert isinstance(Options(arguments, fitting=True).task, Task)


@pytest.mark.parametrize("name", CONFIGS)
def test_it_says_what_it_is(name: str) -> None:
    assert read(name).startswith("# ")


def test_names_are_unique() -> None:
    root = Path(__file__).resolve().parents[2] / "configs"
    found = [path for path in root.rglob("*.yaml") if path.parent.name != "compare"]
    assert sorted(path.name for path in found) == CONFIGS
