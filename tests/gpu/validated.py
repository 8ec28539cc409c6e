"""Run a program that uses Vulkan with Khronos' validation layer: any message is a fault.

    python -m tests.gpu.validated core PROGRAM [ARGUMENT ...]     rules of the interface, and synchronisation
    python -m tests.gpu.validated gpu PROGRAM [ARGUMENT ...]      accesses of kernels to memory; ten times slower

With ``--expect TEXT`` in front a message with this text must come, and others may. The program's output is printed,
and its exit status is that of this script, unless there was a fault, or the layer was not there: 1. Needs Debian's
``vulkan-validationlayers``. The program must not keep the standard output of its own children from this script.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LAYER = "VK_LAYER_KHRONOS_validation"
ENABLES = {
    "core": "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    "gpu": "VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT,"
    "VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT",
}
SETTINGS = """khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf,info
khronos_validation.log_filename = stdout
khronos_validation.enable_message_limit = false
khronos_validation.enables = {enables}
"""
ACTIVE = "Khronos Validation Layer Active"
OF_ITSELF = "WARNING-GPU-Assisted-Validation|VALIDATION-SETTINGS"  # what a newer layer says of its own settings
MESSAGE = re.compile(
    r"\((ERROR|WARN|PERF)[^()]*\): msgNum: .*"
    rf"|Validation (Error|Warning|Performance Warning): \[ (?!{OF_ITSELF})"
)
"""Those of the layer of Vulkan 1.3.239, and of 1.4.309."""


def run(enables: str, command: list[str], layers: str = "") -> tuple[int, str]:
    """Return a program's exit status, and what it and the layer printed on standard output.

    Args:
        enables: a key of ``ENABLES``.
        layers: others between this one and the driver, apart by colons.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "vk_layer_settings.txt")
        settings.write_text(SETTINGS.format(enables=ENABLES[enables]))
        environment = os.environ | {
            "VK_INSTANCE_LAYERS": ":".join(filter(None, (LAYER, layers))),
            "VK_LAYER_SETTINGS_PATH": str(settings),
            "XDG_CACHE_HOME": folder,
        }
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment)
    return done.returncode, done.stdout


def messages(output: str) -> list[str]:
    """Return the layer's warnings and errors."""
    return [line for line in output.splitlines() if MESSAGE.search(line)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a program with Khronos' validation layer.")
    parser.add_argument("enables", choices=ENABLES, help="what is checked")
    parser.add_argument("--expect", metavar="TEXT", help="a message with this text must come")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    options = parser.parse_args()
    code, output = run(options.enables, options.command, os.environ.get("VK_INSTANCE_LAYERS", ""))
    found = messages(output)
    sys.stdout.write(output)
    if ACTIVE not in output:
        print("validated: the validation layer was not there")
        return 1
    if options.expect:
        is_right = any(options.expect in line for line in found)
        print(f"validated: {'as expected' if is_right else 'NOT'}: {options.expect}")
        return 0 if is_right else 1
    print(f"validated: {options.enables}: {len(found)} messages, exit status {code}")
    return 1 if found else code


if __name__ == "__main__":
    sys.exit(main())
