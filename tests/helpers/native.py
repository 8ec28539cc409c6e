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
    return build_native(folder, "edge_rt_test_ops")


def build_native(folder, *targets):
    """Build libraries in ``folder``, or take those of ``EDGE_RT_TEST_BUILD``; return the path of the first."""
    if built := os.environ.get("EDGE_RT_TEST_BUILD"):
        return Path(built) / "csrc" / "tests" / f"lib{targets[0]}.so"
    # cmake and ninja come with the dev extra, beside this Python, which need not be on the path.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=path)
    if cmake is None or not any(shutil.which(name, path=path) for name in ("c++", "g++", "clang++")):
        pytest.skip("needs cmake and a C++ compiler")
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DEDGE_RT_BUILD_TESTS=ON", "-DEDGE_RT_WERROR=ON"]
    if shutil.which("ninja", path=path):
        configure += ["-G", "Ninja"]
    for command in (configure, [cmake, "--build", str(folder), "--target", *targets]):
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "csrc" / "tests" / f"lib{targets[0]}.so"
