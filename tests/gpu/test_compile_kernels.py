"""What `compile_kernels` takes for a fault: instructions written down here, and small kernels given a compiler."""

from __future__ import annotations

import pytest

from edge_rt.device.kernels import Nvrtc, include_folders, kernel_files
from edge_rt.errors import RuntimeUnavailable
from tests.gpu.compile_kernels import SOURCES, Kernel, approximate, check_probe, faults, find_tool, read_cubin

DIVISION = ["MUFU.RCP R13, R0", "SHFL.BFLY PT, R2, R9, 0x1, 0x1f", "FFMA R10, -R0, R13, 1", "FFMA R13, R13, R10, R13"]
ROOT = ["MUFU.RSQ R2, R3", "FMUL.FTZ R0, R3, R2", "FMUL.FTZ R2, R2, 0.5", "FFMA R3, -R0, R0, R3"]
OF_INTEGERS = ["I2F.U32.RP R11, R19", "MUFU.RCP R11, R11", "IADD3 R12, R11, 0xffffffe, RZ"]
OF_DOUBLES = ["MUFU.RCP64H R7, R17", "DFMA R8, -R16, R6, 1"]


def kernel(code, **resources):
    return Kernel("k", 256, {"REG": 100, "STACK": 0, "SHARED": 0, "LOCAL": 0} | resources, code)


@pytest.mark.parametrize("code", [DIVISION, ROOT, OF_INTEGERS, OF_DOUBLES, ["MUFU.RSQ R2, -QNAN"]])
def test_steps_of_exact_operations(code):
    assert list(faults(kernel(code))) == []


@pytest.mark.parametrize(
    "code",
    [
        ["MUFU.EX2 R2, R3", "FFMA R2, R3, R2, 1"],
        ["@P0 MUFU.LG2 R2, R3"],
        ["MUFU.RCP R13, R0", "FMUL R2, R13, R5"],
        ["MUFU.RCP R1, R0", "FFMA R10, -R0, R13, R2"],
        ["MUFU.RSQ R2, R3", "FMUL R2, R2, R4"],
        ["MUFU.SQRT R2, R3"],
        ["MUFU.TANH R2, R3"],
    ],
)
def test_approximate_functions(code):
    assert len(list(approximate(code))) == 1


@pytest.mark.parametrize(
    ("code", "resources", "what"),
    [
        (["STL [R1], R5"], {}, "spilled"),
        (["@P1 LDL.LU R5, [R1]"], {}, "spilled"),
        ([], {"STACK": 8}, "8 bytes of stack"),
        ([], {"REG": 257}, "fit"),
        ([], {"SHARED": 49153}, "fit"),
    ],
)
def test_resources(code, resources, what):
    assert what in "".join(faults(kernel(code, **resources)))


def test_small_kernels():
    try:
        nvrtc, cuobjdump = Nvrtc(), find_tool("cuobjdump")
        find_tool("nvdisasm")
    except (RuntimeUnavailable, SystemExit) as error:
        pytest.skip(str(error))
    assert list(check_probe(nvrtc, 87, cuobjdump)) == []
    for path in kernel_files(SOURCES):
        if path.stem in ("quant_embed_cuda", "row_top_k_cuda"):
            cubin = nvrtc.compile(path.name, path.read_text(), 87, include_folders(SOURCES))
            for found in read_cubin(cubin, cuobjdump):
                assert found.threads > 0
                assert found.code
                assert list(faults(found)) == []
