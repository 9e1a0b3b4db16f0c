"""Fits that succeed or change nothing."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from clusterformer.clustering.modes import own_modes

_CHANGED_IN_PLACE = ("_network", "_optimizer", "_random")

Fit = TypeVar("Fit", bound=Callable[..., Any])


def restoring(fit: Fit) -> Fit:
    """Let a method that learns leave its estimator as it was if it raises, also by Ctrl-C.

    It computes in `own_modes`.
    """

    @functools.wraps(fit)
    def run(estimator: Any, *args: Any, **options: Any) -> Any:
        state = vars(estimator)
        # together, so that the optimizer's parameters are those of the network
        changed = {name: state[name] for name in _CHANGED_IN_PLACE if name in state}
        before = state | copy.deepcopy(changed)
        try:
            with own_modes():
                return fit(estimator, *args, **options)
        except BaseException:
            state.clear()
            state.update(before)
            raise

    return run  # type: ignore[return-value]
