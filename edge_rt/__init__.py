"""edge-rt: run language models on your own device.

::

    import edge_rt

    with edge_rt.load("smollm2-135m-instruct") as model:
        chat = model.chat(system="Answer in one sentence.")
        for event in chat.stream("What is a haiku?"):
            print(event.text, end="", flush=True)

The names below are the public API; they are imported when first used, so that ``import edge_rt`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from edge_rt.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from edge_rt.api import (
        inspect_model as inspect_model,
        list_models as list_models,
        load as load,
        plan as plan,
        pull as pull,
        remove_model as remove_model,
    )
    from edge_rt.errors import (
        Busy as Busy,
        Cancelled as Cancelled,
        ConfigError as ConfigError,
        ContextOverflow as ContextOverflow,
        DeviceFailed as DeviceFailed,
        DeviceHung as DeviceHung,
        DeviceLost as DeviceLost,
        DeviceMemoryExhausted as DeviceMemoryExhausted,
        DownloadError as DownloadError,
        EdgeRTError as EdgeRTError,
        EncodingBudgetExceeded as EncodingBudgetExceeded,
        InferenceError as InferenceError,
        InputError as InputError,
        InvalidCorpus as InvalidCorpus,
        InvalidDrafter as InvalidDrafter,
        InvalidGrammar as InvalidGrammar,
        InvalidModelFile as InvalidModelFile,
        InvalidPackage as InvalidPackage,
        InvalidPromptCache as InvalidPromptCache,
        InvalidTemplate as InvalidTemplate,
        InvalidTokenizer as InvalidTokenizer,
        MemoryBudgetExceeded as MemoryBudgetExceeded,
        ModelClosed as ModelClosed,
        ModelNotFound as ModelNotFound,
        QualityLoss as QualityLoss,
        QueueFull as QueueFull,
        ReferenceBudgetExceeded as ReferenceBudgetExceeded,
        RuntimeUnavailable as RuntimeUnavailable,
        StorageError as StorageError,
        UnsupportedModel as UnsupportedModel,
        VersionMismatch as VersionMismatch,
    )
    from edge_rt.export.entry import export_model as export_model
    from edge_rt.export.exporter import ExportReport as ExportReport
    from edge_rt.measure.benchmark import BenchReport as BenchReport, bench as bench
    from edge_rt.memory.budget import Budget as Budget
    from edge_rt.memory.plan import Plan as Plan
    from edge_rt.package.reader import Package as Package, open_package as open_package
    from edge_rt.runtime.aio import AsyncStream as AsyncStream
    from edge_rt.runtime.chat import Chat as Chat
    from edge_rt.runtime.chat_messages import ChatMessage as ChatMessage, SavedChat as SavedChat
    from edge_rt.runtime.config import GenerationConfig as GenerationConfig, GenerationOptions as GenerationOptions
    from edge_rt.runtime.decode.scoring import Score as Score
    from edge_rt.runtime.forward.cancel import CancelToken as CancelToken
    from edge_rt.runtime.load.options import LoadOptions as LoadOptions
    from edge_rt.runtime.model import Model as Model
    from edge_rt.runtime.prompt_templates import Message as Message
    from edge_rt.runtime.prompts import Prompt as Prompt
    from edge_rt.runtime.results import (
        Event as Event,
        FinishReason as FinishReason,
        LogProb as LogProb,
        Memory as Memory,
        Result as Result,
        SpecStats as SpecStats,
        Timings as Timings,
        TokenLogProb as TokenLogProb,
        Usage as Usage,
    )
    from edge_rt.runtime.stream import Stream as Stream
    from edge_rt.server import asgi_app as asgi_app
    from edge_rt.store.layout import RemovedReport as RemovedReport, StoreEntry as StoreEntry
    from edge_rt.store.pull import PullReport as PullReport
    from edge_rt.system.progress import ProgressEvent as ProgressEvent
    from edge_rt.text.template_text import RenderedPrompt as RenderedPrompt
    from edge_rt.text.tokenizer import Tokenizer as Tokenizer
    from edge_rt.text.tool_calls import ToolCall as ToolCall

_HOME = {
    "edge_rt.api": ("inspect_model", "list_models", "load", "plan", "pull", "remove_model"),
    "edge_rt.errors": (
        "Busy", "Cancelled", "ConfigError", "ContextOverflow", "DeviceFailed", "DeviceHung", "DeviceLost",
        "DeviceMemoryExhausted", "DownloadError", "EdgeRTError", "EncodingBudgetExceeded", "InferenceError",
        "InputError", "InvalidCorpus", "InvalidDrafter", "InvalidGrammar", "InvalidModelFile",
        "InvalidPackage", "InvalidPromptCache", "InvalidTemplate", "InvalidTokenizer",
        "MemoryBudgetExceeded", "ModelClosed", "ModelNotFound", "QualityLoss", "QueueFull",
        "ReferenceBudgetExceeded", "RuntimeUnavailable", "StorageError", "UnsupportedModel", "VersionMismatch",
    ),
    "edge_rt.export.entry": ("export_model",),
    "edge_rt.export.exporter": ("ExportReport",),
    "edge_rt.measure.benchmark": ("BenchReport", "bench"),
    "edge_rt.memory.budget": ("Budget",),
    "edge_rt.memory.plan": ("Plan",),
    "edge_rt.package.reader": ("Package", "open_package"),
    "edge_rt.system.progress": ("ProgressEvent",),
    "edge_rt.runtime.aio": ("AsyncStream",),
    "edge_rt.runtime.stream": ("Stream",),
    "edge_rt.runtime.forward.cancel": ("CancelToken",),
    "edge_rt.runtime.chat": ("Chat",),
    "edge_rt.runtime.chat_messages": ("ChatMessage", "SavedChat"),
    "edge_rt.runtime.config": ("GenerationConfig", "GenerationOptions"),
    "edge_rt.runtime.model": ("Model",),
    "edge_rt.runtime.load.options": ("LoadOptions",),
    "edge_rt.runtime.prompt_templates": ("Message",),
    "edge_rt.runtime.prompts": ("Prompt",),
    "edge_rt.runtime.results": (
        "Event", "FinishReason", "LogProb", "Memory", "Result", "SpecStats", "Timings", "TokenLogProb", "Usage",
    ),
    "edge_rt.runtime.decode.scoring": ("Score",),
    "edge_rt.server": ("asgi_app",),
    "edge_rt.store.layout": ("RemovedReport", "StoreEntry"),
    "edge_rt.store.pull": ("PullReport",),
    "edge_rt.text.template_text": ("RenderedPrompt",),
    "edge_rt.text.tokenizer": ("Tokenizer",),
    "edge_rt.text.tool_calls": ("ToolCall",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE_OF, "__version__"])  # noqa: PLE0605 -- checked by tests/test_public_api.py


if not TYPE_CHECKING:  # to a type checker it would make every name an attribute

    def __getattr__(name: str) -> Any:
        try:
            module = _MODULE_OF[name]
        except KeyError:
            raise AttributeError(f"module 'edge_rt' has no attribute {name!r}") from None
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return list(__all__)
