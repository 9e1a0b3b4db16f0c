"""A progress bar for the training of clusters."""

from __future__ import annotations

from clusterformer.clustering.fitting import Report


class Progress:
    """A progress bar with the loss and the share of points that changed cluster.

    Args:
        steps: Maximum number of training steps.
        shown: Show the bar.
    """

    def __init__(self, steps: int, *, shown: bool) -> None:
        self._steps, self._shown = steps, shown

    def __enter__(self) -> Report | None:
        if not self._shown:
            return None
        from tqdm import tqdm

        self._bar = tqdm(total=self._steps, unit="step", desc="clustering")
        return self._update

    def _update(self, step: int, loss: float, changed: float) -> None:
        self._bar.update(step - self._bar.n)
        self._bar.set_postfix(loss=f"{loss:.3f}", changed=f"{changed:.1%}")

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._bar.close()
