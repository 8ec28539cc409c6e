"""Single operators on the emulated GPU and beside it on the CPU."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edge_rt.package.op_list import DOMAIN, OPS
from tests.gpu.emulated import on_gpu
from tests.ops.layer_cases import ATTRIBUTES, Layer
from tests.ops.single_op import NAMES, TYPES


class Node:
    """A session over one operator; inputs and outputs carry the names of its ports.

    Args:
        gpu: what sessions are opened on.
        name: the operator.
        attributes: of the node.
        inputs: name -> example array; only dtype and rank matter. Ports that are missing are left out.
        options: of ``Gpu.session``.
    """

    def __init__(self, gpu, name, attributes, inputs, **options):
        op = next(op for op in OPS if op.name == name)
        values = {
            key: ir.Value(name=key, shape=ir.Shape([None] * array.ndim), type=ir.TensorType(TYPES[array.dtype]))
            for key, array in inputs.items()
        }
        outputs = [ir.Value(name=port.name, type=ir.TensorType(NAMES[port.dtype])) for port in op.outputs]
        node = ir.node(name, [values.get(port.name) for port in op.inputs], attributes, domain=DOMAIN, outputs=outputs)
        self.session = gpu.session([node], list(values.values()), outputs, **options)
        self._is_on_gpu = not options.get("cpu", False)

    def run(self, **inputs):
        """Return the outputs of one run; an array ``cache`` is written to, wherever the operator runs."""
        binding, cache = self.session.io_binding(), None
        for name, array in inputs.items():
            if name == "cache" and self._is_on_gpu:
                cache = on_gpu(array)
                binding.bind_ortvalue_input(name, cache)
            else:
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for output in self.session.get_outputs():
            binding.bind_output(output.name)
        try:
            self.session.run_with_iobinding(binding)
            return binding.copy_outputs_to_cpu()
        finally:
            if cache is not None:
                inputs["cache"][:] = cache.numpy()


class _Placed:
    """Runs the nodes of a layer where ``place`` says; see ``tests.ops.layer_cases.Layer``."""

    def place_nodes(self, gpu, **options):
        self._gpu, self._placing = gpu, options
        return self

    def _run(self, op, name, attributes, inputs, options):
        assert not options
        key = (name, *attributes.items(), *inputs)
        if key not in self._ops:
            self._ops[key] = Node(self._gpu, op, attributes, inputs, **self._placing)
        return self._ops[key].run(**inputs)[0]


class PlacedLayer(_Placed, Layer):
    def node(self, **options):
        """Return a session over the whole layer, and its inputs but for those of a pass."""
        numbers = {**ATTRIBUTES, **self.attributes, **{f"{name}_format": form for name, form in self.formats.items()}}
        inputs = {**self.place(0, [-1]), "sequence_rows": np.ones(1, np.int32), **self.norms, **self.weights}
        x = np.zeros((1, ATTRIBUTES["hidden"]), np.float32)
        return Node(self._gpu, "DecoderLayer", numbers, {"x": x, **inputs}, **options), inputs


def pair(make, gpu):
    """Return the same layer twice: on the GPU and on the CPU."""
    return make().place_nodes(gpu), make().place_nodes(gpu, cpu=True)
