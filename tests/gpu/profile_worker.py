"""What ``MeasuredProcess`` starts in the test of a measured plan: ``memory_worker`` with the emulated GPU."""

from __future__ import annotations

import os

from edge_rt.measure.memory_worker import main
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.models import DEVICE, provider
from tests.helpers.native import build_native

if __name__ == "__main__":
    # The test that starts it runs with a built folder only.
    main(provider(EmulatedGpu(str(build_native(os.curdir, "edge_rt_gpu_emulation")), "", **DEVICE)))
