"""The process that ``edge-rt profile`` measures: as large as a chat on the command line before it loads a model."""

from __future__ import annotations

import contextlib
import io


def main() -> None:
    """Import what a chat has imported before it loads a model, then run the request from standard input."""
    import prompt_toolkit  # noqa: F401

    from edge_rt.cli.main import main as run_command_line

    with contextlib.redirect_stdout(io.StringIO()):
        run_command_line(["plan", "--device", "list"])  # reading flags imports more
    from edge_rt.measure.memory_worker import main as work

    work()


if __name__ == "__main__":
    main()
