"""Uses every public name and every option as the documentation says; type checkers accept all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

import edge_rt
from edge_rt import ray_workers

ERRORS: tuple[type[edge_rt.EdgeRTError], ...] = (
    edge_rt.Busy, edge_rt.Cancelled, edge_rt.ConfigError, edge_rt.ContextOverflow, edge_rt.DownloadError,
    edge_rt.EncodingBudgetExceeded, edge_rt.InferenceError, edge_rt.InputError, edge_rt.InvalidCorpus,
    edge_rt.InvalidDrafter, edge_rt.InvalidGrammar, edge_rt.InvalidModelFile, edge_rt.InvalidPackage,
    edge_rt.InvalidPromptCache,
    edge_rt.InvalidTemplate,
    edge_rt.InvalidTokenizer, edge_rt.MemoryBudgetExceeded, edge_rt.ModelClosed, edge_rt.ModelNotFound,
    edge_rt.QualityLoss, edge_rt.QueueFull, edge_rt.ReferenceBudgetExceeded, edge_rt.RuntimeUnavailable,
    edge_rt.DeviceFailed, edge_rt.DeviceHung, edge_rt.DeviceLost, edge_rt.DeviceMemoryExhausted,
    edge_rt.StorageError,
    edge_rt.UnsupportedModel, edge_rt.VersionMismatch,
)  # fmt: skip
VERSION: str = edge_rt.__version__
PLACES: tuple[str | Path, ...] = ("place", Path("place"))


def told(event: edge_rt.ProgressEvent) -> None:
    print(event.stage, event.message)


def made(source: str | Path, size: int | str | None) -> edge_rt.PullReport:
    export: edge_rt.ExportReport = edge_rt.export_model(
        source, "out", profile=None, activations="int8", weights="int4", size=size, calibration=None, sampling=None,
        force=False, accept_loss=False, exits=(6, 10), via=None, adapters=["a", Path("b")],
        progress=told, on_estimate=None, on_chatter=None,
    )  # fmt: skip
    print(export.to_json())
    return edge_rt.pull(
        source, store="store", name="mine", offline=True, activations=None, weights=None, size=size, accept_loss=True,
        force=False, progress=told,
    )  # fmt: skip


def kept(store: str | Path) -> edge_rt.RemovedReport:
    entries: Sequence[edge_rt.StoreEntry] = edge_rt.list_models(store=store)
    package: edge_rt.Package = edge_rt.open_package(str(entries[0].path))
    print(package.id, edge_rt.inspect_model("mine", store=store, verify=True)["kind"])
    return edge_rt.remove_model("mine", store=store)


def loaded(model: str | Path, memory: int | str | edge_rt.Budget | None) -> edge_rt.Model:
    plan: edge_rt.Plan = edge_rt.plan(
        model, memory=memory, device_memory="1GiB", ctx=512, threads=2, device="cpu", store=PLACES[0],
        prefill_chunk=64, kv="int8", spec="auto", draft_max=8, corpus="c", drafter="d", formats=True, prompt_cache="p",
        slots=2, kv_rows=4096, experts="auto",
    )  # fmt: skip
    options = edge_rt.LoadOptions(memory=memory, ctx=512, plan=plan)
    with edge_rt.Model(edge_rt.open_package(model), options) as other:
        return edge_rt.load(
            model, memory=memory, device_memory=None, ctx=None, threads=None, device="auto", on_device_error="cpu",
            store=PLACES[1], pull=True, prefill_chunk=None, kv=None, isa=None, spec=None, draft_max=None,
            corpus=Path("c"), drafter="none", formats=False, max_queue=8, prompt_cache="p", prompt_cache_size="1GiB",
            spec_trace=print, on_calibrate=print, experts=None, plan=plan, share_tokenizer_with=other,
        )  # fmt: skip


def tokens(model: edge_rt.Model, prompt: edge_rt.Prompt) -> int:
    tokenizer: edge_rt.Tokenizer = model.tokenizer
    ids: list[int] = model.encode("yes")
    text: str = model.decode(ids, skip_special=False)
    messages: list[edge_rt.Message] = [{"role": "user", "content": text}]
    rendered: edge_rt.RenderedPrompt = model.render(messages, add_generation_prompt=False)
    print(tokenizer.vocab_size, rendered.text)
    return model.count_tokens(prompt, tools=None, documents=None, template_args={"enable_thinking": False})


def measured(model: edge_rt.Model) -> edge_rt.BenchReport:
    return edge_rt.bench(
        model, repetitions=1, prompt_sizes=(8,), generate=4, depth=4, row_counts=(1, 2), on_progress=print
    )


def answered(model: edge_rt.Model, prompt: edge_rt.Prompt, **options: Unpack[edge_rt.GenerationOptions]) -> str:
    config = edge_rt.GenerationConfig(stop="END", logit_bias={5: -1.0}).with_options(**options)
    model.check(prompt, config, max_tokens=5)
    score: edge_rt.Score = model.score("text", cancel=None, on_progress=print)
    print(model.embed(["text"], prompt="query", truncate=True, cancel=None, on_progress=print).shape)
    print(score.perplexity)
    scores: tuple[edge_rt.TokenLogProb, ...] = model.generate(prompt, logprobs=1).logprobs or ()
    best: edge_rt.LogProb = scores[0].top[0]
    print(best.token_id, best.text, best.logprob)
    result: edge_rt.Result = model.generate(
        prompt, config, tools=[{"name": "clock"}], documents=None, template_args=None, cancel=edge_rt.CancelToken(),
        on_token=shown, on_prefill_progress=print, max_tokens=None, temperature=0, top_k=1, top_p=0.5, min_p=0,
        repetition_penalty=1.1, presence_penalty=0, frequency_penalty=0.0, logit_bias={5: 1}, seed=1, stop=["a", "b"],
        banned=[7], top_n_sigma=1, top_h=0.4, xtc_probability=0.5, xtc_threshold=0.1, dry_multiplier=0.8, dry_base=1.75,
        dry_allowed_length=2, dry_breakers=["\n"], fsd=0.4, fsd_order=3, logprobs=2, logits_processor=None,
        spec="off", reference="text", repetition_guard=True, accept="match",
        response_format={"type": "object"}, regex=None, grammar=None, json_spaces=False,
        tool_choice="auto", parallel_tool_calls=True,
    )  # fmt: skip
    many: list[edge_rt.Prompt | tuple[edge_rt.Prompt, dict[str, Any]]] = ["a", [1, 2], ("c", {"seed": 2}), prompt]
    for answer in model.generate_many(many, config, ordered=True, max_tokens=2):
        print(str(answer) if isinstance(answer, edge_rt.EdgeRTError) else answer.text)
    for index, one in model.generate_many([prompt], ordered=False, cancel=None):
        print(index + 1, one)
    with model.stream([1, 2], **options) as stream:
        known: edge_rt.Stream = stream
        for event in known:
            shown(event)
    return facts(result)


def facts(result: edge_rt.Result) -> str:
    reason: edge_rt.FinishReason = result.finish_reason
    usage: edge_rt.Usage = result.usage
    timings: edge_rt.Timings = result.timings
    memory: edge_rt.Memory = result.memory
    stats: edge_rt.SpecStats | None = result.spec
    calls: tuple[edge_rt.ToolCall, ...] = result.tool_calls
    print(usage.total_tokens, timings.ttft_ms, memory.peak_bytes, stats, [call.name for call in calls])
    return reason


def shown(event: edge_rt.Event) -> None:
    print(event.text, event.token_ids, event.reasoning)


def talked(model: edge_rt.Model, path: str | Path) -> list[edge_rt.ChatMessage]:
    chat: edge_rt.Chat = model.chat(system="Be brief.", tools=None, documents=None, template_args=None)
    chat.send("Hello", temperature=0, cancel=None, on_prefill_progress=None)
    chat.stream("Hello", stop="END").result()
    chat.send_tool_results(["noon"], max_tokens=3)
    chat.stream_tool_results([{"hour": 12}], seed=3).close()
    chat.regenerate(top_k=3).cancel()
    chat.save(path, settings={"seed": 3}, with_cache=True)
    saved: edge_rt.SavedChat = chat.load(path)
    print(saved.model)
    return chat.messages


async def talked_later(model: edge_rt.Model, tools: list[dict[str, Any]]) -> None:
    await model.agenerate("Hello", max_tokens=3, tools=tools, cancel=None)
    chat = model.chat()
    await chat.asend("Hello", seed=3)
    await chat.asend_tool_results(["noon"], seed=3)
    stream: edge_rt.AsyncStream = chat.astream("Hello", stop=("END",))
    async for event in stream:
        shown(event)
    async for event in model.astream("Hello", template_args={"enable_thinking": True}):
        shown(event)


def on_ray(batch: dict[str, npt.NDArray[np.object_]]) -> dict[str, npt.NDArray[Any]]:
    answerer = ray_workers.Answerer(
        "small", memory="600MiB", threads=1, slots=ray_workers.SLOTS, prompt_column="question", answer_column="answer",
        error_column="error", result_column=None, option_columns=["seed"], raw=False, options={"max_tokens": 8},
        load={"ctx": 512},
    )  # fmt: skip
    print(
        ray_workers.app_builder(
            "small", memory=1 << 30, threads=2, slots=2, max_queue=ray_workers.QUEUE, host="0.0.0.0",
            api_key_file="key", allowed_hosts=["box.lan"], allowed_origins=(), load=None,
        )()
    )  # fmt: skip
    return answerer(batch)


def mounted(model: edge_rt.Model) -> object:
    return edge_rt.asgi_app(
        {"small": model}, host="127.0.0.1", key="a-key-of-some-length", allowed_hosts=["box.lan"], allowed_origins=(),
    )  # fmt: skip
