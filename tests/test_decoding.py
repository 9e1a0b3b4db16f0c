"""Decoding: beam search against an exhaustive search, greedy, caches, sampling, and its limits."""

import time
from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from clusterformer.attention import FullAttention, NeuralClusteringAttention
from clusterformer.decoding import Hypothesis, Search, beam_search, draw, greedy
from clusterformer.models.config import TransformerConfig
from clusterformer.models.decoder import State
from clusterformer.models.seq2seq import Seq2Seq

BOS, EOS, SIZE = 1, 2, 6


class Table:
    """A network whose next token depends on the text, the last two tokens and the position."""

    def __init__(self, texts: int, max_length: int, sharpness: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(texts)
        shape = texts, max_length + 2, SIZE, SIZE, SIZE
        self.logits = sharpness * torch.randn(shape, generator=generator)
        self.steps = self.rows = 0

    def start(self, texts: Tensor | None = None) -> State:
        texts = torch.arange(len(self.logits)) if texts is None else texts
        return State(torch.zeros_like(texts), ((texts, torch.zeros_like(texts)),))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        ((texts, before),) = state.caches
        self.steps, self.rows = self.steps + 1, self.rows + len(tokens)
        logits = self.logits[texts, state.position, before, tokens]
        return logits, State(state.position + 1, ((texts, tokens),))

    def log_probability(self, text: int, tokens: list[int]) -> float:
        total, before, last = 0.0, 0, BOS
        for position, token in enumerate(tokens):
            scores = self.logits[text, position, before, last].log_softmax(-1)
            total, before, last = total + float(scores[token]), last, token
        return total

    def exhaustive(self, text: int, max_length: int, penalty: float) -> list[Hypothesis]:
        """Every text there is, best first."""
        letters = [token for token in range(1, SIZE) if token != EOS]
        found = [
            Hypothesis([*word], self.log_probability(text, [*word, EOS]) / (n + 1) ** penalty)
            for n in range(1, max_length + 1)
            for word in product(letters, repeat=n)
        ]
        return sorted(found, key=lambda one: -one.score)


def first(count: int) -> Tensor:
    return torch.full((count,), BOS)


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.score for one in found] == pytest.approx([one.score for one in expected], rel=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.5, -1])
def test_a_beam_as_wide_as_everything_is_the_exhaustive_search(penalty: float) -> None:
    network, max_length = Table(3, 4), torch.tensor([4, 2, 3])
    everything = 4**4 * 2
    found = beam_search(
        network.step, network.start(), first(3), Search(everything, penalty, nbest=5),
        eos=EOS, max_length=max_length,
    )  # fmt: skip
    for text, best in enumerate(found):
        same(best, network.exhaustive(text, int(max_length[text]), penalty)[:5])


def literal_beam(
    network: Table, text: int, max_length: int, beam: int, penalty: float, nbest: int
) -> list[Hypothesis]:
    """The definition, in lists, without any stop before its time but that of `beam` ended."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[Hypothesis] = []
    for length in range(max_length + 1):
        candidates = []
        for _, word in live:
            for token in range(1, SIZE):
                if (token == EOS and not length) or (token != EOS and length == max_length):
                    continue
                candidates.append((network.log_probability(text, [*word, token]), [*word, token]))
        candidates.sort(key=lambda one: -one[0])
        for total, word in candidates[:beam]:
            if word[-1] == EOS:
                ended.append(Hypothesis(word[:-1], total / len(word) ** penalty))
        live = [one for one in candidates if one[1][-1] != EOS][:beam]
        if len(ended) >= beam:
            break
    return sorted(ended, key=lambda one: -one.score)[:nbest]


@pytest.mark.parametrize("beam", [1, 2, 3, 5])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.5, -0.5])
@pytest.mark.parametrize("nbest", [1, 3])
def test_beam_search_is_its_definition_and_stops_early_without_loss(
    beam: int, penalty: float, nbest: int
) -> None:
    nbest = min(nbest, beam)
    network, max_length = Table(7, 9, sharpness=2.0), torch.tensor([9, 3, 1, 7, 9, 5, 2])
    found = beam_search(
        network.step, network.start(), first(7), Search(beam, penalty, nbest),
        eos=EOS, max_length=max_length,
    )  # fmt: skip
    for text, best in enumerate(found):
        same(best, literal_beam(network, text, int(max_length[text]), beam, penalty, nbest))


def test_a_text_stops_when_nothing_live_can_beat_what_ended() -> None:
    network = Table(1, 50)
    network.logits[:] = -20.0
    network.logits[:, 0, ..., 3] = network.logits[:, 1, ..., EOS] = 20.0
    search = Search(beam=3, length_penalty=0.0)
    (found,) = beam_search(network.step, network.start(), first(1), search, eos=EOS, max_length=50)
    assert found[0].tokens == [3]
    assert network.steps == 2


def test_finished_texts_leave_the_batch() -> None:
    network = Table(4, 12)
    network.logits[:] = 0.0
    for text, length in enumerate([2, 12, 2, 12]):
        network.logits[text, :length, ..., 3] = network.logits[text, length:, ..., EOS] = 30.0
    options = {"eos": EOS, "max_length": 12}
    found = greedy(network.step, network.start(), first(4), **options)
    assert [len(one.tokens) for one in found] == [2, 12, 2, 12]
    assert network.rows == 2 * 3 + 2 * 13


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_greedy_is_a_beam_of_one(penalty: float) -> None:
    network, max_length = Table(8, 10, sharpness=3.0), torch.tensor([10, 3, 1, 7, 10, 5, 2, 10])
    options = {"eos": EOS, "max_length": max_length}
    one = greedy(network.step, network.start(), first(8), **options)
    beam = beam_search(network.step, network.start(), first(8), Search(1, penalty), **options)
    for single, (best,) in zip(one, beam, strict=True):
        assert single.tokens == best.tokens
        length = (len(best.tokens) + 1) ** penalty
        assert best.score == pytest.approx(single.score / length, rel=1e-5)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_text_does_not_depend_on_its_batch(search: str) -> None:
    network, max_length = Table(6, 8, sharpness=2.0), torch.tensor([8, 3, 1, 7, 8, 5])

    def run(texts: list[int]) -> list[list[Hypothesis]]:
        which = torch.tensor(texts)
        arguments = network.step, network.start(which), first(len(texts))
        if search == "greedy":
            return [[one] for one in greedy(*arguments, eos=EOS, max_length=max_length[which])]
        options = Search(beam=4, nbest=2)
        return beam_search(*arguments, options, eos=EOS, max_length=max_length[which])

    whole = run([0, 1, 2, 3, 4, 5])
    for text, best in enumerate(whole):
        same(run([text])[0], best)
    for best, again in zip(whole[::-1], run([5, 4, 3, 2, 1, 0]), strict=True):
        same(again, best)


class Source(NamedTuple):
    tokens: Tensor
    mask: Tensor


class Uncached:
    """`Seq2Seq` without a cache: its state is the text so far, read anew at every step."""

    def __init__(self, network: Seq2Seq) -> None:
        self.network = network

    def start(self, batch: Source) -> State:
        memory = self.network.encoder(self.network.source(batch.tokens), batch.mask).hidden
        nothing = batch.tokens.new_empty(len(memory), 0)
        return State(nothing.new_zeros(len(memory)), ((nothing, memory, batch.mask),))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        ((past, memory, mask),) = state.caches
        past = torch.cat([past, tokens[:, None]], 1)
        hidden = self.network.decoder(self.network.target(past), None, memory, mask).hidden
        logits = hidden[:, -1] @ self.network.target.tokens.weight.T
        return logits, State(state.position + 1, ((past, memory, mask),))


@pytest.mark.parametrize("attention", [FullAttention, NeuralClusteringAttention])
def test_a_beam_on_caches_is_a_beam_without(attention: Callable) -> None:
    def core(width: int, heads: int, causal: bool = False):
        options = {"num_clusters": 3, "chunk_size": 3} if attention is not FullAttention else {}
        return attention(width, heads, causal=causal, **options)

    network = Seq2Seq(
        TransformerConfig(core, d_model=32, d_ff=64), source_size=20, target_size=20
    ).eval()
    mask = torch.arange(9) < torch.tensor([9, 4, 7, 1, 6])[:, None]
    batch = Source(torch.randint(1, 20, (5, 9)), mask)
    search, options = Search(beam=4, nbest=4), {"eos": EOS, "max_length": 2 * mask.sum(1) + 5}
    plain = Uncached(network)
    with torch.inference_mode():
        cached = beam_search(network.step, network.start(batch), first(5), search, **options)
        expected = beam_search(plain.step, plain.start(batch), first(5), search, **options)
    assert max(len(one.tokens) for best in cached for one in best) > 5
    for found, wanted in zip(cached, expected, strict=True):
        same(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("attention", [FullAttention, NeuralClusteringAttention])
def test_caches_are_worth_it(attention: type) -> None:
    """256 tokens, 32 texts, a beam of 5. CPU time; that without caches is told from a few steps."""
    shape = TransformerConfig(attention, d_model=128, d_ff=512)
    network = Seq2Seq(shape, source_size=2000, target_size=2000).eval()
    batch = Source(torch.randint(1, 2000, (32, 20)), torch.ones(32, 20, dtype=torch.bool))

    def endless(tokens: Tensor, state: State) -> tuple[Tensor, State]:
        logits, state = network.step(tokens, state)
        return logits.index_fill(1, torch.tensor([EOS]), -1e9), state

    with torch.inference_mode():
        begun = time.process_time()
        found = beam_search(
            endless, network.start(batch), first(32), Search(beam=5), eos=EOS, max_length=256
        )
        cached = time.process_time() - begun
        assert len(found[0][0].tokens) == 256

        plain, steps = Uncached(network), []
        state = plain.start(batch).select(torch.arange(32).repeat_interleave(5))
        _, memory, mask = state.caches[0]
        for length in (32, 96, 160, 224):
            past = torch.randint(1, 2000, (160, length))
            begun = time.process_time()
            plain.step(past[:, 0], state._replace(caches=((past, memory, mask),)))
            steps.append(time.process_time() - begun)
    uncached = 256 * sum(steps) / len(steps)
    print(f"{attention.__name__}: {cached:.1f} s, without {uncached:.0f} s")
    assert cached < uncached / 5


def test_draws_follow_the_distribution_and_its_nucleus() -> None:
    logits, count = torch.randn(SIZE), 20_000
    logits[0] = float("-inf")  # padding is never chosen
    generator = torch.Generator().manual_seed(0)

    def frequencies(temperature: float = 1.0, top_p: float = 1.0) -> Tensor:
        found = draw(logits.expand(count, -1), temperature, top_p, generator)
        return found.bincount(minlength=SIZE) / count

    for temperature in (0.5, 1.0, 2.0):
        expected = (logits / temperature).softmax(-1)
        found = frequencies(temperature=temperature)
        torch.testing.assert_close(found, expected, atol=0.015, rtol=0)
    flat = frequencies(temperature=1e300)
    expected = torch.full((SIZE - 1,), 1 / (SIZE - 1))
    torch.testing.assert_close(flat[1:], expected, atol=0.015, rtol=0)
    assert flat[0] == 0
    likeliest, order = logits.softmax(-1).sort(descending=True)
    top_p = float(likeliest[0]) + 0.5 * float(likeliest[1])
    found = frequencies(top_p=top_p)
    assert found[order[2:]].sum() == 0
    expected = likeliest[:2] / likeliest[:2].sum()
    torch.testing.assert_close(found[order[:2]], expected, atol=0.015, rtol=0)


def test_a_tiny_nucleus_is_greedy_and_equal_seeds_give_equal_draws() -> None:
    logits = torch.randn(80, SIZE)
    assert torch.equal(draw(logits, 1.0, top_p=1e-6), logits.argmax(-1))
    drawn = [draw(logits, 1.0, 1.0, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_texts_without_a_token_are_refused(search: Callable) -> None:
    network = Table(2, 3)
    options = (Search(),) if search is beam_search else ()
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        search(network.step, network.start(), first(2), *options, eos=EOS, max_length=0)


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ({"beam": 2, "nbest": 3}, r"nbest must be at most beam \(2\), got 3"),
        ({"beam": 0}, "beam must be at least 1, got 0"),
        ({"length_penalty": 11.0}, "length_penalty must be from -10 to 10, got 11"),
        ({"beam": "4"}, "beam must be a number, got '4'"),
        ({"beam": 2.5}, "beam must be a whole number, got 2.5"),
        ({"nbest": 1.5}, "nbest must be a whole number, got 1.5"),
        ({"length_penalty": "1"}, "length_penalty must be a number, got '1'"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], printed: str) -> None:
    with pytest.raises(ValueError, match=printed):
        Search(**options)
