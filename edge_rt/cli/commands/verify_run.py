"""The work of ``edge-rt verify``: find the missing answers and generate them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from edge_rt.cli.interrupt import Background, SignalReceived
from edge_rt.cli.loading import load_model, plan_model
from edge_rt.cli.render.console import Terminal
from edge_rt.cli.render.status_line import StatusLine
from edge_rt.runtime.config import GenerationConfig
from edge_rt.runtime.graph.cancel import CancelToken

if TYPE_CHECKING:
    from edge_rt.measure.prompts import Prompt
    from edge_rt.measure.verify import Answer
    from edge_rt.measure.verify_state import VerifyState
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions


class VerifyRun:
    """Answers every prompt with every cache format and every mode.

    Args:
        terminal: shows the progress.
        package: package of the model.
        options: how it is loaded, except the cache format.
        prompts: the prompts to answer.
        config: options of generation.
        modes: modes of speculation, without plain decoding.
        formats: formats of the KV cache.
        raw: give prompts without the chat template.
    """

    def __init__(
        self,
        terminal: Terminal,
        package: Package,
        options: LoadOptions,
        prompts: Sequence[Prompt],
        config: GenerationConfig,
        modes: Sequence[str],
        formats: Sequence[str],
        *,
        raw: bool,
    ) -> None:
        self._terminal = terminal
        self._package = package
        self._options = options
        self._prompts = prompts
        self._config = config
        self._modes = modes
        self._formats = formats
        self._raw = raw
        self._found: dict[tuple[str, str, int], Answer] = {}
        self._different = 0
        self._base_bytes: int | None = None
        self._verifications: list[dict[str, Any]] = []

    def execute(self, state: VerifyState | None) -> list[Answer]:
        """Return all answers, including those from the state: by cache format, mode and prompt.

        Raises:
            EdgeRTError: a generation failed, or the state could not be written.
            SignalReceived: a signal came; the state holds the finished answers.
        """
        modes = ("off", *self._modes)
        places = [(kv, mode, prompt.index) for kv in self._formats for mode in modes for prompt in self._prompts]
        wanted = set(places)
        for answer in state.answers if state is not None else ():
            # A smaller --limit than last time leaves some out.
            if (answer.kv, answer.mode, answer.prompt) in wanted:
                self._add(answer)
        if self._found:
            self._terminal.note(f"{len(self._found)} of {len(places)} answers are already there", "dim")
        line = StatusLine(self._terminal, len(places))

        def take(answer: Answer) -> None:
            if state is not None:
                state.append(answer)
            self._add(answer)
            line.show(len(self._found), f"answers ({answer.kv}, {answer.mode}), {self._different} different")

        try:
            for kv in self._formats:
                if any((kv, mode, prompt.index) not in self._found for mode in modes for prompt in self._prompts):
                    self._answer(kv, modes, take)
        except SignalReceived:
            line.clear()
            if state is not None:
                done = f"{len(self._found)} of {len(places)} answers"
                self._terminal.note(f"{done} are saved: the same command continues from there")
            raise
        line.clear()
        return [self._found[place] for place in places]

    def keep_verification(self, *, is_same: bool, drafted: int) -> None:
        """Remember for later loads on a device whether speculation changes nothing there; nothing for the CPU.

        Only answers that were generated in this run count: a state may come from another device.

        Args:
            is_same: whether all answers were the same as plain ones.
            drafted: tokens that were drafted for them.
        """
        if not self._verifications:
            return
        if not drafted:
            self._terminal.warn("speculation stays off on this device: nothing was drafted.")
            return
        from edge_rt.runtime.speculation.verified import user_verified

        store = user_verified()
        for key in self._verifications:
            if not is_same:
                store.remove(key)
            elif not store.add(key, drafted):
                self._terminal.warn("the verification cannot be stored: speculation stays off on this device.")

    def _add(self, answer: Answer) -> None:
        from edge_rt.measure.verify import PLAIN, first_difference

        self._found[answer.kv, answer.mode, answer.prompt] = answer
        plain = self._found.get((answer.kv, PLAIN, answer.prompt))
        if plain is not None and first_difference(plain.token_ids, answer.token_ids) is not None:
            self._different += 1

    def _answer(self, kv: str, modes: Sequence[str], take: Callable[[Answer], None]) -> None:
        """Generate the missing answers with one cache format."""
        token = CancelToken()
        pending = {mode: [p for p in self._prompts if (kv, mode, p.index) not in self._found] for mode in modes}
        options = self._options.but(kv=kv)
        plan = plan_model(self._package, options, self._base_bytes)
        # Every model reuses the heap of the previous one.
        self._base_bytes = plan.base_bytes
        with load_model(self._package, options.as_planned(plan)) as loaded:
            if loaded.verification is not None:
                self._verifications.append(loaded.verification)

            def work() -> Generator[Answer]:
                from edge_rt.measure.verify import answers

                for mode, prompts in pending.items():
                    yield from answers(loaded, prompts, self._config, mode, kv=kv, raw=self._raw, cancel=token)

            try:
                # This thread saves the answers, because the other one may be abandoned at any point.
                for answer in Background(work):
                    take(answer)
            finally:
                token.cancel()
