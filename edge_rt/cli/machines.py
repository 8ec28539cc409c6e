"""How many models of what size run on machines that a file lists, as actors of Ray, and how fast they are together.

Actors of one pool are alike, so there is one size for all machines: the threads and the memory of a model with which
the machines together generate most. A model with more threads than were measured counts as fast as with those, and one
with fewer as slower in proportion: estimates that a machine of the same kind keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from edge_rt.errors import ConfigError, InputError
from edge_rt.memory.device import preset
from edge_rt.memory.figures import Device
from edge_rt.store.recipes import ObjectReader
from edge_rt.system.byte_size import parse_size, round_up
from edge_rt.system.json_files import JsonRefusal, parse_object, read_bytes

if TYPE_CHECKING:
    from edge_rt.memory.plan import Plan
    from edge_rt.memory.shape import ModelShape
    from edge_rt.package.reader import Package
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.runtime.speculation.cost_model import CostStore
    from edge_rt.store.catalogue_plan import MeasuredModel, Speed
    from edge_rt.store.layout import Store

T = TypeVar("T")
ACTOR_BYTES: Final = 240 << 20
"""What an actor of Ray Data holds before it loads a model: Ray, pyarrow, pandas, and the libraries of edge-rt: 226
MiB with Ray 2.60."""
MOST_CPUS: Final = 1024
MOST_MACHINES: Final = 1 << 20
_MOST_FILE_BYTES: Final = 1 << 20
_MOST_ENTRIES: Final = 256
_MIB: Final = 1 << 20
_EXAMPLE: Final = '[[machines]] with name = "worker", memory = "12GiB", cpus = 8, count = 3'


@dataclass(frozen=True)
class Machines:
    """Machines that are alike.

    Attributes:
        memory_bytes: what the models of one may take together.
        count: how many there are.
        device: whose figures tell the speed; None: this machine, with what was measured on it.
    """

    name: str
    memory_bytes: int
    cpus: int
    count: int
    device: Device | None


def read_machines(path: Path) -> tuple[Machines, ...]:
    """Read a file of machines, TOML or JSON.

    Raises:
        InputError: it is malformed, lists no machine, or one twice.
        ConfigError: a device or a size is not known.
        StorageError: it cannot be read.
    """

    def refuse(reason: str) -> InputError:
        return InputError(f"{path} lists no machines.", reason, f"Write {_EXAMPLE}.")

    reader = ObjectReader(str(path), _document(path, refuse), "Correct it.")
    wanted = f"1 to {_MOST_ENTRIES} entries"
    entries = reader.take("machines", list, lambda many: 0 < len(many) <= _MOST_ENTRIES, wanted)
    reader.finish()
    machines = tuple(
        _machines(ObjectReader(f"{path}: machines[{place}]", entry, "Correct it."))
        for place, entry in enumerate(entries)
    )
    names = [one.name for one in machines]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise refuse(f"The name {twice[0]!r:.60} is there twice.")
    return machines


def _document(path: Path, refuse: JsonRefusal) -> dict[str, Any]:
    data = read_bytes(path, _MOST_FILE_BYTES, refuse)
    if path.suffix.lower() == ".json":
        return parse_object(data, refuse)
    import tomllib

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse(f"It is no TOML: {error}.") from error


def _machines(reader: ObjectReader) -> Machines:
    def whole(key: str, most: int) -> int:
        return reader.take(key, int, lambda value: 1 <= value <= most, f"a whole number from 1 to {most}")

    def read(key: str, parse: Callable[[Any], T], value: object) -> T:
        try:
            return parse(value)
        except ConfigError as error:
            raise ConfigError(f"{reader.where}: {key}: {error.what}", error.numbers, error.action) from error

    name = reader.take("name", str, lambda text: 0 < len(text) <= 100 and text.isprintable(), "a text in one line")
    device = None
    if "device" in reader.left:
        device = read("device", preset, reader.take("device", str, wanted="a text"))
    if device is None or "memory" in reader.left:
        kind: type[str | int] = str if isinstance(reader.left.get("memory"), str) else int
        memory = read("memory", parse_size, reader.take("memory", kind, wanted='bytes, or a text such as "12GiB"'))
    else:
        memory = device.available_bytes
    cpus = whole("cpus", MOST_CPUS) if device is None or "cpus" in reader.left else device.threads
    count = whole("count", MOST_MACHINES) if "count" in reader.left else 1
    found = Machines(name, memory, cpus, count, device)
    reader.finish()
    return found


@dataclass(frozen=True)
class MachinesShare:
    """What some machines have of the models.

    Attributes:
        models: on each of them.
        speed: of one model.
        threads: with how many it was measured, or its figures are.
    """

    machines: Machines
    models: int
    speed: Speed
    threads: int

    @property
    def tokens_per_second(self) -> float:
        """Of all of them together."""
        return self.machines.count * self.models * self.speed.tokens_per_second


@dataclass(frozen=True)
class Sizing:
    """Models of one size on machines.

    Attributes:
        cpus: of a model, which computes with as many threads.
        memory_bytes: of a model's process; what the scheduler is told.
        plan: of one model.
    """

    cpus: int
    memory_bytes: int
    plan: Plan
    shares: tuple[MachinesShare, ...]

    @property
    def models(self) -> int:
        """On all machines."""
        return sum(one.machines.count * one.models for one in self.shares)

    @property
    def tokens_per_second(self) -> float:
        """Of all models together."""
        return sum(one.tokens_per_second for one in self.shares)


class Sizer:
    """Finds the size of models with which machines generate most.

    Args:
        here: this machine; its memory does not matter.
        costs: where measurements are kept; None: those of the user.
    """

    def __init__(
        self,
        model: Package | ModelShape,
        options: LoadOptions,
        here: Device,
        store: Store,
        costs: CostStore | None = None,
    ) -> None:
        from edge_rt.package.reader import Package
        from edge_rt.runtime.speculation.cost_model import user_costs

        self._model, self._here, self._store = model, here, store
        self._options = options.but(device="cpu")
        self._package = model if isinstance(model, Package) else None
        self._costs = user_costs() if costs is None else costs

    def best(self, machines: Sequence[Machines]) -> Sizing:
        """Return the size with which they generate most; of equal ones that of the fewest models.

        If none fits any machine, its plan says what it lacks.
        """
        sizes = sorted({one.cpus // models for one in machines for models in range(1, one.cpus + 1)}, reverse=True)
        found = [self._with(cpus, machines) for cpus in sizes]
        most = max(one.tokens_per_second for one in found)
        return next(one for one in found if one.tokens_per_second >= most * (1 - 1e-9))

    def _with(self, cpus: int, machines: Sequence[Machines]) -> Sizing:
        from edge_rt.runtime.load.planning import plan_package

        most = max(one.memory_bytes for one in machines if one.cpus >= cpus)
        # What a plan takes depends on no figure of speed.
        actor = replace(
            self._here, name="a worker", total_bytes=most, available_bytes=most, threads=cpus, base_bytes=ACTOR_BYTES
        )
        plan = plan_package(self._model, self._options, actor)
        memory = round_up(plan.total_bytes, _MIB)
        fits = plan.fits and memory <= most
        shares = []
        for one in machines:
            models = min(one.cpus // cpus, one.memory_bytes // memory) if fits else 0
            shares.append(MachinesShare(one, models, *self._speed(one, cpus, plan)))
        return Sizing(cpus, memory, plan, tuple(shares))

    def _speed(self, machines: Machines, cpus: int, plan: Plan) -> tuple[Speed, int]:
        """Return the speed of one model, and the threads for which it is known."""
        from edge_rt.store.catalogue_plan import expected_speed

        measured: Sequence[MeasuredModel] = ()
        if machines.device is not None:
            device, threads = machines.device, machines.device.threads
        elif self._measured:
            device, known = self._here, sorted(self._measured)
            threads = max((count for count in known if count <= cpus), default=known[0])
            measured = self._measured[threads]
        else:
            device, threads = self._here, self._here.threads
        own = None if self._package is None else self._package.id
        choice = plan.choice
        speed = expected_speed(plan.shape, device, measured, choice.kv_format, own, slots=choice.slots)
        share = min(1.0, cpus / threads)
        return replace(speed, tokens_per_second=share * speed.tokens_per_second), threads

    @cached_property
    def _measured(self) -> dict[int, tuple[MeasuredModel, ...]]:
        """What was measured on this machine by the number of threads: of this package, else of others."""
        from edge_rt.memory.shape import shape_of_package
        from edge_rt.runtime.speculation.stored_costs import costs_on_cpu, measured_threads
        from edge_rt.store.catalogue_plan import MeasuredModel, measured_models

        package, result = self._package, dict[int, tuple[MeasuredModel, ...]]()
        if package is not None:
            shape = shape_of_package(package)
            for threads in measured_threads(self._costs, package.id):
                by_format = costs_on_cpu(self._costs, package.id, threads)
                costs = by_format.get(package.manifest.kv_formats[0]) or next(iter(by_format.values()), None)
                if costs is not None:
                    result[threads] = (MeasuredModel(package.id, shape, costs),)
        if not result and (others := tuple(measured_models(self._store, self._here.threads, self._costs))):
            result[self._here.threads] = others
        return result
