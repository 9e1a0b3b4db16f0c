"""A plugin of pytest that runs tests on the pretended device: `-p pretended_accelerator`.

It goes beyond `-p pretended_device`: what trains on a CPU trains on the device, and a run that is
loaded for the CPU is on the device. Everything else, such as the data, stays on the CPU.
"""

from functools import wraps
from typing import Any

import pretended_device
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from pretended_tensor import DEVICE

from clusterformer import api

_start_strategy, _start_model = SingleDeviceStrategy.__init__, api.TrainedModel.__init__


@wraps(_start_strategy)
def _start_on_device(self: Any, device: Any = "cpu", *given: Any, **named: Any) -> None:
    _start_strategy(self, DEVICE, *given, **named)


@wraps(_start_model)
def _load_on_device(self: Any, *given: Any, **named: Any) -> None:
    _start_model(self, *given, **named)
    self.module.to(DEVICE)


def pytest_sessionstart() -> None:
    SingleDeviceStrategy.__init__ = _start_on_device
    CPUAccelerator.setup_device = lambda self, device: None
    api.TrainedModel.__init__ = _load_on_device
    pretended_device.pytest_sessionstart()
