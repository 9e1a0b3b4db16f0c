"""Learning-rate schedules: a factor of the peak rate for each optimiser step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from clusterformer.errors import InputError

Schedule = Literal["inverse-sqrt", "cosine", "constant"]

ENDLESS_WARMUP = 200
"""Steps of a warm-up that is given as a share, where no end of the training is set."""


def warmup_steps(warmup: float, total: int | None) -> int:
    """Number of steps of the warm-up.

    Args:
        warmup: Number of steps, or below 1 a share of `total`.
        total: Number of steps of the whole training; None if no end is set.
    """
    if not 0 < warmup < 1:
        return int(warmup)
    return ENDLESS_WARMUP if total is None else max(1, round(warmup * total))


def factor(
    schedule: Schedule, warmup: int, total: int | None, floor: float = 0.0
) -> Callable[[int], float]:
    """Make the function that gives the factor, 0..1, at a step counted from 0.

    All rise linearly to 1 over `warmup` steps. Then "inverse-sqrt" falls as
    sqrt(warmup / step) (Vaswani et al., 2017, section 5.3), "cosine" falls to `floor` at step
    `total`, and "constant" stays.

    Args:
        schedule: Name of the schedule.
        warmup: Steps of the rise; 0 starts at the peak.
        total: Steps of the whole training; only "cosine" needs them.
        floor: Factor at which "cosine" ends, 0..1.

    Raises:
        InputError: if "cosine" has no `total`.
    """
    if schedule == "cosine" and total is None:
        raise InputError(
            "schedule: cosine must know when training ends; give trainer.max_epochs or max_steps"
        )

    def at(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "inverse-sqrt":
            start = max(1, warmup)
            return math.sqrt(start / (start + step - warmup))
        if schedule == "cosine" and total is not None:
            progress = (step - warmup) / max(1, total - warmup)
            share = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
            return floor + (1 - floor) * share
        return 1.0

    return at
