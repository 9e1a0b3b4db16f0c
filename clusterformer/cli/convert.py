"""`clusterformer convert`: a pretrained model with another attention, taught by its own."""

from __future__ import annotations

import argparse
import logging
from statistics import fmean
from typing import TYPE_CHECKING, Any

from clusterformer.cli.arguments import Arguments, available_device, set_threads
from clusterformer.errors import InputError, reading

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

HELP = """
usage: clusterformer convert MODEL FOLDER --text FILE ... [options]

Give a pretrained model of transformers another attention, and teach it to do what it did before. No
labels are needed: clusters are fitted to the model's own attention, then all its weights learn to
give the hidden states that they gave with it. clusterformer.huggingface.load(FOLDER) loads the
result; so does SentenceTransformer(FOLDER, trust_remote_code=True), and --model.pretrained FOLDER
starts a training from it. Killed, the same command goes on from FOLDER.checkpoint.

  MODEL                 folder of a model, or its name at huggingface.co
  FOLDER                folder to make
  --text FILE ...       texts like those that it is for: plain text, folders of it, or tables (.csv,
                        .tsv, .jsonl); also .gz
  --text_column NAME    column of the texts in tables (default: found)
  --attention NAME      class of the mechanism (default: NeuralClusteringAttention)
  --attention.OPTION V  an option of the mechanism, such as --attention.num_clusters 32. In encoders
                        neural clustering begins with global_tokens 1, and half of the heads local
  --max_length 512      tokens of a text; positions are extended if the model has fewer
  --steps 400           steps of training; 0 fits the clusters alone
  --batch_size 8        texts of a step
  --lr 2e-4             learning rate of the pretrained weights; new ones have five times that
  --calibration 160     texts that the clusters are fitted to; 0 to start from random clusters
  --dtype fp32          fp32, or bf16: autocast
  --device cpu          cpu, cuda or cuda:1;  --threads N;  --seed 0

examples:
  clusterformer convert all-MiniLM-L6-v2 minilm-4096 --text books/ --max_length 4096 --batch_size 1
  clusterformer convert my-encoder faster --text reviews.csv --attention.block_size 32
"""

_log = logging.getLogger(__name__)


def run(arguments: list[str]) -> None:
    """Convert, teach, write the folder."""
    import torch

    from clusterformer.cli.logs import show_notes
    from clusterformer.data.pretrained import find_pretrained, read_model, require_transformers
    from clusterformer.export.conversion import attach, extend, write_model
    from clusterformer.export.folder import unused_folder

    options, mechanism = _parse(arguments)
    folder = unused_folder(options.folder)
    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    if not options.steps and checkpoint.exists():
        raise InputError(
            f"{checkpoint}: a training that was stopped; give its --steps to go on, or remove it"
        )
    require_transformers()
    show_notes()
    source = find_pretrained(options.model)
    model, tokenizer = read_model(options.model, source)
    extended = extend(model, tokenizer, options.max_length)
    torch.manual_seed(options.seed)
    attach(model, options.attention, mechanism)
    _teach(model.to(options.device), tokenizer, options, checkpoint)
    write_model(model.cpu(), tokenizer, source, folder, extended=extended)
    checkpoint.unlink(missing_ok=True)
    print(f"{folder}: load it with clusterformer.huggingface.load({str(folder)!r})")


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Parse the options of the command, and those of the mechanism."""
    from clusterformer.training.config_files import load_yaml

    parser = Arguments()
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--text", nargs="+", required=True)
    parser.add_argument("--text_column")
    parser.add_argument("--attention", default="NeuralClusteringAttention")
    parser.add_number("--max_length", minimum=8, default=512)
    parser.add_number("--steps", minimum=0, default=400)
    parser.add_number("--batch_size", default=8)
    parser.add_number("--lr", type=float, minimum=0, default=2e-4)
    parser.add_number("--calibration", minimum=0, default=160)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", type=available_device, default="cpu")
    parser.add_number("--threads")
    parser.add_number("--seed", minimum=0, default=0)
    own, prefix, mechanism = [], "--attention.", {}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith(prefix):
            own.append(argument)
            continue
        name, _, value = argument.removeprefix(prefix).partition("=")
        if not value and (value := next(rest, "")) == "":
            raise InputError(f"{argument} needs a value")
        with reading(f"{prefix}{name}", "a YAML value") as at:
            mechanism[name] = load_yaml(value, at)
    options = parser.parse_args(own)
    set_threads(options.threads)
    return options, mechanism


def _teach(
    model: PreTrainedModel, tokenizer: Any, options: argparse.Namespace, checkpoint: Path
) -> None:
    """Fit the clusters, and train the model to do what it did."""
    import torch

    from clusterformer import huggingface
    from clusterformer.attention import NeuralClusteringAttention
    from clusterformer.data.text_windows import sample_windows
    from clusterformer.huggingface.dispatch import slots

    kinds = [type(slot.core) for slot in slots(model)]
    fitted = options.calibration if NeuralClusteringAttention in kinds else 0
    size, wanted = options.batch_size, fitted + options.steps * options.batch_size
    if not wanted:
        return
    rows = sample_windows(
        options.text, tokenizer, options.max_length, wanted, column=options.text_column
    )
    _log.info(f"{len(rows):,} texts of up to {options.max_length:,} tokens")
    batches = [_batch(rows[at : at + size]) for at in range(0, len(rows), size)]
    to_fit = -(-fitted // size)
    with torch.autocast(model.device.type, torch.bfloat16, enabled=options.dtype == "bf16"):
        if fitted and not checkpoint.exists():
            report = huggingface.calibrate(model, batches[:to_fit])
            before = fmean(layer.mass_before for layer in report)
            after = fmean(layer.mass_after for layer in report)
            _log.info(f"clusters fitted: {before:.0%} -> {after:.0%} of the attention is seen")
        if options.steps:
            found = huggingface.distill(
                model, batches[to_fit:] or batches, steps=options.steps, lr=options.lr,
                mechanism_lr=5 * options.lr, checkpoint=checkpoint,
            )  # fmt: skip
            print(f"cosine with the original: {found.before:.4f} -> {found.after:.4f}")
        seen = huggingface.keys_seen(model, {k: x.to(model.device) for k, x in batches[-1].items()})
    if seen is not None:
        print(f"a token sees {seen:.0%} of a text")
    if seen == 1 and not all(slot.core.sees_all for slot in slots(model)):
        _log.warning(
            f"at this length {options.attention} selects nothing: give --max_length and longer "
            "texts, or its options, such as --attention.dense_length 0"
        )


def _batch(rows: list[list[int]]) -> dict[str, Tensor]:
    """Pad token ids behind; a decoder's tokenizer may have no token for it, so it is token 0."""
    from clusterformer.data.batches import pad

    tokens, mask = pad(rows)
    return {"input_ids": tokens, "attention_mask": mask.long()}
