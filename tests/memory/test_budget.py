"""A budget that models share: claims, and what stays with the process."""

from __future__ import annotations

import pytest

from edge_rt.errors import MemoryBudgetExceeded
from edge_rt.memory.budget import Budget

MIB = 1 << 20


def test_a_claim_grows_by_what_nobody_holds_or_not_at_all():
    budget = Budget(100)
    claim = budget.claim("model", 20, base_bytes=30)
    budget.claim("other", 10)
    assert claim.extend(61) == 1
    assert (claim.bytes, budget.free_bytes) == (20, 40)
    assert claim.extend(60) == 0
    assert (claim.bytes, budget.free_bytes) == (60, 0)
    assert claim.extend(50) == 0
    assert claim.bytes == 60
    claim.release()
    assert budget.free_bytes == 60


def test_it_shows_what_it_has():
    budget = Budget("600MiB")
    budget.claim("model", 100 * MIB, base_bytes=50 * MIB)
    assert repr(budget) == "<edge_rt.Budget of 600.0 MiB, 450.0 MiB free>"


def test_claims_of_one_name_are_numbered():
    budget = Budget(4096 * MIB)
    first, _, _ = (budget.claim("model", MIB) for _ in range(3))
    assert [name for name, _ in budget.claims] == ["model", "model (2)", "model (3)"]
    first.release()
    budget.claim("model", MIB)
    assert [name for name, _ in budget.claims] == ["model (2)", "model (3)", "model"]


def test_a_claim_that_tells_nothing_of_the_process_leaves_that_to_the_next():
    budget = Budget(100)
    budget.claim("own", 10)
    budget.claim("model", 20, base_bytes=30)
    assert (budget.base_bytes, budget.free_bytes) == (30, 40)
    with pytest.raises(MemoryBudgetExceeded):
        budget.claim("more", 41, base_bytes=50)
    assert (budget.base_bytes, budget.free_bytes) == (30, 40)


def test_what_a_load_that_failed_did_not_take_of_the_process_is_free_again():
    budget = Budget(100)
    failed = budget.claim("failed", 10, base_bytes=20, gpu_bytes=60)
    budget.claim("other", 5, gpu_bytes=15)
    failed.release(kept_gpu_bytes=10)
    assert (budget.gpu_bytes, budget.free_bytes) == (15, 60)
    failed.release()
    assert budget.gpu_bytes == 15


def test_what_gpus_take_of_the_process_counts_once_and_stays():
    budget = Budget(100)
    first = budget.claim("model", 10, base_bytes=20, gpu_bytes=30)
    second = budget.claim("other", 10, gpu_bytes=15)
    assert (budget.gpu_bytes, budget.free_bytes) == (30, 30)
    first.release()
    second.release()
    assert (budget.gpu_bytes, budget.free_bytes) == (30, 50)
    with pytest.raises(MemoryBudgetExceeded):
        budget.claim("more", 31, gpu_bytes=50)
    assert budget.gpu_bytes == 30
