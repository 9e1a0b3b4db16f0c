"""A progress bar for the training of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clusterformer.clustering.fitting import Report


@contextmanager
def progress_bar(steps: int, *, shown: bool) -> Iterator[Report | None]:
    """Show a bar with the loss and the share of points that changed cluster, or nothing.

    Args:
        steps: Maximum number of training steps.
        shown: Show the bar.
    """
    if not shown:
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=steps, unit="step", desc="clustering") as bar:

        def update(step: int, loss: float, changed: float) -> None:
            bar.update(step - bar.n)
            bar.set_postfix(loss=f"{loss:.3f}", changed=f"{changed:.1%}")

        yield update
