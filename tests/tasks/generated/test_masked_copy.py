"""The masked copy task: every masked symbol can be told, by its twin and by nothing else."""

import pytest
import torch

from clusterformer.cli.main import main
from clusterformer.errors import InputError
from clusterformer.task import IGNORE
from clusterformer.tasks.generated.masked_copy import MaskedCopy, MaskedCopyTexts

MASK = 12


def halves(indices: list[int], masked: float = 0.2):
    batch = MaskedCopyTexts(15, 10, masked, (0, 7))[indices]
    return batch, batch.tokens.unflatten(1, (2, 16)), batch.target.unflatten(1, (2, 16))


@pytest.mark.parametrize("masked", [0.01, 0.2, 0.5])
def test_what_is_masked_stands_half_a_text_away(masked: float) -> None:
    batch, tokens, target = halves(list(range(20)), masked)
    hidden = tokens == MASK
    assert (hidden == (target != IGNORE)).all()
    twins = tokens.flip(1)
    assert (twins[hidden] == target[hidden]).all()
    assert (tokens[~hidden] == torch.where(twins == MASK, tokens, twins)[~hidden]).all()
    assert (tokens[..., 0] == 1).all()
    assert (hidden.sum((1, 2)) == max(1, round(30 * masked))).all()
    assert batch.mask.all()


def test_a_text_is_the_same_in_every_batch() -> None:
    one, two = halves([3, 4])[0], halves([4])[0]
    assert torch.equal(one.tokens[1:], two.tokens)
    assert not torch.equal(one.tokens[0], one.tokens[1])


@pytest.mark.slow
def test_it_is_learnt(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    fit = [
        "fit",
        "--pictures=false",
        "--data=MaskedCopy",
        "--data.length=5",
        "--data.symbols=4",
        "--data.masked=0.3",
    ]
    fit += ["--model.attention=FullAttention", "--model.d_model=32", "--model.dropout=0"]
    fit += ["--model.positions=rotary", "--model.lr=0.005", "--model.warmup=20"]
    fit += ["--data.epoch_steps=80", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
    assert main(fit) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if "test/accuracy" in line]
    assert float(found[0].split()[-1]) > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"masked": 0.6}, "masked must be above 0 and at most 0.5, got 0.6"),
    ],
)
def test_bad_options_are_refused(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskedCopy(**options)


def test_a_model_is_tested_on_words_of_another_length() -> None:
    task = MaskedCopy(length=31)
    task.load_state(MaskedCopy(length=15).state())
    assert next(iter(task.test_dataloader())).tokens.shape[1] == 64
    with pytest.raises(InputError, match="symbols must be 10, as it was in training, got 4"):
        MaskedCopy(symbols=4).load_state(MaskedCopy().state())
