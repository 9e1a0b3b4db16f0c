"""Devices by name."""

import pytest
import torch

from clusterformer.devices import find_device
from clusterformer.errors import InputError


@pytest.mark.parametrize("name", ["cpu", "cpu:0", torch.device("cpu")])
def test_the_cpu_is_always_here(name: str | torch.device) -> None:
    assert find_device(name).type == "cpu"


@pytest.mark.parametrize("name", ["abacus", "meta", "cuda:x", "cpu:", "", None, 1.5])
def test_another_kind_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="device is cpu, cuda or a GPU such as cuda:1, got"):
        find_device(name)


def test_a_gpu_that_is_not_here_is_refused() -> None:
    number = torch.cuda.device_count()
    told = f"the last one here is cuda:{number - 1}" if number else "there is no CUDA device"
    with pytest.raises(InputError, match=f"device cuda:{number}: {told}"):
        find_device(f"cuda:{number}")


@pytest.mark.gpu
def test_a_gpu_is_found_by_its_number() -> None:
    assert find_device(f"cuda:{torch.cuda.device_count() - 1}").type == "cuda"
