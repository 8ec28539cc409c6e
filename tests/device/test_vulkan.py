"""GPUs with Vulkan: names, which one is taken, an error for every cause, and what a self-test has found."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_rt.device.driver import DriverError, SelfTest, read_self_test
from edge_rt.device.names import DeviceName, parse_device, require_op_profile
from edge_rt.device.provider import GpuProviders
from edge_rt.device.vulkan import VulkanProvider, driver_error
from edge_rt.errors import ConfigError, RuntimeUnavailable, VersionMismatch
from edge_rt.ort.providers import provider_states
from edge_rt.system.json_files import JsonCache
from tests.helpers.onnxruntime_version import needs_onnxruntime

LLVMPIPE = "gpu\t0\t2147483648\t1\tllvmpipe\ttype=software\tdriver=llvmpipe Mesa 22.3\tdots=1\thalves=1\n"
OLD = "gpu\t1\t1073741824\t0\tan old GPU\ttype=discrete\trefusal=it has no buffer addresses (bufferDeviceAddress)\n"
ARC = "gpu\t2\t8589934592\t0\tArc A770\ttype=discrete\tvendor=Intel\tdriver=Mesa 24.1\tdots=1\thalves=0\n"
DRIVER = "driver\t1.3.239\n"
BITS = "bits\tcpu\noperation\tfma\tmended\noperation\tadd\tas it is\n"


class FakeLibrary:
    def __init__(self, lines, test):
        self.lines, self.test, self.kernels, self.compiled, self.tests = lines, test, [], [], 0

    def describe(self):
        return self.lines

    def keep_compiled(self, number, path):
        self.compiled.append((number, path))

    def set_kernels(self, number, images):
        self.kernels.append((number, dict(images)))

    def free_bytes(self, number):
        return 6 << 30

    def self_test(self, number):
        self.tests += 1
        # As the library does behind whatever has run.
        for kept, path in self.compiled:
            if kept == number:
                path.write_bytes(b"of the test")
        return self.test


class FakeVulkan(VulkanProvider):
    """One whose library is a list of lines, with a kernel of a few bytes.

    Args:
        closed: files of GPUs that the user may not open.
        more: see ``VulkanProvider``.
    """

    def __init__(self, folder, lines, test=read_self_test(BITS), closed=(), **more):  # noqa: B008
        spirv = folder / "spirv"
        spirv.mkdir(exist_ok=True)
        (spirv / "row_top_k.dots.spv").write_bytes(b"code")
        super().__init__(lambda: Path("library"), lambda: spirv, lambda: folder / "tests", **more)
        self._library = FakeLibrary(lines, test)
        self._closed = closed

    def closed_files(self):
        return self._closed


class TestNames:
    def test_a_kind_alone_is_the_first_gpu_and_a_number_any_device(self):
        assert parse_device("vulkan") == DeviceName("vulkan", None)
        assert parse_device("vulkan:0") == DeviceName("vulkan", 0)
        assert [str(parse_device(text)) for text in ("vulkan", "vulkan:0", "vulkan:3", "cuda:0")] == [
            "vulkan", "vulkan:0", "vulkan:3", "cuda",
        ]  # fmt: skip
        assert parse_device("vulkan").is_own

    def test_native_packages_run_there(self):
        require_op_profile(DeviceName("vulkan", 0), "native")
        with pytest.raises(ConfigError, match="packages of the op profile native run there"):
            require_op_profile(DeviceName("vulkan", 0), "portable")


class TestChoice:
    def test_the_first_that_is_no_program_and_has_all_features(self, tmp_path):
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE + OLD + ARC)
        assert provider.gpu(DeviceName("vulkan", None)).name == "Arc A770"
        assert provider.gpu(DeviceName("vulkan", 0)).is_software
        assert [str(gpu.device_name) for gpu in provider.gpus()] == ["vulkan:0", "vulkan:2"]
        assert provider.facts(provider.gpu(DeviceName("vulkan", 2))) == {
            "type": "discrete", "memory_bytes": 8 << 30, "shares_memory": False, "driver": "Mesa 24.1",
            "int8_dots": True, "halves": False,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("lines", "index", "what", "numbers"),
        [
            (LLVMPIPE, None, "only programs on the CPU", "llvmpipe (vulkan:0)"),
            (LLVMPIPE + OLD, None, "cannot run on an old GPU", "It has no buffer addresses"),
            (OLD + ARC, 1, "cannot run on an old GPU", "It has no buffer addresses"),
            (LLVMPIPE, 3, "no GPU of that number", "Got vulkan:3; the driver for GPUs with Vulkan found 1"),
            ("", None, "finds a GPU", "0 devices"),
        ],
    )
    def test_what_cannot_be_taken(self, tmp_path, lines, index, what, numbers):
        provider = FakeVulkan(tmp_path, DRIVER + lines)
        with pytest.raises(RuntimeUnavailable, match=what) as caught:
            provider.gpu(DeviceName("vulkan", index))
        assert numbers in caught.value.numbers
        assert caught.value.action
        assert caught.value.exit_code == 5

    @pytest.mark.parametrize(
        ("code", "sentence", "kind", "what"),
        [
            (0, "dlopen: libvulkan.so.1: no such file", RuntimeUnavailable, "loader is not installed"),
            (0, "dlsym: libvulkan.so.1 has no vkX", VersionMismatch, "loader is too old"),
            (-9, "vkCreateInstance failed: VK_ERROR_INCOMPATIBLE_DRIVER (-9)", RuntimeUnavailable, "No driver for"),
            (
                -1,
                "vkCreateInstance failed: VK_ERROR_OUT_OF_HOST_MEMORY (-1)",
                RuntimeUnavailable,
                "driver for Vulkan f",
            ),
        ],
    )
    def test_every_cause_has_its_error(self, code, sentence, kind, what):
        error = driver_error(DriverError(code, sentence))
        assert type(error) is kind
        assert what in str(error)
        assert error.numbers == f"{sentence}."
        assert error.action

    def test_no_device_may_be_a_lack_of_permission(self):
        error = driver_error(None, (Path("/dev/dri/renderD128"),))
        assert "may not use the GPU" in str(error)
        assert "/dev/dri/renderD128" in error.numbers

    @pytest.mark.parametrize("lines", [LLVMPIPE, LLVMPIPE.replace("\n", "\trefusal=it is old\n")])
    def test_a_driver_that_lists_programs_alone_may_lack_permission(self, tmp_path, lines):
        """Mesa brings llvmpipe, and leaves out the GPUs whose files this user may not open."""
        provider = FakeVulkan(tmp_path, DRIVER + lines, closed=(Path("/dev/dri/renderD128"),))
        with pytest.raises(RuntimeUnavailable, match="This user may not use the GPU") as caught:
            provider.gpu(DeviceName("vulkan", None))
        assert caught.value.numbers == (
            "The driver lists llvmpipe (vulkan:0) alone; no permission to read and write /dev/dri/renderD128."
        )
        assert "(usually render or video)" in caught.value.action
        assert str(provider.hidden()) == str(caught.value)

    @needs_onnxruntime(1, 28)
    def test_the_lack_of_permission_is_listed_where_a_program_is_refused(self, tmp_path):
        old = LLVMPIPE.replace("\n", "\trefusal=it is old\n")
        own = FakeVulkan(tmp_path, DRIVER + old, closed=(Path("/dev/dri/renderD128"),))
        states = {state.kind: state for state in provider_states(GpuProviders(own))}
        assert "may not use the GPU" in str(states["vulkan"].problem)

    @pytest.mark.parametrize(("lines", "closed"), [(LLVMPIPE, ()), (LLVMPIPE + ARC, ("renderD129",))])
    def test_what_is_not_closed_is_not_hidden(self, tmp_path, lines, closed):
        provider = FakeVulkan(tmp_path, DRIVER + lines, closed=tuple(map(Path, closed)))
        assert provider.hidden() is None

    def test_another_kind_is_not_there(self, tmp_path):
        with pytest.raises(RuntimeUnavailable, match="no provider for the device cuda"):
            GpuProviders(FakeVulkan(tmp_path, DRIVER + ARC)).of(DeviceName("cuda"))


class TestSelfTest:
    def test_it_is_asked_once_for_a_driver_and_kernels(self, tmp_path):
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE)
        (gpu,) = provider.gpus()
        assert provider.known_test(gpu) is None
        found = provider.self_test(gpu)
        assert found == SelfTest(True, {"fma": "mended", "add": "as it is"})
        assert provider.library.kernels == [(0, {"row_top_k.dots": b"code"})]
        again = FakeVulkan(tmp_path, DRIVER + LLVMPIPE)
        assert (again.known_test(gpu), again.self_test(gpu), again.library.tests) == (found, found, 0)
        newer = FakeVulkan(tmp_path, DRIVER + LLVMPIPE.replace("22.3", "24.0"))
        assert newer.known_test(*newer.gpus()) is None

    def test_what_a_driver_makes_of_kernels_has_a_file(self, tmp_path):
        files = []
        for lines in (LLVMPIPE, LLVMPIPE, LLVMPIPE.replace("22.3", "24.0")):
            provider = FakeVulkan(tmp_path, DRIVER + lines)
            provider.make_ready(*provider.gpus())
            ((number, file),) = provider.library.compiled
            assert (number, file.parent, file.parent.is_dir()) == (0, tmp_path / "vulkan-compiled", True)
            files.append(file)
        assert files[0] == files[1] != files[2]
        # A folder that cannot be made is no error.
        files[0].parent.rmdir()
        files[0].parent.write_bytes(b"")
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE)
        provider.make_ready(*provider.gpus())
        assert provider.library.compiled == []

    def test_who_waits_for_the_driver_s_compiler_is_told(self, tmp_path):
        told = []
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE)
        (gpu,) = provider.gpus()
        # The self-test makes it ready, and compiles nothing long.
        provider.self_test(gpu)
        assert provider.library.compiled == []
        provider.make_ready(gpu, told.append)
        assert told == [True]
        assert len(provider.library.kernels) == len(provider.library.compiled) == 1
        provider.compiled_file(gpu).write_bytes(b"compiled")
        for known in (provider, FakeVulkan(tmp_path, DRIVER + LLVMPIPE)):
            known.make_ready(gpu, told.append)
        assert told == [True]
        # A folder that cannot be made keeps nothing.
        provider.compiled_file(gpu).unlink()
        provider.compiled_folder.rmdir()
        provider.compiled_folder.write_bytes(b"")
        provider.make_ready(gpu, told.append)
        assert told == [True, False]

    def test_a_folder_that_cannot_be_written_keeps_nothing(self, tmp_path):
        told, asked = [], []
        # Root may write anywhere.
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE, can_write=lambda folder: bool(asked.append(folder)))
        provider.make_ready(*provider.gpus(), told.append)
        assert (told, asked) == ([False], [provider.compiled_folder])

    def test_an_answer_on_disk_that_nobody_wrote_is_none(self, tmp_path):
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE, SelfTest(False, {"fma": "differs"}))
        (gpu,) = provider.gpus()
        provider.self_test(gpu)
        (file,) = (tmp_path / "tests").iterdir()
        file.write_text(file.read_text().replace("false", "1"))
        assert provider.known_test(gpu) is None
        assert JsonCache(tmp_path / "tests").find({"name": "llvmpipe"})

    def test_what_is_read(self):
        assert read_self_test("bits\tdevice\noperation\tfma\tdiffers\n") == SelfTest(False, {"fma": "differs"})
        assert read_self_test("error\t-4\tvkWaitSemaphores: VK_ERROR_DEVICE_LOST\n") == DriverError(
            -4, "vkWaitSemaphores: VK_ERROR_DEVICE_LOST"
        )

    def test_an_installation_without_kernels(self, tmp_path):
        provider = FakeVulkan(tmp_path, DRIVER + LLVMPIPE)
        (tmp_path / "spirv" / "row_top_k.dots.spv").unlink()
        with pytest.raises(RuntimeUnavailable, match="installed without its kernels for GPUs with Vulkan"):
            provider.make_ready(*provider.gpus())
