"""The decoder: stepwise as at once with every mechanism, and nothing from the future."""

import inspect
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from clusterformer.attention import (
    AttentionCore,
    FullAttention,
    MultiHeadAttention,
    NeuralClusteringAttention,
    mechanisms,
)
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import Decoder, State
from clusterformer.models.seq2seq import Seq2Seq

WIDTH = 32
SMALL = {
    "num_clusters": 5, "min_width": 2, "chunk_size": 4, "window": 5, "block_size": 8, "top_k": 2,
    "dense_length": 8,
}  # fmt: skip
STRICT = [cls for cls in mechanisms() if True in cls.causal_forms]
READERS = [cls for cls in mechanisms() if cls.independent_queries]


def name(value: object) -> str:
    return getattr(value, "__name__", str(value))


def small(cls: type[AttentionCore]) -> partial[AttentionCore]:
    """Several blocks, and some keys left out, at the lengths used here."""
    known = inspect.signature(cls).parameters
    return partial(cls, **{key: value for key, value in SMALL.items() if key in known})


def config(cls: type[AttentionCore] = FullAttention, **options) -> TransformerConfig:
    return TransformerConfig(
        small(cls), **{"d_model": WIDTH, "d_ff": 64, "num_layers": 2, **options}
    )


def stepwise(decoder: Decoder, x: Tensor, state: State) -> tuple[Tensor, State]:
    hidden = []
    for token in x.split(1, dim=1):
        found, state = decoder.step(token, state)
        hidden.append(found)
    return torch.cat(hidden, 1), state


def mask_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("cls", STRICT, ids=name)
@pytest.mark.parametrize("cross", [False, True], ids=["without memory", "with memory"])
@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@torch.no_grad()
def test_step_by_step_equals_the_whole_text(cls, cross: bool, norm: str) -> None:
    decoder = Decoder(config(cls, norm=norm), cross=cross).eval()
    x = torch.randn(3, 29, WIDTH)
    memory = (torch.randn(3, 7, WIDTH), mask_of([7, 4, 1], 7)) if cross else ()
    found, state = stepwise(decoder, x, decoder.start(x, *memory))
    torch.testing.assert_close(found, decoder(x, None, *memory).hidden)
    assert state.position.tolist() == [29, 29, 29]


@pytest.mark.parametrize("cls", STRICT, ids=name)
@torch.no_grad()
def test_rows_of_a_state_may_be_selected_and_overwritten(cls) -> None:
    """What a beam does: hypotheses die, others take their places, texts leave the batch."""
    decoder = Decoder(config(cls), cross=True).eval()
    past, memory = torch.randn(6, 21, WIDTH), torch.randn(3, 7, WIDTH)
    mask = mask_of([7, 4, 1], 7)
    state = decoder.start(memory, memory, mask).select(torch.arange(3).repeat_interleave(2))
    _, state = stepwise(decoder, past, state)
    state.overwrite(torch.tensor([1]), torch.tensor([0]))  # text 0 goes on with its row 0 only
    rows, texts = torch.tensor([1, 0, 5, 4]), torch.tensor([0, 2])  # and text 1 is done
    now = torch.randn(4, 9, WIDTH)
    found, _ = stepwise(decoder, now, state.select(rows, texts))
    whole = torch.cat([past[[0, 0, 5, 4]], now], 1)
    of_row = texts.repeat_interleave(2)
    expected = decoder(whole, None, memory[of_row], mask[of_row]).hidden[:, 21:]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("cls", STRICT, ids=name)
@torch.no_grad()
def test_bfloat16_decodes_as_far_from_float32_as_the_whole_text(cls) -> None:
    """What is grouped may tip at a rounding, so medians are compared."""
    decoder = Decoder(config(cls, num_layers=1), cross=True).eval()
    x, memory = torch.randn(3, 29, WIDTH), torch.randn(3, 7, WIDTH)
    exact = decoder(x, None, memory).hidden
    with torch.autocast("cpu", torch.bfloat16):
        whole = decoder(x, None, memory).hidden
        steps, _ = stepwise(decoder, x, decoder.start(x, memory))
    errors = [(found.float() - exact).abs().median() for found in (whole, steps)]
    assert errors[1] <= 2 * errors[0] + 1e-6


@pytest.mark.parametrize("cls", STRICT, ids=name)
@torch.no_grad()
def test_autocast_selects_the_same_step_by_step_as_at_once(cls) -> None:
    """One key selected in the other pass alone moves a token by far more than a rounding."""
    for seed in range(3):
        torch.manual_seed(seed)
        layer, x = MultiHeadAttention(small(cls)(64, 4, causal=True)).eval(), torch.randn(2, 99, 64)
        with torch.autocast("cpu", torch.bfloat16):
            whole, cache, steps = layer(x).values.float(), layer.cache(x), []
            for token in x.split(1, dim=1):
                values, cache = layer.step(token, cache)
                steps.append(values.float())
            first, cache = layer.prefill(x[:, :50], layer.cache(x))
            after, _ = layer.step(x[:, 50:51], cache)
        filled = torch.cat([first, after], 1).float()
        for found in (torch.cat(steps, 1), filled):
            errors = (found - whole[:, : found.shape[1]]).norm(dim=-1)
            assert errors.max() < 0.1 * whole.norm(dim=-1).mean()


@pytest.mark.parametrize("cls", READERS, ids=name)
@torch.no_grad()
def test_a_reader_of_memory_sees_no_later_token(cls) -> None:
    decoder = Decoder(config(cross_attention=small(cls)), cross=True).eval()
    x, memory = torch.randn(2, 19, WIDTH), torch.randn(2, 31, WIDTH)
    hidden = decoder(x, None, memory).hidden
    found, _ = stepwise(decoder, x, decoder.start(x, memory))
    torch.testing.assert_close(found, hidden)
    for cut in (1, 8, 18):
        changed = torch.cat([x[:, :cut], 3 * torch.randn(2, 19 - cut, WIDTH)], 1)
        found = decoder(changed, None, memory).hidden[:, :cut]
        torch.testing.assert_close(found, hidden[:, :cut])


@pytest.mark.parametrize(
    "cls", [c for c in mechanisms() if c.cross and not c.independent_queries], ids=name
)
def test_a_reader_that_would_leak_is_refused(cls) -> None:
    with pytest.raises(ValueError, match="groups queries"):
        Decoder(config(cross_attention=small(cls)), cross=True)


@pytest.mark.parametrize("filler", [5.0, float("nan")])
def test_padding_changes_nothing(filler: float) -> None:
    decoder = Decoder(config(NeuralClusteringAttention), cross=True).eval()
    text, memory = torch.randn(1, 9, WIDTH), torch.randn(1, 6, WIDTH)
    x, source = (torch.full((2, n, WIDTH), filler) for n in (14, 10))
    x[0, :9], source[0, :6] = text, memory
    x[1], source[1] = torch.randn(14, WIDTH), torch.randn(10, WIDTH)
    masks = mask_of([9, 14], 14), mask_of([6, 10], 10)
    hidden = decoder(x, masks[0], source, masks[1]).hidden[0, :9]
    torch.testing.assert_close(hidden, decoder(text, None, memory).hidden[0])
    state = decoder.start(source, source, masks[1])
    torch.testing.assert_close(stepwise(decoder, x[:, :9], state)[0][0], hidden)


def test_recomputing_changes_no_gradient() -> None:
    x, memory = torch.randn(2, 19, WIDTH), torch.randn(2, 5, WIDTH)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(1)
        shape = config(NeuralClusteringAttention, dropout=0.0, recompute=recompute)
        decoder = Decoder(shape, cross=True)
        decoder(x, None, memory).hidden.square().sum().backward()
        gradients.append({n: p.grad for n, p in decoder.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*gradients)


def test_the_users_own_causal_form_is_kept() -> None:
    masked = partial(NeuralClusteringAttention, num_clusters=3, causal="masked")
    decoder = Decoder(config(decoder_attention=masked))
    assert [layer.attention.core.causal for layer in decoder.layers] == ["masked"] * 2
    with pytest.raises(ValueError, match="cannot decode stepwise"):
        decoder.start(torch.zeros(1, WIDTH))


@pytest.mark.parametrize(
    "cls", [cls for cls in mechanisms() if True not in cls.causal_forms], ids=name
)
def test_a_mechanism_without_causal_form_says_what_to_set(cls) -> None:
    with pytest.raises(ValueError, match=r"has no causal=True.*model\.decoder_attention"):
        Decoder(config(cls))
    assert Decoder(config(cls, decoder_attention=FullAttention))


@pytest.mark.parametrize("cls", [c for c in mechanisms() if "masked" in c.causal_forms], ids=name)
def test_a_form_that_cannot_write_token_by_token_is_for_language_models(cls) -> None:
    masked = partial(cls, causal="masked")
    Decoder(TransformerConfig(masked, d_model=WIDTH))
    with pytest.raises(ValueError, match=r"writes token by token, .* got \w+\(causal='masked'\)"):
        Decoder(TransformerConfig(masked, d_model=WIDTH), cross=True)


def test_a_causal_reader_is_refused() -> None:
    causal = partial(FullAttention, causal=True)
    with pytest.raises(ValueError, match=r"FullAttention\(causal=True\) has no cross-attention"):
        Decoder(config(cross_attention=causal), cross=True)


def test_a_memory_must_come_where_it_is_read_and_nowhere_else() -> None:
    x = torch.randn(1, 3, WIDTH)
    with pytest.raises(ValueError, match="reads a memory"):
        Decoder(config(), cross=True)(x)
    with pytest.raises(ValueError, match="no layer reads"):
        Decoder(config())(x, None, x)
    with pytest.raises(ValueError, match="needs causal=True"):
        Decoder(TransformerConfig(lambda width, heads, causal: FullAttention(width, heads)))
    with pytest.raises(ValueError, match="no cross-attention"):
        Decoder(config(cross_attention=NeuralClusteringAttention), cross=True)


class SentencePair(NamedTuple):
    tokens: Tensor
    mask: Tensor
    decoder_input: Tensor
    decoder_mask: Tensor


def pair() -> SentencePair:
    source, target = torch.randint(1, 17, (3, 8)), torch.randint(1, 17, (3, 12))
    return SentencePair(source, mask_of([8, 5, 2], 8), target, mask_of([12, 12, 12], 12))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
@torch.no_grad()
def test_a_pair_decodes_as_it_is_trained(positions: str) -> None:
    shape = config(NeuralClusteringAttention, positions=positions)
    network = Seq2Seq(shape, source_size=17, target_size=17).eval()
    batch = pair()
    state, logits = network.start(batch), []
    for tokens in batch.decoder_input.unbind(1):
        found, state = network.step(tokens, state)
        logits.append(found)
    torch.testing.assert_close(torch.stack(logits, 1), network(batch).logits)


def test_output_and_target_share_a_table_and_a_joint_vocabulary_all_three() -> None:
    network = Seq2Seq(config(), source_size=17, target_size=23).eval()
    tables = [p for p in network.parameters() if p.shape in {(17, WIDTH), (23, WIDTH)}]
    assert len(tables) == 2
    network = Seq2Seq(config(), source_size=17, target_size=17, share_embeddings=True)
    assert [p.shape for p in network.parameters()].count((17, WIDTH)) == 1
    assert network(pair()).logits.shape == (3, 12, 17)
    with pytest.raises(ValueError, match="one vocabulary, got 17 source and 23"):
        Seq2Seq(config(), source_size=17, target_size=23, share_embeddings=True)
