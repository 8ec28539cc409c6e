"""The terms of a plan: the bytes of each part, with the formula that they come from as text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from edge_rt.memory.drafter_shapes import DrafterShape
from edge_rt.memory.figures import Amounts, Choice, Device
from edge_rt.memory.request import Request
from edge_rt.memory.shape import ModelShape
from edge_rt.memory.sizes import Regimes, Sizes
from edge_rt.memory.terms import TableBytes, drafting_bytes, drafts_ahead, drafts_itself, kv_rows
from edge_rt.package.decoder import Decoder
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.spec_modes import AHEAD, SELF
from edge_rt.system.byte_size import counted, show_size

if TYPE_CHECKING:
    from edge_rt.memory.gpu_terms import GpuSizes


@dataclass(frozen=True)
class Term:
    """A part of the memory.

    Attributes:
        name: one of runtime, tokenizer, weights, session, kv_cache, activations, logits, sampling, drafters; states if
            layers have some; formats if answers in a format were asked for; experts if they are read while the model
            runs; prompt_cache if stored prompts need memory of their own; slots if several answers are computed at
            once; corpus if there is one; drafter and drafter_head if a trained drafter is loaded, draft_weights and
            draft_model if a second model is; gpu_context if a GPU computes.
        bytes: largest size of the part in the memory of the process.
        kind: ``"file"`` (mapped: processes share it, and the kernel may drop it) or ``"private"``.
    """

    name: str
    bytes: int
    kind: str
    text: str
    device_bytes: int = 0


def terms_of(shape: ModelShape, choice: Choice, sizes: Sizes, request: Request) -> tuple[Term, ...]:
    """Return all terms; their sums are the peak memory of the process, and what a GPU holds.

    Args:
        sizes: bytes of its parts.
    """
    # Memory that only loading needs, beyond the peak of running, counts for the part that is being loaded.
    reading = sizes.load_excess if sizes.reading >= sizes.packing else 0
    packing = sizes.load_excess - reading
    private = "private"
    terms = [
        Term("runtime", sizes.runtime, private, "Python, ONNX Runtime and edge-rt before a model is loaded"),
        Term(
            "tokenizer", sizes.tokenizer + reading, private,
            f"{shape.model.vocab_size} tokens, {show_size(shape.tokenizer_bytes)} of JSON"
            + _briefly("reading", reading),
        ),
        Term(
            "weights", sizes.weights, "file" if choice.expert_bytes is None else private, _weights_text(shape, choice)
        ),
        Term(
            "session", sizes.session + packing, private,
            _session_text(shape, choice) + _briefly("packing" if sizes.gpu is None else "copying weights", packing),
        ),
        Term("kv_cache", sizes.kv_cache, private, _cache_text(shape, choice)),
        Term("activations", sizes.activations, private, _activations_text(choice, sizes)),
        Term("logits", sizes.logits, private, _logits_text(shape, choice, request)),
        Term("sampling", sizes.sampling, private, f"arrays of {shape.model.vocab_size} tokens"),
        Term("drafters", sizes.drafters, private, _drafters_text(shape, choice, sizes.tables)),
    ]  # fmt: skip
    if sizes.formats:
        terms.append(Term("formats", sizes.formats, private, f"tables of {shape.model.vocab_size} tokens for answers"))
    if sizes.prompt_cache:
        terms.append(Term("prompt_cache", sizes.prompt_cache, private, "rows of 64 tokens, from or to a file"))
    if sizes.states or (sizes.gpu is not None and sizes.gpu.states):
        terms.append(Term("states", sizes.states, private, _states_text(shape, choice)))
    if sizes.slots:
        terms.append(
            Term(
                "slots", sizes.slots, private, f"maps and lists of {choice.slots} answers at once, and of those before"
            )
        )
    if choice.expert_bytes is not None:
        terms.append(Term("experts", sizes.experts, private, _experts_text(shape, choice)))
    if sizes.corpus:
        terms.append(Term("corpus", sizes.corpus, "file", "the index of texts; in a long run lookups touch all of it"))
    if choice.drafter and request.drafter is not None:
        found = request.drafter
        terms.append(Term("drafter", sizes.drafter, "file", f"weights.bin of {found.name}, read in place"))
        terms.append(Term("drafter_head", sizes.drafter_head, private, _drafter_text(found, choice)))
    if choice.drafter and request.draft_model is not None:
        name, own = request.draft_model.shape.name, request.draft_model.choice(choice)
        terms.append(Term("draft_weights", sizes.draft_weights, "file", f"weights.bin of {name}, read in place"))
        text = f"graph, {own.kv_format} cache of {own.ctx} rows and passes of {name}, which drafts"
        terms.append(Term("draft_model", sizes.draft_model, private, text))
    return tuple(terms) if sizes.gpu is None else _on_gpu(terms, shape, choice, request, sizes, sizes.gpu)


def _on_gpu(
    terms: list[Term], shape: ModelShape, choice: Choice, request: Request, sizes: Sizes, gpu: GpuSizes
) -> tuple[Term, ...]:
    """Return the terms with what a GPU holds of them."""
    # Imported here: most plans are for the CPU.
    from edge_rt.memory.gpu_terms import gpu_kv_bytes

    mapped = drafting_bytes(shape, choice, request)
    weights, cache = "weights.bin, copied to the GPU", _cache_text(shape, choice)
    if sizes.weights > mapped and choice.gpu_layers is None:
        weights = "weights.bin, read in place by the GPU; copied, if its driver refuses that"
    passes = f"passes of 1 to {choice.largest_pass} rows, recorded ones apart"
    if choice.gpu_layers is not None:
        last = "layer" if choice.gpu_layers == 1 else f"{choice.gpu_layers} layers"
        weights = f"weights.bin: of the last {last} and the head copied to the GPU, of the others read in place"
        cache += ", each layer's where it is computed"
        passes = f"passes of 1 to {choice.largest_pass} rows, begun here and ended on the GPU"
    if mapped:
        weights += f"; {show_size(mapped)} of it mapped for drafts"
    rounded = gpu.kv_cache - gpu_kv_bytes(shape, choice, 0)
    if rounded:
        cache += f"; {show_size(rounded)} more in whole pages of the GPU's driver"
    held = {
        "weights": (gpu.weights, weights),
        "kv_cache": (gpu.kv_cache, cache),
        "activations": (gpu.activations, passes),
        "logits": (gpu.logits, None),
        "states": (gpu.states, None),
    }
    result = []
    for term in terms:
        count, text = held.get(term.name, (0, None))
        result.append(replace(term, device_bytes=count, text=text or term.text))
    context = "the driver, kernels, recorded passes: an estimate, not measured"
    return (*result, Term("gpu_context", 0, "private", context, gpu.context))


def _briefly(what: str, excess: int) -> str:
    return f"; {what} briefly needs {show_size(excess)} more than running" if excess else ""


def _experts_text(shape: ModelShape, choice: Choice) -> str:
    assert shape.experts is not None
    assert choice.expert_bytes is not None
    slots = sum(shape.experts.slots(choice.expert_bytes))
    missed = shape.experts.missed_bytes(choice.expert_bytes)
    share = 100 * shape.experts.hit_share(choice.expert_bytes)
    total = sum(pool.total for pool in shape.experts.pools)
    return f"cache of {slots} of {total} experts: {share:.0f} % are there, {show_size(int(missed))} read per token"


def _weights_text(shape: ModelShape, choice: Choice) -> str:
    if shape.op_profile != "native":
        return f"the part of weights.bin ({show_size(shape.weights_bytes)}) that stays mapped"
    if choice.expert_bytes is not None:
        return "weights.bin without experts, copied"
    return "weights.bin, read in place" + (", after the export" if shape.is_estimate else "")


def _session_text(shape: ModelShape, choice: Choice) -> str:
    packed = ", packed weights" if shape.op_profile != "native" else ""
    graphs = "graph" if shape.graphs == 1 else f"{shape.graphs} graphs"
    layers = counted(shape.model.num_layers, "layer")
    return f"{graphs} of {layers}, code of ONNX Runtime, lists of {choice.ctx} tokens{packed}"


def _cache_text(shape: ModelShape, choice: Choice) -> str:
    rows, windowed = kv_rows(shape, choice)
    window_layers, convs = shape.window_attentions, ""
    windows = f", {window_layers} of them {windowed}" if window_layers else ""
    if shape.conv_layers:
        layers = counted(shape.conv_layers, "short convolution")
        convs = f"; {windowed} rows x {layers} x {shape.conv_row_bytes} B"
    name = choice.kv_format if choice.kv_format in KV_FORMAT and shape.op_profile == "native" else "f32"
    shared = "" if choice.slots == 1 else f" that {choice.slots} slots share"
    if isinstance(shape.model, Decoder) and not shape.model.has_equal_heads:
        of_full, of_windowed = (shape.cache_bytes(choice.kv_format, *one) for one in ((1, 0), (0, 1)))
        kept = counted(len(shape.model.kv_layers), "layer")
        return f"{rows} rows{shared} x {of_full} B, {windowed} x {of_windowed} B in windows, of {kept} ({name}){convs}"
    row_bytes = shape.token_bytes(choice.kv_format)
    attending = counted(shape.full_layers + window_layers, "layer")
    return f"{rows} rows{shared} x {attending}{windows} x {row_bytes} B ({name}){convs}"


def _states_text(shape: ModelShape, choice: Choice) -> str:
    if not shape.recurrent_layers:
        return f"what windows saw of {counted(choice.checkpoints, 'earlier text')}"
    layers = counted(shape.recurrent_layers, "layer")
    of_slots = "" if choice.slots == 1 else f", of {choice.slots} slots"
    kept = f"; {counted(choice.checkpoints, 'state')} of earlier texts" if choice.checkpoints else ""
    return f"states of {layers}, twice, and what {counted(choice.tree_rows, 'draft')} would change{of_slots}{kept}"


def _activations_text(choice: Choice, sizes: Sizes) -> str:
    if sizes.chunk >= sizes.draft:
        return f"{min(choice.prefill_chunk, choice.ctx)} rows at once: a prefill chunk"
    return f"{counted(choice.tree_rows, 'row')} at once: a draft"


def _logits_text(shape: ModelShape, choice: Choice, request: Request) -> str:
    hidden = f", and {shape.model.hidden_size} hidden states" if request.returns_hidden(choice) else ""
    return f"{counted(choice.most_logits, 'row')} x {shape.model.vocab_size}{hidden} x 4 B"


def _drafter_text(drafter: DrafterShape, choice: Choice) -> str:
    prompt = drafter.prompt_rows(choice.ctx)
    if not drafter.row_bytes:
        return f"logits of {drafter.head_rows(choice.ctx)} tokens, states"
    return f"{drafter.vocabulary_size} + {prompt} rows of the LM head x {drafter.row_bytes} B, their logits, states"


def _drafters_text(shape: ModelShape, choice: Choice, tables: TableBytes) -> str:
    if not choice.draft_max:
        return "speculation is off"
    if choice.spec == SELF:
        return "a second graph over the same weights and cache"
    own = "; a second graph over the same weights and cache" if drafts_itself(shape, choice) else ""
    if drafts_ahead(shape, choice):
        block = f"a block that predicts ahead, with a cache of {choice.ctx} rows"
        if choice.spec == AHEAD:
            return block
        own += f"; {block}"
    if not choice.suffix_tokens and not choice.recycling_contexts:
        return "prices of passes and rates of acceptance"
    contexts = f"{choice.recycling_contexts} contexts x {tables.context} B"
    slots = "" if choice.slots == 1 else f"{choice.slots} slots x "
    return f"{slots}{choice.suffix_tokens} tokens x {tables.token} B + {contexts}{own}"


_REGIMES: Final = {
    "load": "tokenizer and graph are read",
    "prefill": "a prompt fills the context",
    "decode": "the largest pass is computed in a full context",
}


def rows_of(
    terms: tuple[Term, ...], device: Device, request: Request, needs: Amounts, budget: Amounts, regimes: Regimes
) -> list[tuple[str, str, str, str]]:
    """Return the rows of a table: the parts, their total and the budget.

    The third column is what a GPU holds; without one it is the share of the total.
    """
    if device.gpu is None:
        rows = [(one.name, show_size(one.bytes), f"{100 * one.bytes / needs.host:.1f} %", one.text) for one in terms]
        sums, budgets = (show_size(needs.host), ""), (show_size(budget.host), "")
    else:
        rows = [("", "process", "GPU", device.gpu.name)]
        rows += [(one.name, _shown(one.bytes), _shown(one.device_bytes), one.text) for one in terms]
        sums, budgets = (show_size(needs.host), "together"), (show_size(budget.host), "shared")
        if device.has_own_gpu_memory:
            sums, budgets = (sums[0], show_size(needs.gpu)), (budgets[0], show_size(budget.gpu))
    text = f"{'given' if request.budget_bytes is not None else 'what is available'}; {_left(budget.host - needs.host)}"
    if device.has_own_gpu_memory:
        of_gpu = "given" if request.device_budget_bytes is not None else "what is free there"
        text += f"; of the GPU {of_gpu}, {_left(budget.gpu - needs.gpu)}"
    elif device.gpu is not None and budget.heap < budget.host:
        text += f"; of it the GPU's driver allows {show_size(budget.heap)}, {_left(budget.heap - needs.heap)}"
    return [*rows, ("total", *sums, f"largest while {_REGIMES[regimes.largest]}"), ("budget", *budgets, text)]


def _shown(count: int) -> str:
    return show_size(count) if count else ""


def _left(count: int) -> str:
    return f"{show_size(count)} left" if count >= 0 else f"{show_size(-count)} too little"
