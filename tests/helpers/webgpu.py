"""WebGPU in tests: whether this machine has an adapter, which may be a program such as SwiftShader."""

from __future__ import annotations

import pytest

from edge_rt.device.names import WEBGPU, DeviceName
from edge_rt.errors import RuntimeUnavailable
from edge_rt.ort.providers import placement
from edge_rt.package.reader import open_package


def require_webgpu(portable_package):
    """Return the placement of a portable package on WebGPU; skip the test where no session can be made there."""
    try:
        return placement(open_package(portable_package), DeviceName(WEBGPU)).nodes
    except RuntimeUnavailable as error:
        pytest.skip(f"needs a WebGPU adapter: {error}")
