"""The end of a training: after its last step, or when the user interrupts it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from clusterformer.training.checkpoint_callbacks import LastCheckpoint
from clusterformer.training.runs import first_process


class Stopping(Callback):
    """A callback that ends a training in order.

    After the last step there is a validation, also where the steps end within an epoch, where the
    last epoch ends between two validations within it, and where not every epoch has one. The first
    Ctrl-C lets the running step end, all of its accumulated batches, and its validation, and writes
    `last.ckpt`, so that resuming repeats nothing; the second one stops at once. SIGTERM does what
    the first Ctrl-C does, in all processes if one of them gets it: Lightning's own handler lets
    them wait for each other.

    Args:
        last: Callback that writes the checkpoint.
    """

    def __init__(self, last: LastCheckpoint) -> None:
        self._last = last
        self._interrupted = self._asked = False
        self._handlers: dict[signal.Signals, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            ours = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._terminate}
            self._handlers = {number: signal.signal(number, own) for number, own in ours.items()}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        ends = trainer.is_last_batch and trainer.current_epoch + 1 == trainer.max_epochs
        if ends or trainer.global_step == trainer.max_steps:
            trainer.should_stop = True  # Lightning then validates before it stops
            # unless a minimum is not reached or this epoch has none, which does not matter here
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
            trainer.check_val_every_n_epoch = 1
        # it ends the training with its next checkpoint
        self._last.interrupted = self._is_interrupted(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._release()
        if self._is_interrupted(trainer):  # in the last validation
            raise KeyboardInterrupt

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._release()

    def _interrupt(self, *_: object) -> None:
        if self._asked:
            self._release()
            raise KeyboardInterrupt
        self._interrupted = self._asked = True
        if first_process():  # Ctrl-C reaches all processes of a terminal
            message = "\nstopping after this step; Ctrl-C again stops at once"
            print(message, file=sys.stderr, flush=True)

    def _terminate(self, *_: object) -> None:
        self._interrupted = True  # a Ctrl-C behind it, such as compare's, is the first one

    def _is_interrupted(self, trainer: Trainer) -> bool:
        """Tell, alike in all processes, whether one of them was interrupted."""
        if trainer.world_size == 1:
            return self._interrupted
        return trainer.strategy.reduce_boolean_decision(self._interrupted, all=False)

    def _release(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


@contextmanager
def keyboard_interrupts(trainer: Trainer) -> Iterator[None]:
    """Give Ctrl-C back as it was; Lightning makes an exit with code 1 of it, without a word.

    Raises:
        KeyboardInterrupt: if the user interrupted the trainer.
    """
    try:
        yield
    except SystemExit as error:
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from error
