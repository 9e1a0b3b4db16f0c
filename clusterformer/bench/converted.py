"""Agreement of a converted encoder with its own full attention, by the form of the clusters.

B batch   N tokens   E model width
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer import huggingface
from clusterformer.bench.report import Row
from clusterformer.bench.similarity import MeanPoolingEncoder
from clusterformer.data.tables import read_text, text_lines
from clusterformer.errors import InputError
from clusterformer.huggingface.dispatch import slots
from clusterformer.huggingface.positions import num_positions
from clusterformer.huggingface.recording import calls
from clusterformer.huggingface.visibility import share_seen


class Form(NamedTuple):
    """Division of heads and tokens by what they attend to.

    Attributes:
        local: Share of the heads that attend to a window.
        ends: Number of global tokens at each end of a text.
        each_head: Whether each head that clusters has a clustering of its own.
    """

    local: float
    ends: int
    each_head: bool = False


FORMS = {
    "clusters": Form(0.0, 0),
    "clusters, half of the heads local": Form(0.5, 0),
    "clusters, global tokens": Form(0.0, 1),
    "clusters, global tokens, half local": Form(0.5, 1),
    "clusters for each head, global tokens": Form(0.0, 1, each_head=True),
    "clusters for each head, global tokens, half local": Form(0.5, 1, each_head=True),
    "a window, global tokens": Form(1.0, 1),
    "a window": Form(1.0, 0),
}


def read_pieces(path: Path, encoder: MeanPoolingEncoder, count: int) -> Tensor:
    """Cut a file into texts of equal length, and take some, equally far apart.

    Args:
        path: Plain text, or JSON lines whose texts, under "text", are joined; either also `.gz`.
        encoder: Encoder with its tokenizer, and the length of a text.
        count: Number of texts.

    Returns:
        Token ids with the special tokens of a text, (B, N).

    Raises:
        InputError: if the file cannot be read, or is too short.
    """
    text = read_text(path)
    if ".jsonl" in path.suffixes:
        try:
            text = "\n\n".join(json.loads(line)["text"] for line in text_lines(text))
        except (ValueError, KeyError, TypeError):
            raise InputError(f'{path}: expected JSON lines with "text"') from None
    tokenizer, apart = encoder.tokenizer, max(1, len(text) // count)
    special = tokenizer.num_special_tokens_to_add()
    pieces = []
    for at in range(count):  # a token has fewer than 16 letters
        piece = text[at * apart : (at + 1) * apart][: 16 * encoder.length]
        ids = tokenizer(piece, truncation=True, max_length=encoder.length)["input_ids"]
        if len(ids) < encoder.length:
            wanted = count * (encoder.length - special)
            raise InputError(f"{path}: too short for {count} texts of {wanted // count} tokens")
        pieces.append(ids)
    return torch.tensor(pieces)


def measure(
    encoder: MeanPoolingEncoder,
    texts: Tensor,
    calibration: Tensor,
    shares: Sequence[float],
    *,
    num_clusters: int = 16,
    steps: int = 4,
    seed: int = 0,
) -> Iterator[Row]:
    """Compare each form of the clusters with full attention, at equal numbers of keys.

    Args:
        encoder: A pretrained encoder; its attention is replaced in place.
        texts: Token ids to measure on, (B, N).
        calibration: Token ids that clusters are fitted to, (B', N).
        shares: Shares of the keys that a token sees.
        num_clusters: Number of clusters.
        steps: Number of steps of `calibrate` on each batch.
        seed: Seed of the random clusters, and of `calibrate`.

    Yields:
        For each form and share, first with random and then with fitted clusters: the share of keys
        seen, and the cosine with full attention of each text's mean vector, and of its tokens.
    """
    model: Any = encoder.model
    positions = num_positions(model)
    if positions is not None and encoder.length > positions:
        huggingface.extend_positions(model, encoder.length)
    full, _ = _encode(model, texts)
    heads = model.config.num_attention_heads
    for name, form in FORMS.items():
        found: list[dict[str, Tensor]] = []
        for fitted in (False, True)[: 1 if form.local == 1 else 2]:
            for share in shares:
                width = max(1, round((share * encoder.length - 2 * form.ends) / 3))
                torch.manual_seed(seed)
                local = round(form.local * heads)
                options = {"local_heads": local, "global_tokens": form.ends}
                if form.each_head:
                    options["num_clusterings"] = heads - local
                sizes = {"num_clusters": num_clusters, "block_size": width, "local_window": width}
                huggingface.attach(
                    model, "NeuralClusteringAttention", dense_length=0, alpha=0.1, **sizes,
                    **options,
                )  # fmt: skip
                if fitted and not found:
                    batches = ({"input_ids": x} for x in calibration.split(4))
                    huggingface.calibrate(model, batches, steps=steps, seed=seed)
                    found = [slot.core.state_dict() for slot in slots(model)]
                for slot, state in zip(slots(model), found, strict=False):
                    slot.core.load_state_dict(state)
                hidden, seen = _encode(model, texts)
                yield {
                    "form": name,
                    "fitted": fitted,
                    "share": share,
                    "options": options | sizes,
                    "keys_seen": seen,
                    "text": F.cosine_similarity(hidden.mean(1), full.mean(1), dim=-1).tolist(),
                    "token": F.cosine_similarity(hidden, full, dim=-1).mean(1).tolist(),
                }
    huggingface.detach(model)


@torch.no_grad()
def _encode(model: Any, texts: Tensor) -> tuple[Tensor, float]:
    """Compute hidden states (B, N, E), and the share of keys seen, the mean of the layers."""
    hidden, seen = [], []
    for batch in texts.split(4):
        with calls(model) as found:
            hidden.append(model(input_ids=batch).last_hidden_state)
        share = share_seen(found)
        assert share is not None
        seen.append(share)
    return torch.cat(hidden), sum(seen) / len(seen)
