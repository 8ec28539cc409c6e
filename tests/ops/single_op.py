"""One operator in a graph of its own, run through ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edge_rt.ort.op_library import library_path, native_library
from edge_rt.package.op_list import DOMAIN, OPS

TYPES = {
    np.dtype(np.float32): ir.DataType.FLOAT,
    np.dtype(np.uint8): ir.DataType.UINT8,
    np.dtype(np.int32): ir.DataType.INT32,
    np.dtype(np.int64): ir.DataType.INT64,
}
NAMES = {"float": ir.DataType.FLOAT, "int32": ir.DataType.INT32}

needs_native = pytest.mark.skipif(library_path() is None, reason="edge-rt was installed without its native library")
ISAS = native_library().isa_names if library_path() is not None else ()


class SingleOp:
    """A session over one node; inputs and outputs carry the names of the operator's ports.

    Args:
        name: the operator.
        attributes: of the node.
        inputs: name -> example array; only dtype and rank matter. Ports that are missing are left out.
        isa: instruction set, None for the best.
        threads: that compute.
    """

    def __init__(self, name, attributes, inputs, *, isa=None, threads=1):
        op = next(op for op in OPS if op.name == name)
        values = {
            key: ir.Value(name=key, shape=ir.Shape([None] * array.ndim), type=ir.TensorType(TYPES[array.dtype]))
            for key, array in inputs.items()
        }
        outputs = [ir.Value(name=port.name, type=ir.TensorType(NAMES[port.dtype])) for port in op.outputs]
        node = ir.node(name, [values.get(port.name) for port in op.inputs], attributes, domain=DOMAIN, outputs=outputs)
        graph = ir.Graph(values.values(), outputs, nodes=[node], opset_imports={"": 21, DOMAIN: 1}, name="op")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        self._library = library = native_library()
        self._threads = threads
        library.select(isa)
        options.register_custom_ops_library(str(library.path))
        library.select(None)
        proto = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
        self._session = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"])

    def __call__(self, **inputs):
        """Return the outputs of one run; arrays are copied in, so nothing is written back."""
        self._library.use_threads(self._threads)
        return self._session.run(None, inputs)

    def run_in_place(self, **inputs):
        """Return the outputs of one run that may write into the arrays."""
        binding = self._session.io_binding()
        for key, array in inputs.items():
            assert array.flags.c_contiguous, key
            binding.bind_ortvalue_input(key, ort.OrtValue.ortvalue_from_numpy(array))
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        self._library.use_threads(self._threads)
        self._session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()
