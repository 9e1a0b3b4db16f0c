"""The network of speech: padding changes nothing, and SpecAugment hides what it says."""

import pytest
import torch
from default_dtype import default_dtype

from clusterformer.attention import FullAttention
from clusterformer.data.speech_batches import make_batch
from clusterformer.errors import InputError
from clusterformer.models.config import TransformerConfig
from clusterformer.models.spec_augment import SpecAugment
from clusterformer.models.speech import Convolutions, SpeechNetwork
from clusterformer.models.subsampling import FrequencyConvolutions
from clusterformer.training.learnt import Learnt, start_from

WIDTH = 12


def network(
    subsampling: int = 1,
    augment: SpecAugment | None = None,
    context: int = 0,
    convolutions: Convolutions = "1d",
    **options,
) -> SpeechNetwork:
    config = TransformerConfig(FullAttention, d_model=16, d_ff=16, dropout=0.0, **options)
    return SpeechNetwork(
        config, num_features=WIDTH, num_mels=4, num_units=3, subsampling=subsampling,
        convolutions=convolutions, context_convolutions=context, augment=augment,
    )  # fmt: skip


@pytest.mark.parametrize("convolutions", ["1d", "2d"])
@pytest.mark.parametrize(("subsampling", "context"), [(1, 0), (2, 0), (4, 0), (2, 3)])
def test_padding_changes_nothing(
    subsampling: int, context: int, convolutions: Convolutions
) -> None:
    made = network(subsampling, context=context, convolutions=convolutions).eval()
    made.mean.normal_()
    with torch.no_grad():
        for weight in made.subsampling.parameters():
            weight.normal_()
    features = [torch.randn(length, WIDTH) for length in (29, 16, 5, 1)]
    nothing = [[]] * 4, [""] * 4
    batch = make_batch(features, *nothing, subsampling, WIDTH)
    batch.features[1, 16:] = 7.0
    logits = made(batch).logits
    for row, one in enumerate(features):
        alone = make_batch([one], [[]], [""], subsampling, WIDTH)
        expected = made(alone).logits[0]
        assert expected.shape == (-(-len(one) // subsampling), 4)
        torch.testing.assert_close(logits[row][batch.mask[row]], expected)


def test_convolutions_read_what_is_near() -> None:
    """Two over five frames carry a change of one frame to four on each side, no further."""
    made = network(context=2).eval()
    x, frames, seen = torch.randn(1, 20, 16), torch.tensor([20]), []
    for change in (0.0, 1.0):
        x[0, 9, 0] += change
        y = x
        for convolution in made.context:
            y = convolution(y, frames)
        seen.append(y)
    moved = (seen[0] != seen[1]).any(-1)[0].nonzero().flatten()
    assert moved.tolist() == list(range(5, 14))


@pytest.mark.parametrize(("subsampling", "reach"), [(1, 3), (2, 5), (4, 8)])
def test_frames_of_frequency_convolutions_read_their_neighbours(
    subsampling: int, reach: int
) -> None:
    made = FrequencyConvolutions(num_features=12, num_mels=4, width=16, subsampling=subsampling)
    x, frames = torch.randn(1, 32, 12, requires_grad=True), torch.tensor([32])
    y, left = made(x, frames)
    assert left.tolist() == [32 // subsampling]
    frame = y.shape[1] // 2
    (gradient,) = torch.autograd.grad(y[0, frame].sum(), x)
    read = gradient[0].any(-1).nonzero().flatten()
    first, last = frame * subsampling, frame * subsampling + subsampling - 1
    assert first - reach <= read.min() <= first
    assert last <= read.max() <= last + reach


@pytest.mark.parametrize("same", [False, True])
def test_a_start_takes_all_but_the_head_and_that_for_the_same_units(same: bool) -> None:
    learnt, started = network(4, context=2), network(4, context=2)
    learnt.mean.fill_(3.0)
    weights = learnt.state_dict()
    run = Learnt("run", "SpeechRecognition", {}, None, weights, {})
    start_from(started, run, same_tokens=same, same_outputs=same)
    differ = {
        name for name, weight in started.state_dict().items() if (weight != weights[name]).any()
    }
    assert differ == (set() if same else {"head.weight", "head.bias"})


def test_a_dummy_row_goes_through() -> None:
    batch = make_batch([], [], [], 4, WIDTH)
    assert network(4)(batch).logits.isfinite().all()
    assert not batch.mask.any()


def test_features_are_normalised() -> None:
    made, batch = network().eval(), make_batch([torch.randn(9, WIDTH)], [[]], [""], 1, WIDTH)
    expected = made(batch).logits
    made.mean.fill_(3.0)
    made.scale.fill_(0.5)
    shifted = batch._replace(features=2 * batch.features + 3)
    torch.testing.assert_close(made(shifted).logits, expected)


def test_whole_bands_and_stretches_are_hidden() -> None:
    augment = SpecAugment(bands=1, band_share=0.5, stretches=1, stretch_frames=4, stretch_share=0.3)
    hidden = 0
    for _ in range(50):
        features = augment(torch.ones(2, 20, WIDTH), torch.tensor([20, 8]), num_mels=4)
        for row, most in zip(features, (4, 2), strict=True):
            filters = (row == 0).all(0)
            frames = (row == 0).all(1) if not filters.all() else torch.zeros(20, dtype=torch.bool)
            torch.testing.assert_close(row == 0, filters | frames[:, None])
            assert (filters.view(3, 4) == filters[:4]).all()
            assert filters[:4].sum() <= 2
            assert frames.sum() <= most
            assert not frames.any() or frames.nonzero().diff(dim=0).eq(1).all()
            hidden += int(filters.any()) + int(frames.any())
        assert not (features[1, 8:] == 0).all(1).any()  # no stretch behind the end
    assert hidden > 50


def test_augmentation_draws_the_same_under_bf16_true() -> None:
    """Lightning makes bfloat16 torch's default, in which frames from 256 on are not told apart."""
    augment = SpecAugment(warp=0.2)
    features, frames = torch.ones(8, 1000, WIDTH, dtype=torch.bfloat16), torch.full((8,), 1000)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        with default_dtype(dtype):
            ramp = torch.arange(WIDTH, dtype=torch.bfloat16).expand_as(features)
            found.append([augment(features, frames, 4), augment.warped(ramp, 4)])
    assert all(map(torch.equal, *found))


def test_features_of_another_dtype_are_read() -> None:
    """Pictures are drawn from the data of before Lightning converts them, as for bf16-true."""
    batch = make_batch([torch.randn(9, WIDTH)], [[]], [""], 2, WIDTH)
    assert network(2).double().eval()(batch).logits.dtype == torch.float64


def test_filters_are_stretched_and_compressed() -> None:
    """On filters that hold their own number, each recording's are multiples of it."""
    ramp = torch.arange(40.0).repeat(3)  # and its differences, of two orders
    features = ramp.expand(200, 5, 120)
    found = SpecAugment(warp=0.2).warped(features, num_mels=40).unflatten(2, (3, 40))
    assert torch.equal(found, found[:, :1, :1].expand_as(found))
    factor = found[:, 0, 0, 1]
    torch.testing.assert_close(
        found[:, 0, 0], (factor[:, None] * torch.arange(40)).clamp(max=39), rtol=1e-5, atol=1e-5
    )
    assert 0.8 <= factor.min() < 0.83
    assert 1.17 < factor.max() <= 1.2
    assert SpecAugment().warped(features, num_mels=40) is features


def test_nothing_is_hidden_in_evaluation() -> None:
    batch = make_batch([torch.randn(20, WIDTH)], [[]], [""], 1, WIDTH)
    made = network(augment=SpecAugment(warp=0.2))
    assert not torch.equal(made.train()(batch).logits, made(batch).logits)
    assert torch.equal(made.eval()(batch).logits, made(batch).logits)


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="subsampling must be 1, 2 or 4, got 3"):
        network(3)
    with pytest.raises(InputError, match="convolutions must be one of 1d, 2d"):
        network(convolutions="3d")
    with pytest.raises(InputError, match="rotary or none for speech, got learned"):
        network(positions="learned")
    with pytest.raises(InputError, match="band_share must be from 0 to below 1"):
        SpecAugment(band_share=1.0)
