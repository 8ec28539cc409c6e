"""Workers of Ray: prompts of a dataset answered by actors with a model each, and the server's application for Serve.

Ray schedules, restarts and moves data; a worker takes from it what it may use. Ray itself is not imported here: whoever
runs in one of its actors has it already, and elsewhere the same classes run without it.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from edge_rt.errors import ConfigError, EdgeRTError
from edge_rt.system.option_names import known_options, unknown_option

if TYPE_CHECKING:
    import numpy.typing as npt
    from starlette.applications import Starlette

    from edge_rt.runtime.config import GenerationOptions

    Column = npt.NDArray[Any]

SLOTS: Final = 4
"""Answers that a worker computes at once."""
QUEUE: Final = 64
"""Requests that may wait in a replica of Serve for a slot."""
_PROMPT: Final = "prompt"
_OF_WORKER: Final = ("memory", "threads", "slots", "max_queue")


@dataclass(frozen=True)
class Share:
    """What a worker may use; None: whatever the machine has.

    Attributes:
        memory: budget of the process, in bytes.
        threads: threads that compute.
    """

    memory: int | str | None
    threads: int | None

    @classmethod
    def of(cls, memory: int | str | None, threads: int | None, assigned: Mapping[str, float] | None) -> Share:
        """Return what is given, and for the rest what Ray has assigned to this actor; None: this is none.

        Raises:
            ConfigError: nobody says how much memory there is.
        """
        if assigned is None:
            return cls(memory, threads)
        if memory is None and not assigned.get("memory"):
            raise ConfigError(
                "The actor has no memory that a model can be planned for.",
                f"Ray has assigned {dict(assigned)!r:.100}.",
                "Give Ray a number of bytes: memory= of map_batches, or of ray_actor_options.",
            )
        return cls(
            int(assigned["memory"]) if memory is None else memory,
            # Ray pins no thread to a CPU; one of which it has a part still takes a thread.
            max(1, int(assigned.get("CPU", 1))) if threads is None else threads,
        )


def assigned_here() -> Mapping[str, float] | None:
    """Return the resources that Ray has assigned to this actor; None: this is none."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return None if context.get_actor_id() is None else context.get_assigned_resources()


class Answerer:
    """Answers batches of prompts with one model, for ``map_batches`` of ``ray.data``; without Ray, too.

    ::

        dataset.map_batches(
            Answerer,
            fn_constructor_kwargs={"model": "smollm2-135m-instruct", "options": {"max_tokens": 64}},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=2, memory=500 << 20, batch_size=64,
        )

    Every actor loads the model once. Its answers are those of ``Model.generate``, however prompts are put into batches.
    A row that cannot be answered has its error in a column, and the others their answers.

    Args:
        model: name of a package in the store of the actor's machine, or the path of one there.
        memory: budget of the process: bytes, or a text such as ``"600MiB"``. None: the actor's ``memory=``; outside of
            actors what the machine has available.
        threads: threads that compute. None: the actor's ``num_cpus=``; outside of actors every CPU.
        slots: answers that are computed at once.
        prompt_column: the column of prompts: texts, or messages as a list of objects with ``role`` and ``content``.
        answer_column: the column that the answers' texts are put in; empty where there is an error.
        error_column: the column for errors as text, with their type in front; empty where there is none.
        result_column: a column for whole results, as the JSON texts of ``Result.to_json``, empty where there is an
            error; None: none.
        option_columns: columns that have options of their rows, by the names of ``generate``, such as ``max_tokens``,
            ``seed``, ``response_format``, ``tools``; a value that is None is not given.
        raw: take texts as they are; else each is the message of a user.
        options: options of all rows, as ``generate`` takes them.
        load: further options of ``edge_rt.load``: ``ctx``, ``kv_rows``, ``store``, ``pull``.

    Raises:
        ConfigError: a name of an option or of a column is wrong, or the actor has no memory assigned.
        EdgeRTError: as ``edge_rt.load``.
    """

    @known_options(name="Answerer")
    def __init__(
        self,
        model: str | Path,
        *,
        memory: int | str | None = None,
        threads: int | None = None,
        slots: int = SLOTS,
        prompt_column: str = _PROMPT,
        answer_column: str = "answer",
        error_column: str = "error",
        result_column: str | None = None,
        option_columns: Collection[str] = (),
        raw: bool = False,
        options: GenerationOptions | None = None,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        from edge_rt.api import load as load_model
        from edge_rt.runtime.config import ROW_INPUTS, ROW_OPTIONS, GenerationConfig, has_format

        given: dict[str, Any] = {**(options or {})}
        self._inputs = {name: given.pop(name) for name in given.keys() & ROW_INPUTS}
        self._config = GenerationConfig(**given)
        for name in option_columns:
            if name not in ROW_OPTIONS | ROW_INPUTS:
                raise unknown_option("option_columns", name, ROW_OPTIONS | ROW_INPUTS)
        written = [name for name in (answer_column, error_column, result_column) if name is not None]
        if len({prompt_column, *option_columns, *written}) < 1 + len(option_columns) + len(written):
            names = ", ".join([prompt_column, *option_columns, *written])
            raise ConfigError("Two columns have the same name.", f"Got {names:.200}.", "Give every one its own.")
        self._prompt_column, self._option_columns = prompt_column, tuple(option_columns)
        self._answer_column, self._error_column, self._result_column = answer_column, error_column, result_column
        further = dict(load or {})
        _check_further(further)
        further.setdefault("formats", has_format({**(options or {}), **dict.fromkeys(option_columns, "")}))
        share = Share.of(memory, threads, assigned_here())
        self.model = load_model(model, memory=share.memory, threads=share.threads, slots=slots, **further)
        self._raw = raw or self.model.template_source is None

    def __call__(self, batch: Mapping[str, Column]) -> dict[str, Column]:
        """Return a batch with the columns of answers and errors beside its own.

        Args:
            batch: arrays of one length by the names of their columns, as ``batch_format="numpy"`` gives them.

        Raises:
            ConfigError: it lacks a column.
        """
        import numpy as np

        from edge_rt.runtime.many import Answer

        for name in (self._prompt_column, *self._option_columns):
            if name not in batch:
                known = ", ".join(map(repr, batch))
                raise ConfigError(f"The batch has no column {name!r:.60}.", f"It has {known:.200}.", "Name another.")
        prompts = batch[self._prompt_column]
        answers: dict[int, Answer] = {}
        rows: list[int] = []

        def asked() -> Any:
            for row in range(len(prompts)):
                try:
                    one = self._asked(batch, row)
                except EdgeRTError as error:
                    answers[row] = error
                    continue
                rows.append(row)
                yield one

        for index, answer in self.model.generate_many(asked(), self._config, ordered=False, **self._inputs):
            answers[rows[index]] = answer
        texts, errors, results = list[str](), list[str](), list[str]()
        for row in range(len(prompts)):
            one = answers[row]
            # Never None: a block without an error would have a column of another type than one with some.
            texts.append("" if isinstance(one, EdgeRTError) else one.text)
            errors.append(f"{type(one).__name__}: {one}" if isinstance(one, EdgeRTError) else "")
            results.append("" if isinstance(one, EdgeRTError) else json.dumps(one.to_json(), ensure_ascii=False))
        columns = {self._answer_column: texts, self._error_column: errors}
        if self._result_column is not None:
            columns[self._result_column] = results
        return {**batch, **{name: np.array(values, dtype=object) for name, values in columns.items()}}

    def _asked(self, batch: Mapping[str, Column], row: int) -> tuple[Any, dict[str, Any]]:
        """Return a row's prompt and its own options."""
        from edge_rt.runtime.config import asked_of

        fields = {name: plain(batch[name][row]) for name in self._option_columns}
        return asked_of({_PROMPT: plain(batch[self._prompt_column][row]), **fields}, "A row", raw=self._raw)


def plain(value: Any) -> Any:
    """Return what a cell of a table holds as lists, dictionaries and Python's own numbers; NaN, a gap, is None."""
    if isinstance(value, Mapping):
        # In a column of messages each has the keys of all, with None where it has none of its own.
        return {str(name): plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):  # an array, or a number of numpy
        return plain(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@known_options()
def app_builder(
    model: str | Path,
    *,
    memory: int | str | None = None,
    threads: int | None = None,
    slots: int = SLOTS,
    max_queue: int = QUEUE,
    host: str = "127.0.0.1",
    api_key_file: str | Path | None = None,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
    load: Mapping[str, Any] | None = None,
) -> Callable[[], Starlette]:
    """Return a function that builds the application of ``edge-rt serve`` in a replica, for ``serve.ingress`` of Ray.

    ::

        deployment = serve.deployment(
            serve.ingress(app_builder("smollm2-135m-instruct"))(),
            ray_actor_options={"num_cpus": 2, "memory": 1 << 30}, max_ongoing_requests=SLOTS + QUEUE,
        )
        serve.run(deployment.bind())

    Args:
        model: name of a package in the store of the replica's machine, or the path of one there. It is loaded when the
            replica starts, and requests name it as the store does, or as its folder.
        memory: budget of the process: bytes, or a text. None: that of ``ray_actor_options``.
        threads: threads that compute. None: ``num_cpus`` of ``ray_actor_options``.
        slots: answers that are computed at once.
        max_queue: requests that may wait; one more is answered with 429.
        host: the address that Serve listens on.
        api_key_file: a file of the replica's machine with the key that clients have to know. None: the environment
            variable ``EDGE_RT_API_KEY`` of the replica, if it is set.
        allowed_hosts: further names of the server, in the Host header of requests.
        allowed_origins: origins of pages that may ask.
        load: further options of ``edge_rt.load``.

    Raises:
        ConfigError: an option does not exist; in the replica: other machines reach the address and there is no key, or
            the actor has no memory assigned.
    """
    further = dict(load or {})
    _check_further(further)
    hosts, origins = tuple(allowed_hosts), tuple(allowed_origins)
    key_file = None if api_key_file is None else Path(api_key_file)

    def build() -> Starlette:
        from edge_rt.api import load as load_model
        from edge_rt.memory.budget import Budget
        from edge_rt.server import asgi_app, require_packages

        require_packages()
        from edge_rt.server.bodies import REQUESTS_BYTES
        from edge_rt.server.running import KEY_VARIABLE, read_key

        key = read_key(key_file, os.environ.get(KEY_VARIABLE), host)
        share, budget = Share.of(memory, threads, assigned_here()), None
        if share.memory is not None:
            budget = Budget(share.memory)
            budget.claim("requests", REQUESTS_BYTES)
        served = load_model(
            model,
            memory=budget,
            threads=share.threads,
            slots=slots,
            max_queue=max_queue,
            **{"formats": True, **further},
        )
        return asgi_app(
            {served.package.path.name: served}, host=host, key=key, allowed_hosts=hosts, allowed_origins=origins
        )

    return build


def _check_further(load: Mapping[str, Any]) -> None:
    import inspect

    from edge_rt.api import load as load_model

    known = inspect.signature(load_model).parameters.keys() - {"model", *_OF_WORKER}
    for name in load:
        if name not in known and name not in _OF_WORKER:
            raise unknown_option("load", name, known)
    for name in _OF_WORKER:
        if name in load:
            raise ConfigError(f"'{name}' is given in the wrong place.", "Got it in 'load'.", "Give it beside 'load'.")
