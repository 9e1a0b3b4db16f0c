"""Configurations of the paper's experiments: what they see, and the paper's own form over them."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clusterformer.attention import (
    FullAttention,
    LocalAttention,
    MultipoleAttention,
    NeuralClusteringAttention,
)
from clusterformer.cli.options import Options
from clusterformer.models.decoder import Decoder
from clusterformer.models.transformer import Encoder
from clusterformer.module import ClusterFormer
from clusterformer.stack_groupings import StackGroupings, keys_seen
from clusterformer.training.config_files import resolve

TRANSLATION = ["wmt14", "iwslt14", "iwslt14-small", "multi30k", "tatoeba"]
PAIRS = ["snli", "mnli", "scitail", "sick", "quora", "wikiqa"]
TEXTS = ["mr", "subj", "cr", "mpqa", "20news"]
OWN = ["classify", "pairs", "translate"]


@functools.cache
def model_of(*names: str) -> ClusterFormer:
    arguments, _ = resolve([word for name in names for word in ("--config", f"{name}.yaml")])
    return Options([*arguments, "--trainer.accelerator", "cpu"], fitting=True).model


def seen_in(model: ClusterFormer, length: int) -> float:
    encoder = Encoder(replace(model.transformer_config, num_layers=2)).eval()
    x, mask = torch.randn(2, length, model.transformer_config.d_model), mask_of(length)
    out = encoder(x, mask)
    found = keys_seen([StackGroupings("", out.groupings, mask, out.cores)])
    assert found is not None
    return float(found[0] / found[1])


def mask_of(length: int) -> Tensor:
    return torch.ones(2, length, dtype=torch.bool)


@pytest.mark.parametrize("name", [*TRANSLATION, *PAIRS, *TEXTS])
def test_the_papers_experiments_see_what_the_paper_sees(name: str) -> None:
    model = model_of(name)
    core = model.transformer_config.make_encoder_core(0)
    assert isinstance(core, NeuralClusteringAttention)
    assert core.coupling
    length = 120 if name != "20news" else 1500
    share = 2 / 3 if name in TRANSLATION + PAIRS else 2 / core.num_clusters
    assert core.num_clusters == 3 or name in TEXTS
    assert seen_in(model, length) == pytest.approx(share, rel=0.1)


@pytest.mark.parametrize("name", OWN)
def test_own_data_has_the_widths_that_pay(name: str) -> None:
    assert seen_in(model_of(name), 40) == 1
    assert seen_in(model_of(name), 400) == 1  # full attention takes no longer
    assert seen_in(model_of(name), 1200) < 0.2


@pytest.mark.parametrize("name", [*TRANSLATION, *PAIRS, *TEXTS])
def test_the_papers_form_goes_over_every_one(name: str) -> None:
    base, model = model_of(name), model_of(name, "paper-form")
    config = replace(model.transformer_config, num_layers=2)
    core, usual = config.make_encoder_core(0), base.transformer_config.make_encoder_core(0)
    assert isinstance(core, NeuralClusteringAttention)
    assert (core.similarity, core.coupling, core.min_width) == ("dot", False, 1)
    assert (core.look_back, core.look_ahead) == (1, 0)
    assert core.num_clusters == usual.num_clusters  # type: ignore[union-attr]
    assert (config.norm, model.clustering_form) == ("post", "bounded")
    assert model.clustering_weight > 0
    assert model.sorting_weight > 0
    stack: nn.Module = Encoder(config)
    x, mask = torch.randn(2, 13, config.d_model), mask_of(13)
    hidden = stack(x, mask).hidden
    assert hidden.isfinite().all()
    if name in TRANSLATION:
        decoder = Decoder(config, cross=True)
        assert all(
            isinstance(core, NeuralClusteringAttention)
            and (core.similarity, core.causal, core.local_heads) == ("dot", True, 0)
            for core in (layer.attention.core for layer in decoder.layers)
        )
        assert decoder(x, mask, hidden, mask).hidden.isfinite().all()


@pytest.mark.parametrize("name", ["wikitext2", "books", "text", "cloze", "mqar", "needle"])
def test_a_language_model_in_the_papers_form_clusters_all_its_tokens(name: str) -> None:
    config = replace(model_of(name, "paper-form").transformer_config, num_layers=2)
    decoder, mask = Decoder(config).eval(), mask_of(1024)
    out = decoder(torch.randn(2, 1024, config.d_model), mask)
    found = keys_seen([StackGroupings("", out.groupings, mask, out.cores)])
    assert found is not None
    assert float(found[0] / found[1]) < 0.3  # chunks of 16 clusters; all, with dense beginnings


@pytest.mark.parametrize("name", ["muse-lm", "muse-books"])
def test_muse_looks_far_in_its_central_layer_alone(name: str) -> None:
    arguments, _ = resolve(["--config", f"{name}.yaml", "--trainer.accelerator=cpu"])
    options = Options(arguments, fitting=True)
    config, context = options.model.transformer_config, options.config["data.init_args.context"]
    cores = [config.make_decoder_core(index) for index in range(config.num_layers)]
    central = cores.pop(config.num_layers // 2)
    assert isinstance(central, MultipoleAttention)
    assert 2 * central.settings.block_size == context
    assert all(isinstance(core, LocalAttention) and core.window == 256 for core in cores)
    assert (options.model.betas, options.model.lr_floor) == ((0.9, 0.95), 0.1)


def test_the_unbounded_letter_is_an_option(tmp_path: Path) -> None:
    arguments, _ = resolve(["--config", "mr.yaml", "--config", "paper-form.yaml"])
    letter = Options([*arguments, "--model.clustering_form=bare"], fitting=True).model
    assert letter.clustering_form == "bare"
    assert not isinstance(letter.transformer_config.make_encoder_core(0), FullAttention)
