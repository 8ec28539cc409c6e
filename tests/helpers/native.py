"""The library of test ops (``csrc/tests/toy_ops.h``), built for the tests that drive it through ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build_test_ops(folder):
    """Build the library in ``folder`` and return its path; skips the test on a machine that cannot."""
    # cmake and ninja come with the dev extra, beside this Python, which need not be on the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=path)
    if cmake is None or not any(shutil.which(name, path=path) for name in ("c++", "g++", "clang++")):
        pytest.skip("needs cmake and a C++ compiler")
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DEDGE_RT_BUILD_TESTS=ON", "-DEDGE_RT_WERROR=ON"]
    if shutil.which("ninja", path=path):
        configure += ["-G", "Ninja"]
    for command in (configure, [cmake, "--build", str(folder), "--target", "edge_rt_test_ops"]):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "csrc" / "tests" / "libedge_rt_test_ops.so"
