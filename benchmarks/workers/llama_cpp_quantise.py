"""Quantises a GGUF file with llama.cpp, with an importance matrix or without; needs llama-cpp-python, not edge-rt.

    python llama_cpp_quantise.py IN.gguf OUT.gguf TYPE [MOMENTS.npz]

MOMENTS holds, by name of a tensor, the mean square of every input of it, float32: what llama.cpp's imatrix tool sums.
"""

from __future__ import annotations

import ctypes
import sys

import llama_cpp
import numpy as np

FILE_TYPES = {
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q5_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "Q6_K": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "IQ4_XS": llama_cpp.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}


class ImatrixData(ctypes.Structure):
    """``llama_model_imatrix_data`` of llama.h."""

    _fields_ = (("name", ctypes.c_char_p), ("data", ctypes.POINTER(ctypes.c_float)), ("size", ctypes.c_size_t))


def main() -> None:
    source, target, kind, *moments = sys.argv[1:]
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread, parameters.allow_requantize = FILE_TYPES[kind], 2, True
    kept = []
    if moments:
        found = np.load(moments[0])
        # The last entry, all zero, ends the list.
        entries = (ImatrixData * (len(found.files) + 1))()
        for index, name in enumerate(found.files):
            kept.append(np.ascontiguousarray(found[name], np.float32))
            pointer = kept[-1].ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entries[index] = ImatrixData(name.encode(), pointer, kept[-1].size)
        parameters.imatrix = ctypes.cast(entries, type(parameters.imatrix))
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
        sys.exit(f"llama.cpp could not write {target}")


if __name__ == "__main__":
    main()
