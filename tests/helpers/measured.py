"""One measurement of a plan in a process of its own."""

from __future__ import annotations

from edge_rt.measure.memory_watch import WORKER, MeasuredProcess


def measure_plan(package, plan, *, worker=WORKER, **options):
    """Return the run of a package as planned; ``options`` are those of ``MeasuredProcess.run``."""
    with MeasuredProcess(worker) as process:
        return process.run(package, plan, **options)
