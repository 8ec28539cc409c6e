from __future__ import annotations

import pytest

from edge_rt.system.machine import cgroup_cpus, cgroup_memory_bytes


def lay(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def member(tmp_path):
    def write(text):
        path = tmp_path / "self_cgroup"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cgroup"


def test_the_least_of_a_group_and_its_parents_counts(root, member):
    lay(root / "a" / "b", memory__max="max", memory__current=1)
    lay(root / "a", memory__max=1000, memory__current=300, memory__stat="inactive_file 50", cpu__max="250000 100000")
    lay(root, memory__max=5000, memory__current=300)
    path = member("0::/a/b\n")
    assert cgroup_memory_bytes(root, path) == 750
    assert cgroup_cpus(root, path) == 3


def test_version_1_is_read_too(root, member):
    memory = root / "memory" / "job" / "7"
    lay(memory, memory__limit_in_bytes=2000, memory__usage_in_bytes=900, memory__stat="total_inactive_file 100")
    lay(root / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=10)
    lay(root / "cpu" / "job", cpu__cfs_quota_us=150000, cpu__cfs_period_us=100000)
    path = member("4:memory:/job/7\n2:cpu,cpuacct:/job\n0::/\n")
    assert cgroup_memory_bytes(root, path) == 1200
    assert cgroup_cpus(root, path) == 2


def test_version_1_without_limits_says_nothing(root, member):
    lay(root / "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=10)
    lay(root / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    path = member("4:memory:/\n2:cpu:/\n")
    assert cgroup_memory_bytes(root, path) is None
    assert cgroup_cpus(root, path) is None


def test_a_path_of_the_host_falls_back_to_what_is_mounted(root, member):
    lay(root / "memory", memory__limit_in_bytes=4096, memory__usage_in_bytes=96)
    assert cgroup_memory_bytes(root, member("4:memory:/docker/0123/not/here\n")) == 4000


def test_a_path_cannot_lead_out_of_the_root(root, member):
    lay(root.parent, memory__max=1, memory__current=0)
    lay(root, memory__max=100, memory__current=0)
    assert cgroup_memory_bytes(root, member("0::/../..\n")) == 100


@pytest.mark.parametrize("text", ["", "nonsense\n", "a:b\n", "0:\n"])
def test_a_strange_membership_leaves_the_root(root, member, text):
    lay(root, memory__max=100, memory__current=40)
    assert cgroup_memory_bytes(root, member(text)) == 60
