"""edge-rt's own execution providers as they were installed."""

from __future__ import annotations

from typing import Final

from edge_rt.device.cuda import INSTALLED_CUDA
from edge_rt.device.provider import GpuProviders
from edge_rt.device.vulkan import INSTALLED_VULKAN

INSTALLED: Final = GpuProviders(INSTALLED_CUDA, INSTALLED_VULKAN)
"""Those of the installed package."""
