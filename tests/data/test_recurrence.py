"""Distance to the last occurrence of an n-gram, against a search."""

import math

import torch

from clusterformer.cli.main import main
from clusterformer.data.recurrence import distance_to_last


def searched(tokens: list[int], length: int) -> list[int]:
    found = []
    for end in range(len(tokens)):
        gram = tokens[end - length + 1 : end + 1]
        earlier = [
            end - other
            for other in range(length - 1, end)
            if tokens[other - length + 1 : other + 1] == gram
        ]
        found.append(min(earlier, default=0) if end >= length - 1 else 0)
    return found


def test_it_is_what_a_search_finds() -> None:
    for length in (1, 2, 3):
        tokens = torch.randint(0, 4, (3, 40))
        found = distance_to_last(tokens, length)
        assert found.tolist() == [searched(row, length) for row in tokens.tolist()]
    assert distance_to_last(torch.zeros(2, 3, dtype=torch.long), 8).tolist() == [[0] * 3] * 2


def test_a_run_measures_what_lies_far_back(tmp_path, capsys) -> None:
    """Random letters that never repeat nearby have pairs that do further back."""
    generator = torch.Generator().manual_seed(0)
    letters = [chr(97 + int(i)) for i in torch.randint(0, 26, (400,), generator=generator)]
    lines = ["".join(letters[start : start + 20]) + "\n" for start in range(0, 400, 20)]
    (tmp_path / "a.txt").write_text("".join(lines * 3))
    fit = [
        "fit",
        "--data=LanguageModeling",
        f"--data.train={tmp_path / 'a.txt'}",
        "--data.context=64",
    ]
    fit += ["--data.far=8", "--data.far_length=2", "--model.d_model=8", "--model.num_heads=2"]
    fit += ["--model.num_layers=1", "--trainer.max_steps=2", "--trainer.accelerator=cpu"]
    assert main([*fit, f"--runs={tmp_path}"]) == 0
    [line] = [
        line for line in capsys.readouterr().out.splitlines() if "test/bits_per_byte_far" in line
    ]
    assert 0 < float(line.split()[-1]) < 2 * math.log2(256)
