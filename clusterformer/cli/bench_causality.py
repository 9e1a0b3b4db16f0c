"""`clusterformer bench causality`: which mechanisms read the future."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from clusterformer.cli.bench import Parser, chosen_mechanisms, write
from clusterformer.errors import InputError

if TYPE_CHECKING:
    from clusterformer.attention.base import Causal

HELP = """
usage: clusterformer bench causality [options]

Tells which mechanisms read the future: it replaces every input after a cut, and counts the outputs
before it that move, for each causal form in a layer with random weights. Then it trains a small
language model on random tokens with each: nobody can guess them, so a loss below ln V is a model
that reads them. --mechanisms, --threads, --out; --length 256, --d_model 64, --num_heads 4; --steps
300 of training, 0 for none.
"""


def run(arguments: list[str]) -> None:
    """Probe, train, print the table, write the JSON."""
    from clusterformer.training.causality import loss_on_random_tokens, probe_core

    parser = Parser()
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--d_model", type=int, default=64)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse(arguments)
    if options.length < 4:
        raise InputError(f"--length must be at least 4, got {options.length}")
    kinds = chosen_mechanisms(options.mechanisms)
    print(f"{'mechanism':<28}{'causal':<10}{'moved':>12}{'loss':>9}", end="")
    print(f"  (ln 8 = {math.log(8):.4f})" if options.steps else "")
    rows = []
    for name, kind in kinds.items():
        forms: list[Causal | None] = [form for form in kind.causal_forms if form]
        for form in forms or [None]:
            row: dict[str, Any] = {"mechanism": name, "causal": form}
            rows.append(row)
            if form is None:
                print(f"{name:<28}{'refused':<10}")
                continue
            make = partial(kind, causal=form)
            leak = probe_core(make(options.d_model, options.num_heads), options.length)
            row |= {"moved": leak.changed, "positions": leak.positions}
            moved = f"{leak.changed}/{leak.positions}"
            print(f"{name:<28}{form!s:<10}{moved:>12}", end="", flush=True)
            if options.steps:
                loss, errors = loss_on_random_tokens(
                    make, length=options.length, steps=options.steps
                )
                row |= {"random_tokens_loss": loss, "standard_errors_below": errors}
                print(f"{loss:>9.4f}" + ("  reads the future" if errors > 5 else ""), end="")
            print()
    if options.out:
        write(options, rows)
