"""Encoder and decoder with full attention against those of PyTorch, with the same weights."""

import pytest
import torch
from torch import Tensor, nn

from clusterformer.attention import FullAttention, MultiHeadAttention
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder, DecoderLayer
from clusterformer.models.transformer import Encoder, EncoderLayer

WIDTH, HEADS, INNER, LAYERS = 16, 2, 24, 2


def config(norm: str) -> TransformerConfig:
    return TransformerConfig(
        FullAttention, d_model=WIDTH, num_heads=HEADS, d_ff=INNER, num_layers=LAYERS, norm=norm
    )


def learnt(stack: nn.Module) -> nn.Module:
    """Give all weights values of their own, those of norms and biases too."""
    for weight in stack.parameters():
        nn.init.normal_(weight, std=0.5)
    return stack.eval()


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = ours.q_proj, ours.k_proj, ours.v_proj
    theirs.in_proj_weight.data = torch.cat([part.weight for part in projections])
    theirs.in_proj_bias.data = torch.cat([part.bias for part in projections])
    theirs.out_proj.load_state_dict(ours.out_proj.state_dict())


def copy_layer(ours: EncoderLayer, theirs: nn.Module) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if isinstance(ours, DecoderLayer):
        copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.cross_norm)
    linear = [part for part in ours.feed_forward if isinstance(part, nn.Linear)]
    for number, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    for number, part in enumerate(linear, 1):
        getattr(theirs, f"linear{number}").load_state_dict(part.state_dict())


def final_norm(ours: nn.Module, norm: str) -> nn.LayerNorm | None:
    if norm == "post":
        return None
    theirs = nn.LayerNorm(WIDTH)
    theirs.load_state_dict(ours.norm.state_dict())
    return theirs


def text(*lengths: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return torch.randn(len(lengths), max(lengths), WIDTH), mask


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_the_encoder_is_pytorchs(norm: str) -> None:
    ours = learnt(Encoder(config(norm)))
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, INNER, batch_first=True, norm_first=norm == "pre"
    )
    theirs = nn.TransformerEncoder(
        layer, LAYERS, norm=final_norm(ours, norm), enable_nested_tensor=False
    ).eval()
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        copy_layer(own, other)
    x, mask = text(11, 4, 1)
    expected = theirs(x, src_key_padding_mask=~mask)
    torch.testing.assert_close(ours(x, mask).hidden[mask], expected[mask])


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_the_decoder_is_pytorchs(norm: str) -> None:
    ours = learnt(Decoder(config(norm), cross=True))
    layer = nn.TransformerDecoderLayer(
        WIDTH, HEADS, INNER, batch_first=True, norm_first=norm == "pre"
    )
    theirs = nn.TransformerDecoder(layer, LAYERS, norm=final_norm(ours, norm)).eval()
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        copy_layer(own, other)
    (x, mask), (memory, memory_mask) = text(11, 4, 1), text(3, 7, 5)
    later = torch.ones(11, 11, dtype=torch.bool).triu(1)
    expected = theirs(
        x, memory, tgt_mask=later, tgt_key_padding_mask=~mask, memory_key_padding_mask=~memory_mask
    )
    torch.testing.assert_close(ours(x, mask, memory, memory_mask).hidden[mask], expected[mask])
