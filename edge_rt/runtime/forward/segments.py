"""Graphs of a package that is cut at exits: what each is bound to, and its passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edge_rt.errors import InvalidPackage
from edge_rt.ort.binding import Binding
from edge_rt.ort.session import Session
from edge_rt.package.manifest import Segment
from edge_rt.runtime.forward.hidden_rows import INPUT, OUTPUT, HiddenRows
from edge_rt.runtime.forward.io_binding_base import Part, Specs, put_tokens
from edge_rt.runtime.forward.io_binding_native import NativeIOBinding, Places
from edge_rt.runtime.forward.outputs import TopTokens

Array = npt.NDArray[Any]


class PassInputs:
    """The inputs of passes of one shape, which all segments share.

    Args:
        rows: nodes of the tree, those that a segment has computed before included.
        wanted: rows that need logits; 0 for a draft.
    """

    sequences = 0
    """That have maps of their own; 0: one that has the first rows to itself."""

    def __init__(self, rows: int, wanted: int) -> None:
        self.ids = np.zeros(rows, np.int64)
        self.past_length = np.zeros(1, np.int32)
        self.parents = np.arange(-1, rows - 1, dtype=np.int32)
        self.logit_rows = np.arange(rows - wanted, rows, dtype=np.int64)
        self._chain, self._last_rows = self.parents.copy(), self.logit_rows.copy()

    def set(
        self,
        token_ids: Sequence[int],
        start: int,
        parents: Sequence[int] | None,
        logit_rows: Sequence[int] | None = None,
    ) -> None:
        """Write the inputs of the next run; arguments as of ``Runner.forward``."""
        self.ids[:] = token_ids
        self.past_length[0] = start
        self.parents[:] = self._chain if parents is None else parents
        self.logit_rows[:] = self._last_rows if logit_rows is None else logit_rows

    def bind(self, binding: Binding, done: int) -> None:
        """Bind the places of rows to a graph, which has computed the first ones before."""
        binding.bind_input("past_length", self.past_length)
        binding.bind_input("parents", self.parents)
        binding.bind_input("sequence_rows", np.asarray([len(self.ids) - done], np.int32))


class ManyInputs:
    """The same of passes of several sequences.

    Args:
        maps: of their rows, as ``NativeIOBinding.maps_of`` returns them.
    """

    def __init__(self, rows: int, wanted: int, maps: tuple[Array, Array]) -> None:
        self.sequences = len(maps[0])
        self.ids, self.logit_rows = np.zeros(rows, np.int64), np.zeros(wanted, np.int64)
        self._numbers, self._places = np.arange(rows, dtype=np.int64), Places(rows, *maps)

    def set(self, parts: Sequence[Part]) -> None:
        """Write the inputs of the next run."""
        put_tokens(parts, self.ids, self.logit_rows, self._numbers)
        self._places.put(parts)

    def bind(self, binding: Binding, done: int) -> None:
        """Bind the places of rows to a graph, of which it has computed none before."""
        assert not done, done
        self._places.bind(binding)


class LayersGraph:
    """The graph of a segment's layers."""

    def __init__(
        self, session: Session, segment: Segment, index: int, io_binding: NativeIOBinding, hidden: HiddenRows
    ) -> None:
        self._session = session
        self._index = index
        self._io_binding = io_binding
        self._hidden = hidden
        self._is_last = segment.end_layer == io_binding.model.num_layers
        self._inputs = {spec.name for spec in session.inputs}
        check_graph(session, segment.name, self._wanted_specs(segment), io_binding.rope_specs())
        io_binding.check_places(session, range(segment.first_layer, segment.end_layer))

    def _wanted_specs(self, segment: Segment) -> Specs:
        config = self._io_binding.model
        specs = self._io_binding.layer_specs(range(segment.first_layer, segment.end_layer))
        if self._index == 0:
            specs["input_ids"] = (("rows",), "tensor(int64)")
        else:
            specs[INPUT] = (("rows", config.hidden_size), "tensor(float)")
        if config.per_layer_embedding:
            specs["input_ids"] = (("rows",), "tensor(int64)")
        if self._is_last:
            specs |= {"logit_rows": (("logit_rows",), "tensor(int64)"), **logit_specs(self._io_binding)}
            specs |= {output.name: (output.shape, output.type) for output in self._io_binding.more_outputs}
        else:
            specs[OUTPUT] = (("rows", config.hidden_size), "tensor(float)")
        specs["parents"] = (("nodes",), "tensor(int32)")
        return specs

    def bind(self, inputs: PassInputs | ManyInputs, done: int, *, is_few: bool, goes_on: bool) -> Binding:
        """Bind the buffers for passes of a shape.

        Args:
            done: nodes of the tree that the segment has computed before; the pass computes the others.
            is_few: whether the rows behind the segments stay where they are.
            goes_on: whether the rows behind the segment go to another graph; otherwise the caller binds the outputs.
        """
        binding = self._session.binding()
        self._io_binding.bind_layers(binding, self._inputs, inputs.sequences)
        inputs.bind(binding, done)
        end = len(inputs.ids)
        if "input_ids" in self._inputs:
            binding.bind_input("input_ids", inputs.ids[done:])
        if self._index > 0:
            self._hidden.bind_input(binding, self._index - 1, done, end, is_few=is_few)
        if self._is_last:
            binding.bind_input("logit_rows", inputs.logit_rows)
        if goes_on:
            self._hidden.bind_output(binding, self._index, done, end, is_few=is_few)
        return binding


class HeadGraph:
    """The graph that makes logits of the hidden states at exits."""

    def __init__(self, session: Session, io_binding: NativeIOBinding, hidden: HiddenRows) -> None:
        self._session: Session | None = session
        self._hidden = hidden
        row: Specs = {INPUT: (("logit_rows", io_binding.model.hidden_size), "tensor(float)")}
        check_graph(session, "head", {**logit_specs(io_binding), **row})

    def bind(self, segment: int, row: int) -> Binding:
        """Bind a row behind a segment, of a pass of few rows; the caller binds the outputs."""
        assert self._session is not None, "the graph was released"
        binding = self._session.binding()
        self._hidden.bind_input(binding, segment, row, row + 1, is_few=True)
        return binding

    def close(self) -> None:
        """Release the graph; nothing can be bound afterwards."""
        self._session = None


class ExitAdapter(Protocol):
    """A trained network that guesses what follows from the hidden state at an exit, in place of the model's head."""

    def likely(self, hidden: Array, token_id: int) -> TopTokens:
        """Return the likely next tokens.

        Args:
            hidden: float32 ``[1, hidden_size]``, the row of a token behind the layers before the exit.
        """


def logit_specs(io_binding: NativeIOBinding) -> Specs:
    """Return name -> shape and type of the results of a graph that ends with the head."""
    return {"logits": (("logit_rows", io_binding.model.vocab_size), "tensor(float)"), **io_binding.output_specs()}


def check_graph(session: Session, name: str, wanted: Specs, optional: Specs | None = None) -> None:
    """Compare a graph's inputs and outputs with what the manifest says; ``optional`` ones may be missing."""
    found = {spec.name: (spec.shape, spec.type) for spec in (*session.inputs, *session.outputs)}
    known = {name: spec for name, spec in (optional or {}).items() if name in found}
    wanted = {**wanted, **known}
    if found != wanted:
        which = next(n for n in (*wanted, *found) if wanted.get(n) != found.get(n))
        raise InvalidPackage(
            f"The graph '{name}' of the package does not fit its manifest.",
            f"{which}: the manifest asks for {wanted.get(which)}, the graph has {found.get(which)}.",
            "Export or pull the model again.",
        )
