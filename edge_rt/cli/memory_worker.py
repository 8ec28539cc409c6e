"""The process that ``edge-rt profile`` measures: as large as ``edge-rt generate`` before it loads a model."""

from __future__ import annotations

import contextlib
import io


def main() -> None:
    """Import what a command has imported before it loads a model, then run the request from standard input."""
    from edge_rt.cli.interrupt import run_in_background
    from edge_rt.cli.main import main as run_command_line

    with contextlib.redirect_stdout(io.StringIO()):
        run_command_line(["plan", "--device", "list"])  # reading flags imports more
    # A command imports in a thread, which has a heap of its own.
    run_in_background(_import)
    from edge_rt.measure.memory_worker import main as work

    work()


def _import() -> None:
    import edge_rt.runtime.model
    import edge_rt.store.resolve  # noqa: F401


if __name__ == "__main__":
    main()
