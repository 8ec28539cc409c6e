from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from edge_rt.errors import Cancelled, ConfigError, InputError, RuntimeUnavailable, StorageError, VersionMismatch
from edge_rt.export import export_model
from edge_rt.export.exporter import STAGES
from edge_rt.ort.op_library import library_path
from edge_rt.package.manifest import WEIGHTS_FILE, KeyCalibration
from edge_rt.package.reader import open_package
from edge_rt.package.sampling import SamplingAdvice
from edge_rt.text.template import FALLBACK_WARNING
from tests.helpers.gguf_factory import write_llama_gguf
from tests.helpers.models import load_package
from tests.helpers.native_profile import require_native
from tests.helpers.packages import listing
from tests.helpers.portable_profile import require_portable_windows, windows_refusal
from tests.helpers.small import GREEDY

export = functools.partial(export_model, profile="portable")
PORTABLE_STAGES = tuple(stage for stage in STAGES if stage not in ("calibrate", "rounding"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class TestPackage:
    def test_a_window_that_cannot_be_checked_is_refused_at_once(self, tmp_path):
        refusal = windows_refusal()
        if refusal is None:
            pytest.skip("this ONNX Runtime computes sliding windows as it should")
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"llama.attention.sliding_window": 16})
        events = []
        with pytest.raises(VersionMismatch, match="one token too many"):
            export_model(tmp_path / "m.gguf", tmp_path / "p", profile="portable", progress=events.append)
        assert events == []
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]

    def test_the_same_file_gives_the_same_bytes(self, small_gguf, small_package, tmp_path):
        export(small_gguf, tmp_path / "again")
        assert contents(tmp_path / "again") == contents(small_package)

    def test_it_verifies_and_says_what_it_is(self, small_gguf, small_package):
        package = open_package(small_package)
        package.verify()
        manifest = package.manifest
        assert manifest.source.name == small_gguf.name
        assert manifest.source.size == small_gguf.stat().st_size
        assert (manifest.activations, manifest.op_profile, manifest.kv_formats) == ("int8", "portable", ("f32",))
        assert manifest.quantisation == {
            "embedding": "Q8_0", "attention": "Q4_1", "feed_forward": "Q4_1", "head": "Q8_0",
        }  # fmt: skip
        assert (manifest.license, manifest.model.name, manifest.model.vocab_size) == ("apache-2.0", "Test Llama", 419)

    def test_what_the_checkpoint_advises_goes_with_the_package(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"general.sampling.temp": 0.6})
        export_model(tmp_path / "m.gguf", tmp_path / "p", profile="portable")
        assert open_package(tmp_path / "p").manifest.sampling == SamplingAdvice(temperature=0.6)
        given = SamplingAdvice(top_k=5)
        export_model(tmp_path / "m.gguf", tmp_path / "q", profile="portable", sampling=given)
        assert open_package(tmp_path / "q").manifest.sampling == given

    def test_the_report(self, small_gguf, tmp_path):
        report = export(small_gguf, tmp_path / "p", activations="float")
        document = json.loads(json.dumps(report.to_json()))
        assert document["path"] == str(tmp_path / "p")
        assert document["package_id"] == open_package(tmp_path / "p").id
        assert document["disk_bytes"] == sum(map(len, contents(tmp_path / "p").values()))
        assert [check["activations"] for check in document["check"]] == ["float"]
        assert document["check"][0]["relative_error"] < 1e-4
        assert open_package(tmp_path / "p").manifest.activations == "float"

    def test_int8_activations_are_checked_through_the_float_graph_too(self, small_gguf, tmp_path):
        report = export(small_gguf, tmp_path / "p")
        assert [check.activations for check in report.check] == ["float", "int8"]
        assert report.check[0].relative_error < 1e-4 < report.check[1].relative_error

    def test_mixed_types_are_named(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf", types={"blk.1.attn_q.weight": "Q8_0"}, tied=False, output_type="F16")
        export(tmp_path / "m.gguf", tmp_path / "p")
        quantisation = open_package(tmp_path / "p").manifest.quantisation
        assert (quantisation["attention"], quantisation["head"]) == ("Q4_1+Q8_0", "F16")

    def test_without_a_template(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf", chat_template=None)
        report = export(tmp_path / "m.gguf", tmp_path / "p")
        assert open_package(tmp_path / "p").manifest.chat_template is None
        assert report.warnings == (FALLBACK_WARNING,)

    def test_a_second_template_for_tools(self, tmp_path):
        source = "{{ tools[0].name ~ messages[0].content }}"
        more = {"tokenizer.chat_template.tool_use": source}
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata=more)
        report = export(tmp_path / "m.gguf", tmp_path / "p")
        name = open_package(tmp_path / "p").manifest.tool_template
        assert (tmp_path / "p" / name).read_text() == source
        assert report.warnings == ()

    @pytest.mark.parametrize(
        ("template", "warning"),
        [
            ("{{ ''.__class__.__mro__ }}", "cannot be used"),
            ("{% if %}", "cannot be used"),
            ("always the same", "ignores the user's message"),
            ("{{ raise_exception('no') }}", "fails on a single user message"),
        ],
    )
    def test_a_template_that_will_not_do_is_told(self, tmp_path, template, warning):
        write_llama_gguf(tmp_path / "m.gguf", chat_template=template)
        report = export(tmp_path / "m.gguf", tmp_path / "p")
        assert any(warning in sentence for sentence in report.warnings)
        assert (tmp_path / "p" / "chat_template.jinja").read_text() == template


class TestStages:
    def test_they_come_in_order_and_end(self, small_gguf, tmp_path):
        events = []
        export(small_gguf, tmp_path / "p", progress=events.append)
        assert tuple(dict.fromkeys(event.stage for event in events)) == PORTABLE_STAGES
        assert list(dict.fromkeys(event.step for event in events)) == list(range(1, len(PORTABLE_STAGES) + 1))
        assert {event.steps for event in events} == {len(PORTABLE_STAGES)}
        weights = [event for event in events if event.stage == "weights"]
        assert weights[0].done == 0
        assert weights[-1].done == weights[-1].total
        assert (events[-1].stage, events[-1].message) == ("publish", "done")

    def test_the_estimate_comes_before_anything_is_written(self, small_gguf, tmp_path):
        seen = []
        export(small_gguf, tmp_path / "p", on_estimate=lambda e: seen.append((e, listing(tmp_path))))
        ((estimate, names),) = seen
        assert names == []
        assert estimate.disk_bytes > 0

    @pytest.mark.parametrize("stage", PORTABLE_STAGES)
    def test_an_exception_in_any_stage_leaves_nothing(self, small_gguf, tmp_path, stage):
        def progress(event):
            if event.stage == stage:
                raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            export(small_gguf, tmp_path / "p", progress=progress)
        # The last event comes when the package is in its place.
        assert listing(tmp_path) == []

    def test_cancelled_at_the_very_end_leaves_a_package(self, small_gguf, tmp_path):
        def progress(event):
            if event.message == "done":
                raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            export(small_gguf, tmp_path / "p", progress=progress)
        open_package(tmp_path / "p").verify()


class TestNative:
    @pytest.fixture
    def package(self, native_package):
        return open_package(native_package)

    def test_it_verifies_and_says_what_it_is(self, package):
        package.verify()
        manifest = package.manifest
        assert (manifest.activations, manifest.op_profile, manifest.weight_layout) == ("int8", "native", "tile16")
        assert manifest.quantisation == {
            "embedding": "Q8_0", "attention": "Q4_1", "feed_forward": "Q4_1", "head": "Q8_0",
        }  # fmt: skip

    @pytest.mark.parametrize(("profile", "calibration"), [("native", None), ("native", "built-in"), ("portable", None)])
    def test_a_sliding_window_is_kept(self, tmp_path, profile, calibration):
        require_native() if profile == "native" else require_portable_windows()
        write_llama_gguf(tmp_path / "m.gguf", extra_metadata={"llama.attention.sliding_window": 16})
        export_model(tmp_path / "m.gguf", tmp_path / "p", profile=profile, calibration=calibration)
        manifest = open_package(tmp_path / "p").manifest
        assert manifest.model.layer_windows == (16, 16)

    def test_a_portable_package_with_padded_heads(self, tmp_path):
        write_llama_gguf(tmp_path / "m.gguf", head_dim=20, heads=8, kv_heads=2)
        export(tmp_path / "m.gguf", tmp_path / "p")
        manifest = open_package(tmp_path / "p").manifest
        assert manifest.model.head_dim == 20
        with load_package(tmp_path / "p") as model:
            assert len(model.generate("Hello", max_tokens=3, **GREEDY).token_ids) == 3

    def test_the_same_file_gives_the_same_bytes(self, small_gguf, native_package, tmp_path):
        export_model(small_gguf, tmp_path / "again", profile="native")
        assert contents(tmp_path / "again") == contents(native_package)

    def test_the_report(self, small_gguf, tmp_path):
        require_native()
        events = []
        report = export_model(small_gguf, tmp_path / "p", profile="native", progress=events.append)
        assert report.profile == "native"
        assert [check.activations for check in report.check] == ["int8"]
        assert 0 < report.check[0].relative_error < 0.05
        weights = [event for event in events if event.stage == "weights"]
        assert weights[-1].done == weights[-1].total

    def test_the_default_cache_is_the_one_that_was_measured_to_lose_little(self, package):
        manifest = package.manifest
        assert manifest.kv_formats == ("int8", "f16", "f32", "k8v4", "int4", "int4x2")
        losses = manifest.kv_losses
        assert (losses.source, losses.tokens) == ("built-in", 512)
        assert 0 < losses.formats["f16"].kl < losses.formats["int8"].kl < losses.bound
        assert all(loss.same_best > 0.5 for loss in losses.formats.values())
        with load_package(package.path, ctx=64) as model:
            assert model.describe()["kv_format"] == "int8"

    def test_the_default_cache_can_be_stated_and_nothing_is_measured_then(self, small_gguf, tmp_path):
        require_native()
        export_model(small_gguf, tmp_path / "p", profile="native", kv="k8v4")
        manifest = open_package(tmp_path / "p").manifest
        assert (manifest.kv_formats[:3], manifest.kv_losses) == (("k8v4", "f16", "f32"), None)

    def test_without_a_text_the_cache_is_f16_by_default(self, small_gguf, tmp_path):
        require_native()
        report = export_model(small_gguf, tmp_path / "p", profile="native", calibration=None)
        assert (report.kv_formats[0], report.kv_losses) == ("f16", None)

    @pytest.mark.parametrize(("profile", "kv"), [("portable", "int8"), ("portable", "f16"), ("native", "auto")])
    def test_a_cache_that_the_profile_has_not_is_no_default(self, small_gguf, tmp_path, profile, kv):
        if profile == "native":
            require_native()
        with pytest.raises(ConfigError, match=f"formats of the op profile {profile}"):
            export_model(small_gguf, tmp_path / "p", profile=profile, kv=kv)
        assert listing(tmp_path) == []

    def test_it_is_what_such_a_machine_gets(self, small_gguf, tmp_path):
        require_native()
        assert export_model(small_gguf, tmp_path / "p").profile == "native"
        assert export_model(small_gguf, tmp_path / "f", activations="float").profile == "portable"

    def test_float_activations_are_refused(self, small_gguf, tmp_path):
        with pytest.raises(ConfigError, match="no float activations"):
            export_model(small_gguf, tmp_path / "p", profile="native", activations="float")
        assert listing(tmp_path) == []

    @pytest.mark.skipif(library_path() is not None, reason="this machine has the native operators")
    def test_without_the_operators_nothing_is_begun(self, small_gguf, tmp_path):
        with pytest.raises(RuntimeUnavailable, match="--profile portable"):
            export_model(small_gguf, tmp_path / "p", profile="native")
        assert listing(tmp_path) == []

    def test_a_profile_replaces_the_other(self, small_gguf, tmp_path):
        require_native()
        for profile in ("portable", "native", "portable"):
            export_model(small_gguf, tmp_path / "p", profile=profile, force=True)
            with load_package(tmp_path / "p") as model:
                assert model.describe()["op_profile"] == profile
                assert len(model.generate("Hello", max_tokens=3, **GREEDY).token_ids) == 3

    @pytest.mark.parametrize("change", [{"tied": False}, {"types": {"blk.1.attn_q.weight": "Q8_0"}}, {"vocab": 427}])
    def test_other_checkpoints(self, tmp_path, change):
        require_native()
        write_llama_gguf(tmp_path / "m.gguf", **change)
        export_model(tmp_path / "m.gguf", tmp_path / "p", profile="native")
        with load_package(tmp_path / "p") as model:
            assert len(model.generate("Hello", max_tokens=3, **GREEDY).token_ids) == 3


class TestCalibration:
    """Constants of 4-bit keys in packages."""

    def test_a_native_package_has_them_and_says_from_what(self, native_package):
        manifest = open_package(native_package).manifest
        assert manifest.key_calibration == KeyCalibration(512, "built-in")

    def test_a_package_without_them(self, small_gguf, native_package, tmp_path):
        report = export_model(small_gguf, tmp_path / "p", profile="native", calibration=None)
        manifest = open_package(tmp_path / "p").manifest
        assert manifest.key_calibration is None
        assert b"key_" not in (tmp_path / "p" / "model.onnx").read_bytes()
        assert b"key_calibration" not in (tmp_path / "p" / "manifest.json").read_bytes()
        assert report.disk_bytes < open_package(native_package).size_bytes
        # They are read by 4-bit caches alone.
        answers = []
        for package in (tmp_path / "p", native_package):
            with load_package(package, kv="f16") as model:
                answers.append(model.generate("Hello", max_tokens=8, **GREEDY).token_ids)
        assert answers[0] == answers[1]

    def test_a_file_of_ones_own(self, small_gguf, native_package, tmp_path):
        (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
        export_model(small_gguf, tmp_path / "p", profile="native", calibration=tmp_path / "text.txt")
        assert open_package(tmp_path / "p").manifest.key_calibration == KeyCalibration(512, "text.txt")
        ours, theirs = ((folder / WEIGHTS_FILE).read_bytes() for folder in (native_package, tmp_path / "p"))
        assert len(ours) == len(theirs)
        assert ours != theirs

    @pytest.mark.parametrize(
        ("name", "content", "error"),
        [("no", None, StorageError), ("short.txt", "Hi", InputError), ("a.json", "{}", InputError)],
    )
    def test_a_file_that_will_not_do(self, small_gguf, tmp_path, name, content, error):
        require_native()
        if content is not None:
            (tmp_path / name).write_text(content)
        with pytest.raises(error, match="calibration text"):
            export_model(small_gguf, tmp_path / "out" / "p", profile="native", calibration=tmp_path / name)
        assert not (tmp_path / "out").exists()

    def test_names_that_are_no_text(self, small_gguf, tmp_path):
        require_native()
        gguf, text = (Path(os.fsdecode(os.fsencode(tmp_path) + name)) for name in (b"/m\xff.gguf", b"/a\xff.txt"))
        try:
            shutil.copy(small_gguf, gguf)
        except OSError:
            pytest.skip("this file system has no such names")
        text.write_text("The quick brown fox jumps over the lazy dog. " * 100)
        export_model(gguf, tmp_path / "p", profile="native", calibration=text)
        manifest = open_package(tmp_path / "p").manifest
        assert (manifest.source.name, manifest.key_calibration.source) == ("m\ufffd.gguf", "a\ufffd.txt")

    @pytest.mark.parametrize("is_own", [False, True])
    def test_queries_that_half_precision_cannot_hold_are_told(self, tmp_path, is_own):
        require_native()
        query = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) * 1e5
        write_llama_gguf(tmp_path / "m.gguf", weights={"blk.1.attn_q.weight": query}, weight_type="F32")
        (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 100)
        options = {"calibration": tmp_path / "text.txt"} if is_own else {}
        report = export_model(tmp_path / "m.gguf", tmp_path / "p", profile="native", **options)
        assert [warning for warning in report.warnings if "2 of 4 kv heads, the first in layer 1" in warning]

    def test_the_portable_profile_has_none(self, small_gguf, small_package, tmp_path):
        assert open_package(small_package).manifest.key_calibration is None
        with pytest.raises(ConfigError, match="portable op profile has no 4-bit cache"):
            export(small_gguf, tmp_path / "p", calibration=tmp_path / "text.txt")
        export(small_gguf, tmp_path / "p", calibration=None)
        assert contents(tmp_path / "p") == contents(small_package)

    def test_stopped_meanwhile_nothing_is_left(self, small_gguf, tmp_path):
        require_native()
        seen = []

        def progress(event):
            if event.stage == "calibrate":
                seen.append(event)
                if event.done > 2:
                    raise Cancelled("stopped")

        with pytest.raises(Cancelled):
            export_model(small_gguf, tmp_path / "p", profile="native", progress=progress)
        assert listing(tmp_path) == []
        assert {(event.unit, event.total) for event in seen} == {("steps", 4 + 2)}
        assert (seen[0].step, seen[0].steps) == (STAGES.index("calibrate") + 1, len(STAGES))


def test_the_weights_are_where_the_graph_expects_them(small_package):
    """One file of weights, beside a graph that names nothing else."""
    graph = (small_package / "model.onnx").read_bytes()
    assert WEIGHTS_FILE.encode() in graph
    assert b"/" + WEIGHTS_FILE.encode() not in graph
    assert len(graph) < 64 << 10
