"""Weights in a Vulkan device's memory: read where their file is mapped, or copied once; the text is the CPU's."""

from __future__ import annotations

import gc
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from edge_rt.device.names import parse_device
from edge_rt.errors import DeviceLost, EdgeRTError, InvalidPackage, StorageError
from edge_rt.ort.providers import placement
from edge_rt.package.manifest import WEIGHTS_FILE
from edge_rt.package.reader import open_package
from tests.gpu.emulated import main
from tests.gpu.exit_worker import agreeing
from tests.gpu.models import FOLDER, answer, expect, opened, package, plain, provider
from tests.helpers.cheap_drafts import CheapDrafts

HELLO = "Hello"
CALLS = (
    "vkGetMemoryHostPointerPropertiesEXT", "vkImportMemory", "vkCreateBuffer", "vkBindBufferMemory",
)  # fmt: skip
"""Those that an import makes and that can fail, in a load that begins with it."""


def file_bytes(path):
    """Return the bytes of a package's weights, in whole pages."""
    size = (path / WEIGHTS_FILE).stat().st_size
    return -(-size // 4096) * 4096


def copy_of(path):
    """Return a package of the same content in files of its own."""
    folder = Path(FOLDER.name) / f"copy{len(list(Path(FOLDER.name).iterdir()))}"
    shutil.copytree(path, folder)
    return folder


def laid(gpu, path):
    """Return the bytes of a package's weights that a device reads in the file, and of those that it copies."""
    place = placement(open_package(path), parse_device(gpu.device), provider(gpu))
    return place.mapped_bytes, place.copied_bytes


def case_in_place(gpu):
    """Nothing is copied where the device shares the memory; elsewhere all is copied, once. The plan says so."""
    path = package()
    (own,) = gpu.providers()
    is_mapped = own.gpu(parse_device(gpu.device)).imports
    mapped, copied = laid(gpu, path)
    assert (mapped > 0, copied > 0) == (is_mapped, not is_mapped)
    gc.collect()
    with opened(gpu, path, spec="off") as model:
        assert gpu.imported_bytes() == is_mapped * file_bytes(path)
        planned, size = model.plan.sizes, (path / WEIGHTS_FILE).stat().st_size
        assert (planned.weights, planned.gpu.weights) == ((size, 0) if is_mapped else (0, size))
        assert max(mapped, copied) <= size < max(mapped, copied) + 4096
        held = gpu.held_bytes()
        assert planned.gpu.weights + planned.gpu.kv_cache - 4096 <= held <= planned.gpu.total, (held, planned.gpu)
        assert answer(model, HELLO, 3).token_ids == plain(path, prompt=HELLO)[:3]
    gc.collect()
    assert gpu.imported_bytes() == 0


def case_shared(gpu):
    """Graphs of a package, and models of one file, read the same pages; a copy of the file has its own."""
    whole = package()
    with ExitStack() as stack:
        models = [stack.enter_context(opened(gpu, whole, spec="off")) for _ in range(2)]
        assert gpu.imported_bytes() == file_bytes(whole)
        models += [stack.enter_context(opened(gpu, copy_of(whole), spec="off"))]
        assert gpu.imported_bytes() == 2 * file_bytes(whole)
        models[0].close()
        for model in models[1:]:
            assert answer(model, HELLO, 3).token_ids == plain(whole, prompt=HELLO)[:3]
    gc.collect()
    assert gpu.imported_bytes() == 0
    cut = agreeing().cut
    with opened(gpu, cut, spec="exit", costs=CheapDrafts()) as model:
        assert 0 < gpu.imported_bytes() <= file_bytes(cut)
        assert answer(model, HELLO, 3).token_ids == plain(agreeing().whole, prompt=HELLO)[:3]


def case_refused(gpu):
    """A driver that refuses, at whatever call: weights are copied, the text is the same, and nothing stays."""
    path = package()
    with opened(gpu, path, spec="off") as other:
        answer(other, HELLO, 1)
        gc.collect()
        before = gpu.live()
        for function in CALLS:
            for result in ("memory", "host", "-1000072003"):
                calls, elsewhere = gpu.calls(function), copy_of(path)
                gpu.set(f"{function}=0:{result}")
                with opened(gpu, elsewhere, spec="off") as model:
                    assert gpu.calls(function) > calls, function
                    gpu.set("")
                    assert gpu.imported_bytes() == file_bytes(path), (function, result)
                    assert answer(model, HELLO, 3).token_ids == plain(path, prompt=HELLO)[:3]
                gc.collect()
                assert gpu.live() == before, (function, result, gpu.live(), before)
                assert gpu.complaints() == 0
    gc.collect()
    before = gpu.live()
    gpu.set("vkImportMemory=0:lost")
    expect(DeviceLost, "", lambda: opened(gpu, path, spec="off").__enter__())
    gpu.set("")
    gc.collect()
    assert gpu.live() in (before, ""), (gpu.live(), before)
    assert gpu.imported_bytes() == 0
    with opened(gpu, path, spec="off") as model:
        assert answer(model, HELLO, 3).token_ids == plain(path, prompt=HELLO)[:3]


def case_files(gpu):
    """A file that is gone is read on; one that became shorter is an error when it is loaded."""
    path = copy_of(package())
    with opened(gpu, path, spec="off") as model:
        (path / WEIGHTS_FILE).unlink()
        assert answer(model, HELLO, 3).token_ids == plain(package(), prompt=HELLO)[:3]
    found = open_package(copy_of(package()))
    os.truncate(found.path / WEIGHTS_FILE, 5000)
    name = parse_device(gpu.device)
    expect(StorageError, "shorter", lambda: placement(found, name, provider(gpu)))
    (found.path / WEIGHTS_FILE).unlink()
    expect(StorageError, "cannot be read", lambda: placement(found, name, provider(gpu)))
    expect((InvalidPackage, EdgeRTError), "", lambda: opened(gpu, found.path, spec="off").__enter__())
    assert gpu.imported_bytes() == 0


if __name__ == "__main__":
    main(globals())
