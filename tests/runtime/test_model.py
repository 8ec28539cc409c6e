from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from edge_rt.errors import (
    Busy,
    ConfigError,
    ContextOverflow,
    InferenceError,
    InvalidPackage,
    InvalidTemplate,
    MemoryBudgetExceeded,
    ModelClosed,
    RuntimeUnavailable,
)
from edge_rt.package.sampling import Sampling
from edge_rt.runtime import model as engine
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.decode.sampling import Sampler
from edge_rt.runtime.forward.cancel import CancelToken
from tests.helpers.gguf_factory import EOS_ID
from tests.helpers.models import load_package
from tests.helpers.packages import copied, edit_manifest, manifest_setter, replace_file
from tests.helpers.small import GREEDY

TEXT = "The little boat left the harbour at dawn, and the sea was calm."


GIVEN = {"max_tokens": 12, "seed": 5, "logit_bias": GREEDY["logit_bias"]}
ADVICE = {"temperature": 2.0, "top_k": 3, "repetition_penalty": 1.5}


@pytest.fixture
def advised(small_package, tmp_path):
    """The small model with advice of its own."""
    package = copied(small_package, tmp_path)
    edit_manifest(package, manifest_setter("sampling", ADVICE))
    with load_package(package) as model:
        yield model


class TestSampling:
    def test_a_model_s_advice_holds_where_nothing_is_asked_for(self, advised, model):
        answer = advised.generate(TEXT, **GIVEN)
        assert answer.token_ids == model.generate(TEXT, **GIVEN, **ADVICE).token_ids
        assert answer.token_ids != model.generate(TEXT, **GIVEN).token_ids

    def test_what_is_asked_for_comes_first(self, advised, model):
        asked = {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0}
        answer = advised.generate(TEXT, **GIVEN, **asked)
        assert answer.token_ids == model.generate(TEXT, **GIVEN, **asked).token_ids

    def test_greedy_answers_take_no_advice(self, advised, model):
        options = {"max_tokens": 12, **GREEDY}
        assert advised.generate(TEXT, **options).token_ids == model.generate(TEXT, **options).token_ids

    def test_a_prompt_s_end_tokens_are_not_penalised(self, model, monkeypatch):
        seen = []
        monkeypatch.setattr(engine, "Sampler", lambda *a, **given: seen.append(given["exempt"]) or Sampler(*a, **given))
        model.generate([5, EOS_ID, 6, EOS_ID], max_tokens=1, repetition_penalty=2.0)
        assert EOS_ID in seen[0]

    def test_the_guard_is_on_unless_it_is_turned_off(self, model):
        options = {"temperature": 0.0, "logit_bias": {40: 1000.0}, "max_tokens": 240}
        assert model.generate(TEXT, **options).finish_reason == "repetition"
        assert model.generate(TEXT, **options, repetition_guard=False).finish_reason == "length"


class TestPrompts:
    def test_a_text_its_tokens_and_the_stream_say_the_same(self, model):
        answer = model.generate(TEXT, max_tokens=8, **GREEDY)
        ids = model.tokenizer.encode_prompt(TEXT)
        assert answer.usage.prompt_tokens == len(ids)
        assert model.generate(ids, max_tokens=8, **GREEDY).token_ids == answer.token_ids
        with model.stream(TEXT, max_tokens=8, **GREEDY) as stream:
            events = list(stream)
        assert "".join(event.text for event in events) == answer.text
        assert tuple(token for event in events for token in event.token_ids) == answer.token_ids

    def test_messages_go_through_the_template(self, model):
        messages = [{"role": "user", "content": "Hello!"}]
        ids = model.tokenizer.encode_rendered(model.render(messages))
        assert model.generate(messages, max_tokens=4, **GREEDY).usage.prompt_tokens == len(ids)

    @pytest.mark.parametrize(
        "prompt", [[1, -1], [1, 419], [1, "x"], [True], [1.0], b"abc", [None], [[1]], [{"role": "user"}, 5]]
    )
    def test_what_is_no_prompt(self, model, prompt):
        with pytest.raises(ConfigError):
            model.generate(prompt, max_tokens=1)

    @pytest.mark.parametrize("prompt", ["", []])
    def test_an_empty_prompt(self, model, prompt):
        with pytest.raises(ConfigError, match="prompt is empty"):
            model.generate(prompt, max_tokens=1)

    def test_a_prompt_that_does_not_fit(self, model):
        with pytest.raises(ContextOverflow, match=r"Prompt 600 tokens \+ 1 reserved > context 512\."):
            model.generate([5] * 600)

    def test_unknown_options(self, model):
        with pytest.raises(ConfigError, match=r"generate has no option 'temprature'.*Did you mean 'temperature'\?"):
            model.generate(TEXT, temprature=1.0)
        with pytest.raises(ConfigError, match=r"astream has no option 'tool'.*Did you mean 'tools'\?"):
            model.astream(TEXT, tool=[])
        with pytest.raises(ConfigError, match=r"send has no option 'max_new_tokens'.*Did you mean 'max_tokens'\?"):
            model.chat().send(TEXT, max_new_tokens=3)
        with pytest.raises(ConfigError, match="agenerate has no option 'tool'"):
            asyncio.run(model.agenerate(TEXT, tool=[]))
        with pytest.raises(ConfigError, match="asend has no option 'tools'"):
            asyncio.run(model.chat().asend(TEXT, tools=[]))
        with pytest.raises(ConfigError, match="asend_tool_results has no option 'tools'"):
            asyncio.run(model.chat().asend_tool_results([], tools=[]))
        with pytest.raises(ConfigError, match=r"Its options: accept.*Correct its name"):
            model.generate(TEXT, bogus=1)

    @pytest.mark.parametrize(
        ("call", "options", "wanted"),
        [
            ("generate", {"config": {"max_tokens": 3}}, r"a GenerationConfig or None\. Give GenerationConfig\("),
            ("generate", {"cancel": 5}, "a CancelToken or None"),
            ("generate", {"on_token": 5}, "a function or None"),
            ("generate", {"temperature": "a"}, "a number or None"),
            ("generate_many", {"prompts": None}, r"a list\. Give a list"),
            ("generate_many", {"prompts": "hello"}, "a list"),
            ("generate_many", {"prompts": ["x"], "cancel": 5}, "a CancelToken or None"),
            ("encode", {"text": None}, "a text"),
            ("decode", {"token_ids": "abc"}, "a list"),
            ("decode", {"token_ids": None}, "a list"),
            ("embed", {"texts": "hello"}, "a list"),
            ("chat", {"system": 5}, "a text or None"),
        ],
    )
    def test_values_of_other_types(self, model, call, options, wanted):
        given = [TEXT] if call == "generate" else []
        with pytest.raises(ConfigError, match=f"^{call}: the option .* is of the wrong type.*wanted {wanted}"):
            getattr(model, call)(*given, **options)

    @pytest.mark.parametrize("token", ["a", 1.5, None])
    def test_a_token_is_a_whole_number(self, model, token):
        with pytest.raises(ConfigError, match="There is no such token"):
            model.decode([token])

    @pytest.mark.parametrize("copy_of", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_a_model_and_a_chat_are_not_copied(self, model, copy_of):
        for what, name in ((model, "model"), (model.chat(), "chat")):
            with pytest.raises(ConfigError, match=f"A {name} cannot be pickled or copied"):
                copy_of(what)

    def test_any_value_is_taken_where_any_is_meant(self, model):
        assert model.generate(TEXT, response_format=None, tool_choice="none", max_tokens=2).text is not None


class TestAnswers:
    def test_the_context_can_be_filled_to_the_last_token(self, model):
        result = model.generate([5] * 505, **GREEDY)
        assert (result.finish_reason, result.usage.total_tokens) == ("context_full", 512)
        assert model.cached_tokens == 511
        with pytest.raises(ContextOverflow):
            model.generate([5] * 505, max_tokens=8)
        assert model.generate([5] * 511, max_tokens=1, **GREEDY).finish_reason == "length"

    @pytest.mark.parametrize("options", [GREEDY, {"seed": 4, "temperature": 1.0}])
    def test_the_same_again_whatever_the_cache_holds(self, model, options):
        first = model.generate(TEXT, max_tokens=12, **options)
        again = model.generate(TEXT, max_tokens=12, **options)
        assert (again.token_ids, again.usage.cached_tokens) == (first.token_ids, first.usage.prompt_tokens - 1)

    def test_chunked_prefill_agrees(self, model, small_package):
        ids = [(11 * i) % 400 + 3 for i in range(100)]
        expected = model.generate(ids, max_tokens=6, **GREEDY)
        with load_package(small_package, prefill_chunk=16) as other:
            assert other.generate(ids, max_tokens=6, **GREEDY).token_ids == expected.token_ids

    def test_the_result_is_json(self, model):
        document = json.loads(json.dumps(model.generate(TEXT, max_tokens=3, **GREEDY).to_json()))
        assert set(document) == {
            "text", "token_ids", "finish_reason", "stop_string", "usage", "timings", "spec", "memory",
        }  # fmt: skip
        timings = document["timings"]
        assert timings["prompt_n"] + timings["cache_n"] == document["usage"]["prompt_tokens"]
        assert 0 < timings["prompt_ms"] <= timings["ttft_ms"]
        assert timings["predicted_n"] == 3
        assert document["memory"]["peak_bytes"] > 1 << 20

    def test_describe_is_json(self, model):
        document = json.loads(json.dumps(model.describe()))
        assert document["context_tokens"] == 512
        assert document["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
        assert (document["op_profile"], document["isa"], document["kv_format"]) == ("portable", None, "f32")
        assert document["prefill_chunk"] == 128
        assert document["providers"] == ["CPUExecutionProvider"]
        assert document["quantisation"]["attention"] == "Q4_1"

    def test_describe_tells_what_tokens_are_chosen_with(self, model):
        assert model.describe()["sampling"] == dataclasses.asdict(Sampling())

    def test_reset_forgets(self, model):
        model.generate(TEXT, max_tokens=2, **GREEDY)
        model.reset()
        assert model.cached_tokens == 0
        assert model.generate(TEXT, max_tokens=2, **GREEDY).usage.cached_tokens == 0


class TestInterruption:
    def test_break_frees_the_model_at_once(self, model):
        for _ in model.stream(TEXT, **GREEDY):
            break
        assert model.generate(TEXT, max_tokens=1, **GREEDY).usage.completion_tokens == 1

    def test_break_does_not_throw_the_callers_token(self, model):
        cancel = CancelToken()
        for _ in model.stream(TEXT, cancel=cancel, **GREEDY):
            break
        assert not cancel.cancelled

    def test_the_result_after_break_is_a_cancelled_one(self, model):
        expected = model.generate(TEXT, max_tokens=1, **GREEDY)
        stream = model.stream(TEXT, **GREEDY)
        for _ in stream:
            break
        assert (stream.result().finish_reason, stream.result().token_ids) == ("cancelled", expected.token_ids)

    def test_cancel_from_another_thread(self, model):
        cancel = CancelToken()
        begun, cancelled = threading.Event(), threading.Event()
        results = []

        def work():
            options = GREEDY | {"on_token": lambda event: (begun.set(), cancelled.wait(60))}
            results.append(model.generate(TEXT, cancel=cancel, **options))

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        cancel.cancel()
        cancelled.set()
        thread.join(60)
        assert results[0].finish_reason == "cancelled"
        assert len(results[0].token_ids) < 400

    def test_a_thrown_token_generates_nothing(self, model):
        cancel = CancelToken()
        cancel.cancel()
        result = model.generate(TEXT, cancel=cancel, **GREEDY)
        assert (result.finish_reason, result.token_ids) == ("cancelled", ())
        assert model.generate(TEXT, max_tokens=1, **GREEDY).finish_reason == "length"

    def test_cancelled_in_prefill(self, small_package):
        with load_package(small_package, prefill_chunk=8) as model:
            expected = model.generate([7] * 60, max_tokens=4, **GREEDY).token_ids
            model.reset()
            cancel = CancelToken()
            result = model.generate(
                [7] * 60, cancel=cancel, on_prefill_progress=lambda done, total: cancel.cancel(), **GREEDY
            )
            assert (result.finish_reason, result.token_ids, model.cached_tokens) == ("cancelled", (), 0)
            assert model.generate([7] * 60, max_tokens=4, **GREEDY).token_ids == expected

    @pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
    def test_a_signal_at_any_moment(self, model):
        """What a session answers afterwards is what a fresh one answers."""
        expected = model.generate(TEXT, max_tokens=30, **GREEDY).token_ids
        tokens = []
        before = signal.signal(signal.SIGALRM, lambda number, frame: tokens[-1].cancel())
        moments = random.Random(3)
        reasons = []
        try:
            for _ in range(60):
                tokens.append(CancelToken())
                prompt = [moments.randrange(3, 400) for _ in range(moments.randrange(1, 300))]
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-4, 6e-3))
                reasons.append(model.generate(prompt, cancel=tokens[-1], max_tokens=100, **GREEDY).finish_reason)
                signal.setitimer(signal.ITIMER_REAL, 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert reasons.count("cancelled") > 10
        assert model.generate(TEXT, max_tokens=30, **GREEDY).token_ids == expected

    def test_an_exception_in_on_token_passes_and_frees(self, model):
        def on_token(event):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            model.generate(TEXT, on_token=on_token, **GREEDY)
        assert model.generate(TEXT, max_tokens=1, **GREEDY).finish_reason == "length"

    def test_an_exception_in_prefill_progress_passes_and_frees(self, small_package):
        def on_prefill(done, total):
            raise KeyError("mine")

        with load_package(small_package, prefill_chunk=8) as model:
            with pytest.raises(KeyError, match="mine"):
                model.generate([7] * 60, on_prefill_progress=on_prefill, **GREEDY)
            assert model.generate([7] * 60, max_tokens=1, **GREEDY).finish_reason == "length"


class TestBusy:
    def test_a_second_generation(self, model):
        expected = model.generate(TEXT, max_tokens=5, **GREEDY).token_ids
        with model.stream(TEXT, max_tokens=5, **GREEDY) as stream:
            events = iter(stream)
            next(events)
            for attempt in (lambda: model.generate("x", max_tokens=1), model.reset):
                with pytest.raises(Busy):
                    attempt()
            assert stream.result().token_ids == expected

    def test_from_many_threads_one_wins_and_is_undisturbed(self, model):
        expected = model.generate(TEXT, max_tokens=40, **GREEDY).token_ids
        outcomes = []
        together = threading.Barrier(6)

        def work():
            together.wait()
            try:
                outcomes.append(model.generate(TEXT, max_tokens=40, **GREEDY).token_ids)
            except Busy:
                outcomes.append("busy")

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(outcomes) == 6
        answers = [outcome for outcome in outcomes if outcome != "busy"]
        assert answers
        assert set(answers) == {expected}


class TestClose:
    def test_twice_and_use_after(self, small_package):
        model = load_package(small_package)
        chat = model.chat()
        model.close()
        model.close()
        for use in (lambda: model.generate("x"), lambda: model.stream([5]), model.reset, lambda: chat.send("x")):
            with pytest.raises(ModelClosed):
                use()
        assert json.dumps(model.describe())

    def test_in_the_middle_of_a_stream_of_the_same_thread(self, small_package):
        model = load_package(small_package)
        stream = model.stream(TEXT, **GREEDY)
        events = iter(stream)
        next(events)
        model.close()
        assert list(events) == []
        assert stream.result().finish_reason == "cancelled"

    def test_an_exception_in_the_loop_of_a_with_block(self, small_package):
        """The traceback keeps the half-read stream alive while the model is closed."""

        def read():
            with load_package(small_package) as model:
                for _ in model.stream(TEXT, **GREEDY):
                    raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            read()

    def test_from_another_thread_while_it_runs(self, small_package):
        model = load_package(small_package)
        begun, closing = threading.Event(), threading.Event()
        results = []

        def work():
            # Hundreds of tokens would take seconds.
            options = GREEDY | {"on_token": lambda event: (begun.set(), closing.wait(60), time.sleep(0.01))}
            results.append(model.generate(TEXT, **options))

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        started = time.process_time()
        closing.set()
        model.close()
        assert time.process_time() - started < 1
        thread.join(60)
        assert not thread.is_alive()
        assert results[0].finish_reason == "cancelled"

    def test_fifty_models_take_no_memory_along(self, small_package):
        program = (
            "import gc, sys, edge_rt, psutil\n"
            "held = []\n"
            "for count in (10, 50):\n"
            "    for _ in range(count):\n"
            "        with edge_rt.load(sys.argv[1]) as model:\n"
            "            model.generate('one', max_tokens=2)\n"
            "    gc.collect()\n"
            "    held.append(psutil.Process().memory_info().rss)\n"
            "print(held[1] - held[0])\n"
        )
        command = [sys.executable, "-c", program, str(small_package)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 8 << 20


class TestProcess:
    def test_a_second_model_is_independent(self, model, small_package):
        expected = model.generate(TEXT, max_tokens=6, **GREEDY).token_ids
        with load_package(small_package, ctx=64) as other, model.stream(TEXT, max_tokens=6, **GREEDY) as stream:
            events = iter(stream)
            next(events)
            assert other.generate(TEXT, max_tokens=6, **GREEDY).token_ids == expected
            assert stream.result().token_ids == expected

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_child_is_told(self, model):
        pid = os.fork()
        if pid == 0:
            try:
                model.generate(TEXT, max_tokens=1)
            except InferenceError as error:
                os._exit(0 if "forked" in str(error) else 1)
            except BaseException:
                os._exit(2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert model.generate(TEXT, max_tokens=1, **GREEDY).finish_reason == "length"


class TestAsync:
    def test_agenerate(self, model):
        expected = model.generate(TEXT, max_tokens=6, **GREEDY).token_ids
        assert asyncio.run(model.agenerate(TEXT, max_tokens=6, **GREEDY)).token_ids == expected

    def test_a_cancelled_task_frees_the_model(self, model):
        begun, cancelled = threading.Event(), threading.Event()
        options = GREEDY | {"on_prefill_progress": lambda *_: (begun.set(), cancelled.wait(60))}

        async def main():
            task = asyncio.create_task(model.agenerate([5] * 300, **options))
            while not (begun.is_set() or task.done()):
                await asyncio.sleep(0.001)
            task.cancel()
            # The task is told first.
            asyncio.get_running_loop().call_later(0.01, cancelled.set)
            with pytest.raises(asyncio.CancelledError):
                await task
            return model.generate(TEXT, max_tokens=1, **GREEDY)

        assert asyncio.run(main()).finish_reason == "length"

    def test_errors_reach_the_task(self, model):
        async def main():
            async with model.astream(TEXT, **GREEDY) as stream:
                async for _ in stream:
                    with pytest.raises(Busy):
                        await model.agenerate("x", max_tokens=1)
                    break
            assert stream.result().finish_reason == "cancelled"

        asyncio.run(main())


class TestLoad:
    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"ctx": 0}, ConfigError),
            ({"ctx": 1}, ConfigError),
            ({"ctx": -5}, ConfigError),
            ({"ctx": 513}, ConfigError),
            ({"ctx": 1 << 40}, ConfigError),
            ({"threads": 0}, ConfigError),
            ({"threads": -1}, ConfigError),
            ({"threads": 10**6}, ConfigError),
            ({"device": "tpu"}, ConfigError),
            ({"device": "cuda:99"}, RuntimeUnavailable),
            ({"device": "webgpu:99"}, RuntimeUnavailable),
            ({"prefill_chunk": 0}, ConfigError),
            ({"kv": "f16"}, ConfigError),
            ({"isa": "scalar"}, ConfigError),
        ],
    )
    def test_arguments_out_of_range(self, small_package, options, error):
        with pytest.raises(error):
            load_package(small_package, **options)

    def test_another_size_of_the_thread_pool(self, model, small_package):
        with pytest.raises(ConfigError, match="another size"):
            load_package(small_package, threads=model.threads + 1)

    def test_the_context_is_what_was_asked_for(self, small_package):
        with load_package(small_package, ctx=17) as model:
            assert model.context_tokens == 17
            assert model.generate([5] * 10, **GREEDY).usage.total_tokens == 17

    def test_a_cache_that_there_is_no_room_for(self, small_package, tmp_path):
        package = copied(small_package, tmp_path)
        edit_manifest(package, manifest_setter("decoder.context_length", 1 << 24))
        with pytest.raises(MemoryBudgetExceeded, match="does not fit the memory"):
            load_package(package, ctx=1 << 24, memory="1GiB")
        edit_manifest(package, manifest_setter("decoder.context_length", 1 << 62))
        with pytest.raises(InvalidPackage, match=r"context_length is 4611686018427387904, must be 1 to 16777216"):
            load_package(package)

    def test_a_manifest_that_promises_more_context_than_the_graph_has(self, small_package, tmp_path):
        package = copied(small_package, tmp_path)
        edit_manifest(package, manifest_setter("decoder.context_length", 4096))
        with load_package(package) as model:
            with pytest.raises(InferenceError):
                model.generate([5] * 600, max_tokens=4, **GREEDY)
            assert model.generate([5] * 100, max_tokens=4, **GREEDY).finish_reason == "length"

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("vocab_size", 420),
            ("pattern", [0]),
            ("kinds.0.attention.head_dim", 32),
            ("kinds.0.attention.num_kv_heads", 1),
        ],
    )
    def test_a_manifest_that_does_not_fit_its_graph(self, small_package, tmp_path, field, value):
        package = copied(small_package, tmp_path)

        def change(document):
            manifest_setter(f"decoder.{field}", value)(document)
            document["segments"][0]["end_layer"] = len(document["decoder"]["pattern"])

        edit_manifest(package, change)
        with pytest.raises(InvalidPackage, match="does not fit its manifest"):
            load_package(package)

    @pytest.mark.parametrize("graph", [b"", b"\x00" * 100, b"not a graph", None])
    def test_a_graph_that_is_none(self, small_package, tmp_path, graph):
        package = copied(small_package, tmp_path)
        data = (package / "model.onnx").read_bytes()[:500] if graph is None else graph
        replace_file(package, "model.onnx", data)
        with pytest.raises(InvalidPackage):
            load_package(package)

    def test_weights_that_end_early(self, small_package, tmp_path):
        package = copied(small_package, tmp_path)
        replace_file(package, "weights.bin", (package / "weights.bin").read_bytes()[:5000])
        with pytest.raises(InvalidPackage):
            load_package(package)

    @pytest.mark.parametrize("template", [b"{% if %}", b"\xff\xfe{{", b"{{ ''.__class__ }}"])
    def test_a_template_that_cannot_be_used_stops_chats_only(self, small_package, tmp_path, template):
        package = copied(small_package, tmp_path)
        replace_file(package, "chat_template.jinja", template)
        with load_package(package) as model:
            assert model.generate(TEXT, GenerationConfig(max_tokens=1)).usage.completion_tokens == 1
            with pytest.raises(InvalidTemplate):
                model.chat()


@pytest.mark.parametrize("as_messages", [False, True], ids=["text", "messages"])
def test_ten_megabytes_of_prompt_are_refused_without_being_cut_into_tokens(model, as_messages):
    text = "word " * 2_000_000
    started = time.process_time()
    with pytest.raises(ContextOverflow):
        model.generate([{"role": "user", "content": text}] if as_messages else text)
    assert time.process_time() - started < 2


def test_close_frees_the_cache_and_keeps_its_counts(small_package):
    model = load_package(small_package)
    model.generate("Hello", max_tokens=2, **GREEDY)
    with model.passes() as (runner, _):
        interface = runner._io_binding
        assert interface.keys
    cached = model.cached_tokens
    model.close()
    assert (interface.keys, interface.values, model.cached_tokens) == ([], [], cached)


def test_an_array_of_ids_is_a_prompt(model):
    ids = model.tokenizer.encode_text("Hello there")
    assert model.generate(np.array(ids), max_tokens=3, **GREEDY).usage.prompt_tokens == len(ids)


@pytest.mark.parametrize("prompt", [None, 5, b"text", {"role": "user"}, ...], ids=repr)
def test_what_is_no_prompt_is_a_typed_error(model, prompt):
    with pytest.raises(ConfigError, match="neither a text, nor messages, nor token ids"):
        model.generate(prompt)


def test_token_ids_of_a_chat_may_be_an_array(model):
    ids = np.array([5, 6, 7])
    assert model.stream_ids(ids, GenerationConfig(max_tokens=2, **GREEDY)).result().usage.prompt_tokens == 3


class TestOverflow:
    """How much too long a prompt is, and what helps."""

    def test_a_long_prompt_is_counted_or_estimated(self, model):
        long = "The boats were asleep in the harbour. " * 1500
        for text in (long, long * 8):
            with pytest.raises(ContextOverflow) as caught:
                model.generate(text)
            error, tokens = caught.value, model.count_tokens(text)
            assert error.is_estimate == (text is not long)
            assert error.prompt_tokens == (pytest.approx(tokens, rel=0.01) if error.is_estimate else tokens)
            about = "about " if error.is_estimate else ""
            assert f"Shorten the prompt by {about}{error.prompt_tokens + 1 - 512} tokens." in str(error)

    def test_an_answer_that_is_too_long_is_told_from_the_prompt(self, model):
        with pytest.raises(ContextOverflow, match=r"Prompt 1 tokens \+ 600 .* Ask for at most 511 tokens\.$"):
            model.generate("e", max_tokens=600)

    def test_a_larger_context_is_advised_where_the_model_has_one(self, small_package, model):
        with pytest.raises(ContextOverflow) as largest:
            model.generate([5] * 600)
        assert "larger context" not in str(largest.value)
        with load_package(small_package, ctx=64) as small:
            with pytest.raises(ContextOverflow, match=r"load the model with a larger context \(up to 512\)"):
                small.chat().stream("water " * 60)
            with pytest.raises(ContextOverflow) as caught:
                small.generate([5] * 600)
        assert "larger context" not in str(caught.value)


class TestTokens:
    MESSAGES = ({"role": "user", "content": "Hello <|im_end|>"},)

    def test_texts_and_ids(self, model):
        ids = model.encode(TEXT)
        assert model.decode(ids) == TEXT
        assert model.decode([EOS_ID, *ids]) == TEXT
        assert model.decode([EOS_ID, *ids], skip_special=False) == "<|im_end|>" + TEXT

    @pytest.mark.parametrize("prompt", [TEXT, [5, 6, 7], np.array([5, 6]), list(MESSAGES)], ids=str)
    def test_tokens_of_prompts_are_those_of_the_usage(self, model, prompt):
        assert model.count_tokens(prompt) == model.generate(prompt, max_tokens=1).usage.prompt_tokens

    def test_a_text_may_be_longer_than_the_context(self, model):
        assert model.count_tokens([5] * 600) == 600
        assert model.count_tokens(TEXT * 100) > 512


class TestCheck:
    """What would be refused is refused before an answer begins."""

    def test_nothing_is_computed(self, model):
        assert model.check(TEXT, max_tokens=5) is None
        assert model.cached_tokens == 0

    @pytest.mark.parametrize(
        ("error", "prompt", "options"),
        [
            (ConfigError, TEXT, {"temprature": 1}),
            (ConfigError, TEXT, {"top_k": -1}),
            (ConfigError, TEXT, {"spec": "nobody"}),
            (ConfigError, TEXT, {"tools": [{"name": "clock"}]}),
            (ConfigError, None, {}),
            (ContextOverflow, [5] * 600, {}),
            (ContextOverflow, [{"role": "user", "content": TEXT * 100}], {}),
            (ConfigError, [{"role": "user"}], {}),
        ],
        ids=str,
    )
    def test_errors_are_those_of_a_generation(self, model, error, prompt, options):
        for refuse in (model.check, model.generate):
            with pytest.raises(error):
                refuse(prompt, **options)

    def test_a_model_that_generates_is_busy(self, model):
        for _ in model.stream(TEXT, max_tokens=3):
            with pytest.raises(Busy):
                model.check(TEXT)
            break
        model.check(TEXT)


def test_what_a_model_and_a_chat_are_called(small_package):
    with load_package(small_package, ctx=64) as model:
        assert repr(model) == "<edge_rt.Model 'small', 64 tokens of context, on cpu>"
        chat = model.chat(system="Be brief.")
        assert repr(chat) == "<edge_rt.Chat with 'small', 1 message>"
    assert repr(model) == "<edge_rt.Model 'small', closed, on cpu>"
