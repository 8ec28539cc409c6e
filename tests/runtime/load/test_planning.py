"""A load keeps to its memory plan: what is decided, what is refused, and what a failure leaves behind."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

import edge_rt
from edge_rt.errors import (
    ConfigError,
    EdgeRTError,
    EncodingBudgetExceeded,
    InvalidCorpus,
    InvalidTemplate,
    InvalidTokenizer,
    MemoryBudgetExceeded,
    StorageError,
)
from edge_rt.measure.memory_report import measured_terms
from edge_rt.memory.budget import Budget
from edge_rt.package.reader import open_package
from edge_rt.package.spec_modes import CORPUS_MODES, USED_BY
from edge_rt.runtime.load.load_plan import claim
from edge_rt.runtime.load.options import LoadOptions
from edge_rt.runtime.load.planning import plan_package
from edge_rt.runtime.speculation.corpus_build import build_corpus
from edge_rt.runtime.speculation.source import Guess
from tests.helpers.measured import measure_plan
from tests.helpers.models import load_package
from tests.helpers.packages import copied, replace_file
from tests.helpers.small import FREE_ROWS, GREEDY

MIB = 1 << 20
AMPLE = 4096 * MIB
HELD = 100 * MIB
"""What a process is said to hold, where a plan shall not depend on this one."""
TEXT = "The little boat left the harbour at dawn, and the sea was calm. " * 3


@pytest.fixture
def package(native_package):
    return open_package(native_package)


class TestDecisions:
    def test_without_a_budget_there_is_what_the_machine_has(self, package):
        held = 1 << 50
        plan = plan_package(package, LoadOptions(base_bytes=held))
        assert 0 < plan.budget_bytes - held < psutil.virtual_memory().total
        memory = claim(plan, LoadOptions()).to_json()
        assert (memory["budget_bytes"], memory["given_up"]) == (None, [])
        assert memory["planned_bytes"] == sum(memory["terms"].values()) > held

    @pytest.mark.parametrize("memory", [MIB, "0.5MiB"])
    def test_too_little_is_refused_with_needed_available_and_a_way_out(self, native_package, memory):
        with pytest.raises(MemoryBudgetExceeded, match=r"needs at least .* MiB .*budget is .*Try memory=") as caught:
            edge_rt.load(native_package, memory=memory)
        assert caught.value.exit_code == 4
        # As its folder is called, whatever its file called the model.
        assert caught.value.what == f"{native_package.name} does not fit the memory."

    @pytest.mark.parametrize("memory", ["", "much", "-5MiB", 0, 1.5, 2e9, True, b"1GiB"])
    def test_a_size_is_a_whole_number_or_a_text(self, memory):
        said = "The size" if isinstance(memory, str) or memory == 0 else "a whole number.* a text"
        for use in (Budget, lambda size: LoadOptions(memory=size).budget_bytes):
            with pytest.raises(ConfigError, match=said):
                use(memory)

    def test_advice_is_given_as_arguments_that_work(self, package):
        asked = {"ctx": 400, "kv": "int8", "spec": "suffix"}
        options = LoadOptions(memory="20MiB", base_bytes=HELD, **asked)
        with pytest.raises(MemoryBudgetExceeded) as caught:
            claim(plan_package(package, options), options)
        assert "--" not in str(caught.value)
        advice = eval(f"dict({caught.value.action.partition('Try ')[2].partition(' (needs')[0]})")
        assert set(advice) >= {"memory", *asked}
        assert plan_package(package, LoadOptions(base_bytes=HELD, **advice)).fits

    @pytest.mark.parametrize("asked", [{"ctx": 1}, {"ctx": 513}, {"kv": "int3"}, {"prefill_chunk": 0}])
    def test_what_no_budget_makes_possible(self, native_package, asked):
        with pytest.raises(ConfigError):
            edge_rt.plan(native_package, memory=AMPLE, **asked)


class TestCorpus:
    @pytest.fixture
    def corpus(self, native_package, tmp_path):
        manifest = open_package(native_package).manifest
        sha256 = manifest.files[manifest.tokenizer.file].sha256
        texts = [[token % 400 for token in range(5, 5000)]]
        build_corpus(texts, tmp_path / "corpus", vocab_size=manifest.model.vocab_size, tokenizer_sha256=sha256)
        return tmp_path / "corpus"

    def test_its_file_is_part_of_the_plan_and_of_the_load(self, native_package, corpus):
        plan = edge_rt.plan(native_package, memory=AMPLE, corpus=corpus)
        term = next(term for term in plan.terms if term.name == "corpus")
        assert (term.bytes, term.kind) == (corpus.stat().st_size, "file")
        with edge_rt.load(native_package, plan=plan) as model:
            assert model.speculation.corpus is not None
            assert model.speculation.corpus.path == corpus

    def test_speculation_is_not_given_up_beside_it(self, package, corpus):
        options = LoadOptions(memory=AMPLE, corpus=corpus, base_bytes=HELD)
        least = plan_package(package, options).minimum_bytes
        plan = plan_package(package, options.but(memory=least + 8 * MIB))
        assert plan.choice.spec != "off"

    @pytest.mark.parametrize("mode", ["off", "recycling", "ngram", "reference"])
    def test_a_mode_that_does_not_use_it_is_refused(self, native_package, corpus, mode):
        with pytest.raises(ConfigError, match=f"not used with the mode of speculation '{mode}'.*auto, suffix"):
            edge_rt.load(native_package, spec=mode, corpus=corpus)

    def test_the_command_line_refuses_the_same_modes(self):
        assert USED_BY["--corpus"] == CORPUS_MODES

    def test_what_is_none_is_refused(self, native_package, tmp_path):
        (tmp_path / "text").write_text("no corpus " * 100)
        for path, error in (
            (tmp_path, StorageError),
            (tmp_path / "nothing", StorageError),
            (tmp_path / "text", InvalidCorpus),
        ):
            with pytest.raises(error, match=re.escape(str(path))):
                edge_rt.load(native_package, corpus=path)

    def test_driving_it_to_its_limits_looks_all_of_it_up(self, native_package, corpus):
        plan = edge_rt.plan(native_package, memory=AMPLE, ctx=64, spec="suffix", corpus=corpus)
        run = measure_plan(native_package, plan)
        assert measured_terms(run.stages)["corpus"] >= 0.9 * corpus.stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="mappings are read from /proc")
def test_a_closed_model_leaves_no_weights_mapped_whatever_its_template_raised(native_package, tmp_path):
    package = copied(native_package, tmp_path)
    replace_file(package, open_package(package).manifest.chat_template, b"{% for %}")

    def mapped() -> bool:
        return str(package) in Path("/proc/self/maps").read_text()

    gc.disable()
    try:
        with edge_rt.load(package, memory=AMPLE, spec="off") as model:
            with suppress(InvalidTemplate):
                model.chat().send("one")
            assert mapped()
        assert not mapped()
    finally:
        gc.enable()


class TestSharedBudget:
    def test_two_models_share_one_and_the_process_is_counted_once(self, native_package):
        budget = Budget(AMPLE)
        with edge_rt.load(native_package, memory=budget) as one:
            left = budget.free_bytes
            assert left == AMPLE - one.plan.total_bytes
            with edge_rt.load(native_package, memory=budget, ctx=64) as two:
                own = two.plan.total_bytes - budget.base_bytes
                # The process itself may grow by some MiB in between; it has hundreds.
                growth = 16 << 20
                assert budget.free_bytes == pytest.approx(left - own, abs=growth)
                assert own < two.plan.total_bytes - 2 * growth
                assert two.plan.budget_bytes == pytest.approx(left + budget.base_bytes, abs=growth)
                assert two.describe()["memory"]["budget_bytes"] == AMPLE
            assert budget.free_bytes == pytest.approx(left, abs=growth)
        assert budget.claims == ()
        assert budget.free_bytes == pytest.approx(AMPLE - budget.base_bytes, abs=growth)

    def test_the_second_model_gets_what_is_left(self, package):
        options = LoadOptions(memory=AMPLE, spec="off", base_bytes=HELD)
        budget = Budget(plan_package(package, options).total_bytes)
        options = options.but(memory=budget)
        for _ in range(2):
            first = claim(plan_package(package, options), options)
            with pytest.raises(MemoryBudgetExceeded):
                claim(plan_package(package, options), options)
            first.release()

    @pytest.mark.parametrize(
        ("name", "error"), [("tokenizer.json", InvalidTokenizer), ("model.onnx", EdgeRTError)], ids=str
    )
    def test_a_load_that_fails_half_way_holds_nothing(self, native_package, tmp_path, name, error):
        package = copied(native_package, tmp_path)
        replace_file(package, name, b"{}")
        budget = Budget(AMPLE)
        with pytest.raises(error):
            edge_rt.load(package, memory=budget)
        assert (budget.free_bytes, budget.claims) == (AMPLE - budget.base_bytes, ())

    def test_a_model_that_is_dropped_without_being_closed_gives_its_share_back(self, native_package):
        budget = Budget(AMPLE)
        model = edge_rt.load(native_package, memory=budget)
        assert len(budget.claims) == 1
        del model
        gc.collect()
        assert budget.claims == ()

    def test_advice_for_a_shared_budget_is_a_larger_one_for_all(self, package):
        options = LoadOptions(memory=Budget(AMPLE), base_bytes=HELD)
        options.budget.claim("others", AMPLE - 20 * MIB)
        with pytest.raises(MemoryBudgetExceeded) as caught:
            claim(plan_package(package, options), options)
        found = re.search(r'Try memory=Budget\("(\d+)MiB"\)', caught.value.action)
        assert found is not None, caught.value.action
        larger = options.but(memory=Budget(int(found[1]) * MIB))
        larger.budget.claim("others", AMPLE - 20 * MIB)
        claim(plan_package(package, larger), larger)


class TestDecidedPlan:
    @pytest.mark.parametrize("given", ["x", 5, {}], ids=repr)
    def test_it_is_one(self, native_package, given):
        with pytest.raises(ConfigError, match=r"the option 'plan' is of the wrong type.*wanted a Plan or None"):
            edge_rt.load(native_package, plan=given)

    def test_it_is_done_as_it_is(self, native_package):
        asked = {"ctx": 64, "kv": "int8", "spec": "suffix", "draft_max": 3, "prefill_chunk": 17}
        plan = edge_rt.plan(native_package, memory=AMPLE, **asked)
        choice = plan.choice
        assert (choice.ctx, choice.kv_format, choice.spec, choice.draft_max) == (64, "int8", "suffix", 3)
        with edge_rt.load(native_package, plan=plan) as model:
            assert model.plan is plan
            facts = model.describe()
        assert facts["memory"]["budget_bytes"] == AMPLE
        assert (facts["context_tokens"], facts["kv_format"], facts["prefill_chunk"]) == (64, "int8", 17)
        assert (facts["speculation"], model.logit_rows) == ("suffix", 4)

    def test_a_budget_that_others_share_gives_the_share_of_it(self, native_package):
        budget = Budget(AMPLE)
        plan = edge_rt.plan(native_package, memory=budget, ctx=64)
        with edge_rt.load(native_package, memory=budget, plan=plan):
            assert budget.free_bytes == AMPLE - plan.total_bytes

    @pytest.mark.parametrize("more", [{"ctx": 64}, {"memory": AMPLE}, {"kv": "auto"}, {"threads": 1}], ids=str)
    def test_what_it_decides_is_not_given_again(self, native_package, more):
        plan = edge_rt.plan(native_package)
        with pytest.raises(ConfigError, match=f"already decided these options.*{next(iter(more))}"):
            edge_rt.load(native_package, plan=plan, **more)

    def test_of_another_package_it_is_refused(self, native_package, small_package):
        with pytest.raises(ConfigError, match="another package"):
            edge_rt.load(small_package, plan=edge_rt.plan(native_package))

    def test_one_that_does_not_fit_is_refused(self, native_package):
        with pytest.raises(MemoryBudgetExceeded):
            edge_rt.load(native_package, plan=edge_rt.plan(native_package, memory="5MiB"))


class TestSharedTokenizer:
    def test_models_of_one_tokenizer_share_it(self, native_package):
        with edge_rt.load(native_package, spec="off") as one:
            texts, expected = one.texts, one.generate(TEXT, max_tokens=5, **GREEDY).token_ids
        assert one.texts is None
        with edge_rt.load(native_package, spec="off", share_tokenizer_with=texts) as two:
            assert two.tokenizer is texts.tokenizer
            assert two.generate(TEXT, max_tokens=5, **GREEDY).token_ids == expected

    def test_another_tokenizer_is_read(self, native_package, tmp_path):
        package = copied(native_package, tmp_path)
        replace_file(package, "tokenizer.json", (package / "tokenizer.json").read_bytes() + b"\n")
        with (
            edge_rt.load(native_package, spec="off") as one,
            edge_rt.load(package, share_tokenizer_with=one.texts) as two,
        ):
            assert two.tokenizer is not one.tokenizer


@pytest.fixture(scope="module")
def strict_model(native_package):
    with edge_rt.load(native_package, memory=AMPLE, draft_max=3, prefill_chunk=32) as model:
        yield model


@pytest.fixture
def strict(strict_model):
    """A model in a budget, for which rows cost nothing."""
    strict_model.reset()
    strict_model.speculation.costs = FREE_ROWS
    return strict_model


@pytest.fixture(scope="module")
def answer(native_package):
    """What is answered without speculation and without a budget."""
    with edge_rt.load(native_package, spec="off") as model:
        return model.generate(TEXT, max_tokens=60, **GREEDY)


class TestLimits:
    def test_a_pass_that_wants_too_many_logits_is_refused_and_the_next_one_is_as_before(self, strict):
        assert strict.logit_rows == 4
        with strict.passes() as (runner, _):
            before = runner.forward([5, 6, 7, 8], 0, 4).logits.copy()
            with pytest.raises(MemoryBudgetExceeded, match=r"5 rows of 419 logits; the plan has 4\."):
                runner.forward([5] * 5, 0, 5)
            assert (runner.forward([5, 6, 7, 8], 0, 4).logits == before).all()

    def test_a_pass_that_is_too_large_is_refused_and_the_next_one_is_as_before(self, native_package):
        answers = []
        for memory in (None, AMPLE):
            with edge_rt.load(native_package, memory=memory, prefill_chunk=1, spec="off", ctx=512) as model:
                with model.passes() as (runner, _):
                    first = runner.forward([7], 0, 1).logits.copy()
                    if memory is not None:
                        with pytest.raises(MemoryBudgetExceeded, match="needs more memory than is available for it"):
                            runner.forward([5] * 512, 0, 1)
                    assert (runner.forward([7], 0, 1).logits == first).all()
                answers.append(model.generate(TEXT, max_tokens=20, **GREEDY).token_ids)
        assert answers[0] == answers[1]

    def test_logits_take_exactly_their_rows(self, strict):
        with strict.passes() as (runner, _):
            whole = runner.forward([5] * 4, 0, 4).logits
            base = runner.forward([5], 0, 1).logits
        assert np.shares_memory(whole, base)

    def test_what_is_measured_stays_within_the_plan(self, strict):
        assert strict.calibrate().rows == (1, 2, 4)

    def test_drafts_are_no_larger_than_planned(self, native_package):
        steps = []
        options = {"spec": "auto", "draft_max": 3, "spec_trace": steps.append}
        with load_package(native_package, memory=AMPLE, **options) as model:
            model.speculation.costs = FREE_ROWS
            for _ in range(2):
                model.generate(TEXT, max_tokens=60, **GREEDY)
        assert max(step["drafted"] for step in steps) == 3

    def test_a_budget_does_not_change_an_answer(self, strict, answer):
        assert strict.generate(TEXT, max_tokens=60, **GREEDY).token_ids == answer.token_ids

    def test_a_drafter_that_the_plan_has_no_room_for_is_refused(self, native_package):
        with edge_rt.load(native_package, memory=AMPLE, spec="off") as model:
            for mode in ("auto", "suffix", "ngram", "recycling"):
                with pytest.raises(MemoryBudgetExceeded, match=f"no room for the drafter '{mode}'"):
                    model.generate(TEXT, spec=mode, max_tokens=2)
            assert model.generate(TEXT, max_tokens=2, **GREEDY).usage.completion_tokens == 2

    def test_without_a_budget_it_is_there_when_it_is_asked_for(self, native_package):
        with edge_rt.load(native_package, spec="off") as model:
            model.speculation.costs = FREE_ROWS
            assert model.generate(TEXT, spec="suffix", max_tokens=40, **GREEDY).spec.mode == "suffix"

    def test_a_reference_text_takes_the_place_of_other_tables(self, strict):
        room = strict.plan.choice.suffix_tokens
        assert room > 0
        reference = " harbour" * (room * 2)
        with pytest.raises(MemoryBudgetExceeded, match="reference text does not fit"):
            strict.generate(TEXT, reference=reference, max_tokens=2, **GREEDY)
        result = strict.generate(TEXT, reference="and the sea was calm", max_tokens=40, **GREEDY)
        assert result.token_ids == strict.generate(TEXT, spec="off", max_tokens=40, **GREEDY).token_ids

    def test_results_tell_plan_and_budget(self, strict):
        memory = strict.generate(TEXT, max_tokens=2, **GREEDY).memory
        assert (memory.planned_bytes, memory.budget_bytes) == (strict.plan.total_bytes, AMPLE)


class TestUncutTexts:
    """Texts of one word are encoded at once: the plan has room for 8,192 bytes, what the budget leaves for more."""

    def test_one_that_is_longer_than_planned_takes_what_the_budget_leaves(self, native_package):
        with edge_rt.load(native_package, memory=AMPLE, ctx=64) as model:
            text = "~" * 40000
            assert model.texts.estimate_tokens(text)[0] > 64
            model.texts._require_encodable(text)
            planned = model.generate("one", max_tokens=2, **GREEDY).memory.planned_bytes
            assert 200 * 40000 < planned - model.plan.total_bytes < 1000 * 40000
            # The same room serves the next one.
            model.texts._require_encodable(text)
            assert model.generate("one", max_tokens=2, **GREEDY).memory.planned_bytes == planned

    def test_one_that_the_budget_has_no_room_for_is_refused_with_one_that_has(self, native_package):
        asked = {"ctx": 64, "kv": "f32", "spec": "off", "prefill_chunk": 16}
        package, options = open_package(native_package), LoadOptions(**asked, memory=AMPLE, base_bytes=100 * MIB)
        least = plan_package(package, options).minimum_bytes

        def load(memory):
            plan = plan_package(package, options.but(memory=memory))
            return edge_rt.load(native_package, plan=plan)

        assert plan_package(package, options.but(memory=least)).choice.ctx == asked["ctx"]
        with load(least + MIB) as model:
            model.texts._require_encodable("~" * 8192)
            with pytest.raises(EncodingBudgetExceeded, match=r"It has 50000 bytes .* room for 8192") as caught:
                model.texts._require_encodable("~" * 50000)
            assert model.generate("one", max_tokens=2, **GREEDY).memory.planned_bytes == model.plan.total_bytes
        assert f"budget of {caught.value.enough} or more" in caught.value.action
        with load(caught.value.enough) as model:
            model.texts._require_encodable("~" * 50000)
            with pytest.raises(EncodingBudgetExceeded):
                model.texts._require_encodable("~" * 60000)

    def test_a_budget_that_would_do_also_has_what_was_given_up(self, native_package):
        package, options = open_package(native_package), LoadOptions(memory=AMPLE, base_bytes=100 * MIB)
        tight = plan_package(package, options).minimum_bytes + MIB // 4
        plan = plan_package(package, options.but(memory=tight))
        assert plan.given_up
        with edge_rt.load(native_package, plan=plan) as model, pytest.raises(EncodingBudgetExceeded) as caught:
            model.texts._require_encodable("~" * 50000)
        larger = plan_package(package, options.but(memory=caught.value.enough))
        with edge_rt.load(native_package, plan=larger) as model:
            model.texts._require_encodable("~" * 50000)

    def test_in_a_shared_budget_it_takes_what_nobody_has_claimed_until_it_is_closed(self, native_package):
        budget = Budget(AMPLE)
        with edge_rt.load(native_package, memory=budget, ctx=64) as model:
            left = budget.free_bytes
            model.texts._require_encodable("~" * 20000)
            assert budget.free_bytes < left
            with budget.claim("other", budget.free_bytes):
                model.texts._require_encodable("~" * 20000)
                with pytest.raises(EncodingBudgetExceeded, match="room for 20000") as caught:
                    model.texts._require_encodable("~" * 40000)
                assert int(caught.value.enough.removesuffix("MiB")) > AMPLE // MIB
        assert (budget.free_bytes, budget.claims) == (AMPLE - budget.base_bytes, ())

    def test_without_a_budget_any_may_be_encoded(self, native_package):
        with edge_rt.load(native_package, ctx=64) as model:
            model.texts._require_encodable("~" * 1_000_000)


class Exhausted:
    """A source of guesses that runs out of memory after so many tokens.

    Args:
        after: tokens.
    """

    name = "suffix"
    num_kinds = 1
    memory_bytes = 0

    def __init__(self, after):
        self.left = after

    def prior(self, kind):
        return 0.5

    def begin(self, token_ids):
        pass

    def extend(self, token_ids):
        self.left -= len(token_ids)
        if self.left < 0:
            raise MemoryError("a table could not grow")

    def observe(self, draft, accepted, outputs, context):
        pass

    def root(self):
        return 0

    def children(self, cursor):
        return [Guess(5, 0, 0)]


@pytest.mark.parametrize("after", [0, 1, 7, 30])
def test_memory_that_ends_in_the_middle_of_an_answer_leaves_the_model_usable(native_package, answer, after):
    with edge_rt.load(native_package, memory=AMPLE, spec="suffix") as model:
        model.speculation.costs = FREE_ROWS
        model.speculation.replace("suffix", Exhausted(after))
        with pytest.raises(MemoryBudgetExceeded, match="a table could not grow"):
            model.generate(TEXT, max_tokens=60, **GREEDY)
        with model.passes() as (_, cache):
            cache.check()
            held = cache.token_ids
        whole = (*model.tokenizer.encode_prompt(TEXT), *answer.token_ids)
        assert held == whole[: len(held)]
        assert model.generate(TEXT, max_tokens=60, **GREEDY).token_ids == answer.token_ids


ADDRESS_SPACE = """
import resource, sys
import edge_rt
from edge_rt.errors import MemoryBudgetExceeded

package = sys.argv[1]
prompt = [(11 * i) % 400 + 3 for i in range(400)]
with edge_rt.load(package, spec="off", prefill_chunk=256, ctx=512, threads=1) as model:
    with model.passes() as (runner, _):
        runner.forward([5], 0, 1)
    size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (size * 1024, resource.RLIM_INFINITY))
    # Rows of so many logits are beyond what is mapped.
    try:
        with model.passes() as (runner, _):
            runner.forward([5] * 512, 0, 512)
            runner.forward([5] * 511, 0, 511)
        print("ran")
    except (MemoryBudgetExceeded, MemoryError) as error:
        print(type(error).__name__)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answers = [model.generate(prompt, max_tokens=5, temperature=0).token_ids for _ in range(2)]
    model.reset()
    answers.append(model.generate(prompt, max_tokens=5, temperature=0).token_ids)
    print(len(set(answers)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of address space is Linux's")
def test_a_system_without_memory_leaves_the_model_usable(native_package):
    done = run(ADDRESS_SPACE, native_package)
    assert done.stdout.split() == ["MemoryBudgetExceeded", "1"], done.stderr


TO_THE_LIMITS = """
import json, mmap, sys
import edge_rt
from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.runtime.speculation.cost_model import RowCosts

def status(name):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))

package, short, asked = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
# What the process holds is planned in whole MiB: what a first plan and a first load add to it, up to a MiB where the
# files of libraries were just installed, must not make the second plan larger.
edge_rt.plan(package, memory="8GiB", threads=2, **asked)
try:
    edge_rt.load(package, memory="1MiB", threads=2, **asked)
except MemoryBudgetExceeded:
    pass
room = -status("VmRSS") % (1 << 20)
# Mapped by itself: bytes of the heap may be resident already.
ballast = mmap.mmap(-1, room + (256 << 10) if room < 512 << 10 else 1)
for place in range(0, len(ballast), mmap.PAGESIZE):
    ballast[place] = 1
budget = edge_rt.plan(package, memory="8GiB", threads=2, **asked).minimum_bytes - short
base = status("VmHWM")
try:
    model = edge_rt.load(package, memory=budget, threads=2, **asked)
except MemoryBudgetExceeded as error:
    print(json.dumps({"refused": str(error), "grown": status("VmHWM") - base}))
    sys.exit(error.exit_code)
with model:
    model.speculation.costs = RowCosts((1, 64), (0,), ((1e4, 1.001e4),))
    prompt = [(11 * i) % 400 + 3 for i in range(model.context_tokens // 2)]
    never = {token: -1e4 for token in model.tokenizer.eos_token_ids}
    drafted = 0
    for seed in range(3):
        result = model.generate(prompt[seed:], temperature=1.0, seed=seed, repetition_penalty=1.1, logit_bias=never)
        assert result.finish_reason == "context_full", result
        # What a single answer drafts depends on how busy the machine is.
        drafted += result.spec.rows_drafted if result.spec is not None else 0
    print(json.dumps({"peak": status("VmHWM"), "budget": budget, "drafted": drafted}))
"""


def run(code: str, package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(package), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
@pytest.mark.parametrize(
    "asked", [{"spec": "off"}, {"spec": "auto", "draft_max": 8}, {"spec": "auto", "kv": "int8", "ctx": 100}], ids=str
)
def test_the_smallest_budget_holds_to_the_end_of_the_context(native_package, asked):
    done = run(TO_THE_LIMITS, native_package, "0", json.dumps(asked))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"] <= found["budget"]
    assert (found["drafted"] > 0) == (asked["spec"] != "off")


@pytest.mark.skipif(sys.platform != "linux", reason="peaks are read from /proc")
def test_a_little_less_is_refused_before_anything_large_is_loaded(native_package):
    done = run(TO_THE_LIMITS, native_package, str(MIB), json.dumps({"spec": "off"}))
    assert done.returncode == 4, done.stderr
    found = json.loads(done.stdout)
    assert found["grown"] < 2 * MIB
    assert "Try memory=" in found["refused"]
