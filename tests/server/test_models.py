"""Several models within one budget: loaded on demand, unloaded when idle or in the way, never over the budget."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from edge_rt.device.names import ON_CPU, DeviceChoice
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.budget import Budget
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.model import Model
from edge_rt.server.failures import HTTPFailure
from edge_rt.server.models import Models
from edge_rt.store.config import Preset
from tests.helpers.models import load_package
from tests.helpers.served import models_of, served


@pytest.fixture(scope="module")
def room(native_package):
    """A budget for one model, and not for two."""
    with load_package(native_package, ctx=256, slots=2, memory=Budget("64GiB")) as model:
        plan = model.plan
    return plan.total_bytes + (plan.total_bytes - plan.runtime_bytes) // 4


def test_a_model_goes_when_another_needs_its_room(native_package, room):
    async def run():
        budget = Budget(room)
        models = models_of({"one": native_package, "two": native_package}, ctx=256, slots=2, memory=budget)
        async with models.using("one") as first:
            assert first.model.slots == 2
            with pytest.raises(HTTPFailure) as busy:
                async with models.using("two"):
                    pass
            assert (busy.value.status, busy.value.retry_after) == (503, 5.0)
            async with models.using("") as again:
                assert again is first
        async with models.using("two") as second:
            assert second.model.slots == 2
            assert set(models.loaded) == {"two"}
            assert len(budget.claims) == 1
            assert budget.free_bytes >= 0
        await models.close()
        assert budget.claims == ()

    asyncio.run(run())


def test_what_was_given_up_to_fit_is_told(native_package, room):
    async def run():
        told = []
        models = models_of({"one": native_package}, ctx=256, slots=64, memory=Budget(room))
        models.log = told.append
        async with models.using("one") as entry:
            assert entry.model.slots < 64
        await models.close()
        assert any("less than was asked for" in line and "slots: " in line for line in told)

    asyncio.run(run())


def test_models_of_one_sequence_have_room_beside_each_other(small_package):
    """That they have one slot has nothing to do with memory."""

    async def run():
        told = []
        models = models_of({"one": small_package, "two": small_package}, ctx=256, slots=4, memory=Budget("64GiB"))
        models.log = told.append
        async with models.using("one") as one, models.using("two") as two:
            assert (one.model.slots, two.model.slots) == (1, 1)
            assert set(models.loaded) == {"one", "two"}
        await models.close()
        assert not any("memory" in line for line in told)
        found = [line for line in told if "one sequence" in line]
        of_each = "{} answers 1 request at a time, not 4: passes of portable packages have one sequence"
        assert found == [of_each.format(name) for name in ("one", "two")]

    asyncio.run(run())


def test_a_model_has_the_same_context_whoever_is_busy_when_it_is_loaded(long_package):
    async def run():
        with load_package(long_package, slots=2, memory=Budget("64GiB")) as model:
            plan, most = model.plan, model.context_tokens
        # For one model and much of another.
        budget = Budget(plan.total_bytes + (plan.total_bytes - plan.runtime_bytes) * 3 // 4)
        models = models_of({"one": long_package, "two": long_package}, slots=2, memory=budget)
        async with models.using("one") as first:
            assert first.model.context_tokens == most
            with pytest.raises(HTTPFailure) as busy:
                async with models.using("two"):
                    pass
            assert (busy.value.status, busy.value.retry_after) == (503, 5.0)
        async with models.using("two") as second:
            assert second.model.context_tokens == most
        await models.close()

    asyncio.run(run())


def test_prompts_are_kept_where_they_can_be_unless_a_folder_is_named(native_package, tmp_path):
    class Planned(Models):
        gpu = None

        def _plan(self, package, options):
            asked.append(options.prompt_cache)
            plan = super()._plan(package, options)
            return replace(plan, device=replace(plan.device, gpu=self.gpu))

        def _open(self, package, options, plan):
            return super()._open(package, options, replace(plan, device=replace(plan.device, gpu=None)))

    async def load(gpu):
        models = Planned(lambda: {"one": native_package}, "one", LoadOptions(ctx=256, slots=2))
        models.prompts_folder, models.log, models.gpu = tmp_path, lines.append, gpu
        await models.load("one")
        await models.close()

    asked, lines = [], []
    asyncio.run(load(None))
    asyncio.run(load(object()))
    assert asked == [tmp_path, tmp_path, None]
    assert ["kept on disk" in line for line in lines if "is loaded" in line] == [False, True]


def test_what_computes_is_told_and_again_when_another_device_takes_over(native_package):
    class Chosen(Models):
        """A choice of ``auto`` as of a plan where a GPU was not measured."""

        def _plan(self, package, options):
            return replace(super()._plan(package, options), device_choice=DeviceChoice(ON_CPU, "A GPU is not used."))

        def _open(self, package, options, plan):
            opened.append(options)
            return super()._open(package, options, plan)

    async def run():
        models = Chosen(lambda: {"one": native_package}, "one", LoadOptions(ctx=256, slots=2))
        models.log, models.warn = lines.append, warnings.append
        async with models.using("one") as entry:
            # As a model does that goes on with the CPU.
            entry.model.device_choice = DeviceChoice(ON_CPU, failures=(("vulkan:1", "It is lost."),))
            await asyncio.to_thread(opened[0].on_takeover, entry.model.device_choice)
            await asyncio.sleep(0)
            assert len(warnings) == 1
        async with models.using("one"):
            pass
        await models.close()
        # One that is unloaded meanwhile.
        opened[0].on_takeover(entry.model.device_choice)

    lines, warnings, opened = [], [], []
    asyncio.run(run())
    opened[0].on_takeover(None)
    assert lines[0].startswith("one is loaded on cpu (2 answers at once, 256 tokens of context, ")
    assert lines[1:] == ["one: A GPU is not used."]
    assert warnings == ["one: The CPU computes, because vulkan:1 failed: It is lost."]


def test_a_process_that_takes_more_than_its_budget_is_told_once(native_package):
    class Full(Model):
        over_budget = None

    class Loaded(Models):
        def _open(self, package, options, plan):
            return Full(package, options, plan)

    async def run():
        models = Loaded(lambda: {"one": native_package}, "one", LoadOptions(ctx=256, slots=2))
        models.warn = warnings.append
        async with models.using("one"):
            # As after a first answer.
            Full.over_budget = "the process has taken too much"
        async with models.using("one"):
            pass
        await models.close()

    warnings = []
    asyncio.run(run())
    assert warnings == ["the process has taken too much"]


def test_many_requests_of_a_model_load_it_once(native_package):
    async def run():
        models = models_of({"one": native_package}, ctx=256, slots=2)

        async def use():
            async with models.using("one") as entry:
                await asyncio.sleep(0.01)
                return entry.model

        assert len(set(await asyncio.gather(*(use() for _ in range(5))))) == 1
        assert models.loaded["one"].users == 0
        await models.close()

    asyncio.run(run())


def test_idle_models_are_unloaded_and_those_in_use_stay(native_package):
    async def run():
        now = [0.0]
        models = models_of({"one": native_package, "two": native_package}, ctx=256, slots=2)
        models.idle_seconds, models.clock = 60.0, lambda: now[0]
        async with models.using("one"):
            async with models.using("two"):
                now[0] += 50
            now[0] += 50
            await models.unload_idle()
            assert set(models.loaded) == {"one", "two"}
            now[0] += 20
            await models.unload_idle()
            assert set(models.loaded) == {"one"}
        await models.close()

    asyncio.run(run())


def test_a_model_that_is_used_again_while_another_is_unloaded_stays(native_package):
    async def run():
        now = [0.0]
        models = models_of({"one": native_package, "two": native_package}, ctx=256, slots=2)
        models.idle_seconds, models.clock = 60.0, lambda: now[0]
        for name in ("one", "two"):
            async with models.using(name):
                pass
        now[0] += 61
        begun = asyncio.Event()
        # "one" goes first; its closing is held until "two" has a user.
        closing, loop, model = threading.Event(), asyncio.get_running_loop(), models.loaded["one"].model
        close = model.close
        model.close = lambda: (loop.call_soon_threadsafe(begun.set), closing.wait(60), close())
        task = asyncio.create_task(models.unload_idle())
        await begun.wait()
        async with models.using("two") as entry:
            closing.set()
            await task
            assert models.loaded == {"two": entry}
            entry.model.reset()
        await models.close()

    asyncio.run(run())


@pytest.mark.parametrize("name", ["three", "../one", "/etc/passwd", "https://example.com/one", "ONE", "\ud800"])
def test_names_alone_are_models(native_package, name):
    async def run():
        async with models_of({"one": native_package}).using(name):
            pass

    with pytest.raises(HTTPFailure) as refused:
        asyncio.run(run())
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")
    assert "Its models: one" in refused.value.message


def test_what_cannot_be_loaded_is_told_without_paths(native_package, tmp_path):
    async def run(**options):
        models = models_of({"one": tmp_path if not options else native_package}, **options)
        lines = []
        models.log = lines.append
        async with models.using("one"):
            pass

    with pytest.raises(HTTPFailure) as damaged:
        asyncio.run(run())
    assert (damaged.value.status, damaged.value.code) == (500, "model_not_loadable")
    assert str(tmp_path) not in damaged.value.message
    with pytest.raises(HTTPFailure) as large:
        asyncio.run(run(memory=Budget("8MiB")))
    assert (large.value.status, large.value.code, large.value.retry_after) == (503, "out_of_memory", None)


def test_a_model_that_is_loaded_first_tells_its_own_error(native_package):
    with pytest.raises(MemoryBudgetExceeded):
        asyncio.run(models_of({"one": native_package}, memory=Budget("8MiB")).load("one"))


def answer_of(client, **fields):
    """Return the text of a chat completion."""
    return client.post("/v1/chat/completions", json=fields).json()["choices"][0]["message"]["content"]


def test_a_preset_is_its_model_with_a_system_message_and_options(native_package, alone):
    preset = Preset("small", system="Be brief.", max_tokens=4, sampling={"temperature": 0.0})
    presets = {"poet": preset, "novelist": Preset("small", max_tokens=999)}
    models = models_of({"small": native_package, "poet": native_package}, presets, slots=2, ctx=256)
    said = [{"role": "user", "content": "Hello"}]
    with served(models) as (_, client):
        expected = alone.generate([{"role": "system", "content": "Be brief."}, *said], max_tokens=4, temperature=0)
        assert answer_of(client, model="poet", messages=said) == expected.text
        own = [{"role": "system", "content": "Sing."}, *said]
        expected = alone.generate(own, max_tokens=7, temperature=0)
        assert answer_of(client, model="poet", messages=own, max_tokens=7) == expected.text
        # Counted and written out as it is answered.
        system = [{"role": "system", "content": "Be brief."}, *said]
        for path in ("/tokenize", "/apply-template"):
            first, second = (
                client.post(path, json={"model": model, "messages": messages}).json()
                for model, messages in (("poet", said), ("small", system))
            )
            assert first == second
        counted = client.post("/v1/messages/count_tokens", json={"model": "poet", "messages": said}).json()
        assert counted == {"input_tokens": alone.count_tokens(system)}
        # A plain text stays as it is; options hold, before what is usual there.
        written = client.post("/v1/completions", json={"model": "poet", "prompt": "Once"}).json()
        assert written["choices"][0]["text"] == alone.generate("Once", max_tokens=4, temperature=0).text
        assert set(models.loaded) == {"small"}
        # A field that the request did not have is not what is wrong with it.
        for fields, param in (({}, None), ({"max_tokens": 999}, "max_tokens")):
            refused = client.post("/v1/chat/completions", json={"model": "novelist", "messages": said, **fields})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        shown = {one["id"]: one["edge_rt"] for one in client.get("/v1/models").json()["data"]}
        expected = {"is_loaded": True, "context_tokens": 256, "slots": 2, "device": "cpu"}
        assert shown["poet"] == shown["small"] == expected


def test_the_usual_model_may_be_a_preset(native_package, alone):
    preset = Preset("small", max_tokens=3, sampling={"temperature": 0.0})
    models = models_of({"poet": native_package, "small": native_package}, {"poet": preset}, slots=2, ctx=256)
    said = [{"role": "user", "content": "Hello"}]
    with served(models) as (_, client):
        assert answer_of(client, messages=said) == alone.generate(said, max_tokens=3, temperature=0).text
        assert client.get("/props").json()["model"] == "small"
        # As other servers do: the name that was asked for, so that a client finds its own again.
        for path, fields in (
            ("/v1/chat/completions", {"messages": said}),
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/responses", {"input": "x"}),
            ("/v1/messages", {"messages": said, "max_tokens": 1}),
            ("/api/chat", {"messages": said, "stream": False}),
        ):
            for asked, name in (("small", "small"), ("poet", "poet"), ("default", "poet"), (None, "poet")):
                if path == "/api/chat" and asked == "default":
                    continue
                answer = client.post(path, json={"model": asked, **fields})
                assert (path, answer.json()["model"]) == (path, name)
