from __future__ import annotations

import pytest

from edge_rt.device.names import ON_CPU, DeviceName
from edge_rt.device.provider import GpuProviders
from edge_rt.errors import RuntimeUnavailable
from edge_rt.measure.memory_worker import DeviceMemory
from tests.device.test_provider import OLD, TWO, FakeProvider


def provider(lines, free):
    """Return a provider of these GPUs, on which each of these bytes in turn are free."""
    made, left = FakeProvider(lines), iter(free)
    made.fake.free_bytes = lambda number: next(left)
    return GpuProviders(made)


def test_what_less_is_free_is_taken_also_on_a_gpu_for_portable_packages_alone():
    measured = DeviceMemory(DeviceName("cuda"), provider(OLD, [1000, 400, 1200]))
    assert [measured.facts() for _ in range(2)] == [{"device_bytes": 600}, {"device_bytes": 0}]


@pytest.mark.parametrize("device", [ON_CPU, DeviceName("webgpu"), DeviceName("cuda", 1)], ids=str)
def test_nothing_is_said_of_other_devices_and_of_shared_memory(device):
    assert DeviceMemory(device, provider(TWO, [])).facts() == {}


def test_a_gpu_that_is_not_there():
    with pytest.raises(RuntimeUnavailable, match="no GPU of that number"):
        DeviceMemory(DeviceName("cuda", 2), provider(TWO, []))
