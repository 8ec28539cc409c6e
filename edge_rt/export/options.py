"""The options of an export: one record, passed from the command line and ``export_model`` down to what writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from edge_rt.errors import ConfigError
from edge_rt.package.manifest import BUILT_IN_CALIBRATION
from edge_rt.package.reader import absolute_path
from edge_rt.package.weights_info import KEEP
from edge_rt.system.byte_size import parse_limit
from edge_rt.system.option_names import known_fields
from edge_rt.system.progress import ProgressCallback, no_progress

if TYPE_CHECKING:
    from edge_rt.export.estimate import ExportEstimate
    from edge_rt.package.sampling import SamplingAdvice

VIA: Final = ("transformers",)
"""Other exporters that can be asked for."""
Adapters: TypeAlias = Mapping[str, float] | Mapping[Path, float] | Mapping[str | Path, float] | Sequence[str | Path]
"""Paths of adapters, with scales or without."""
_FLOAT_WEIGHTS: Final = (None, KEEP, "f32")


@known_fields()
@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of ``edge_rt.export_model``, where they are described.

    Raises:
        ConfigError: there is no option of that name, the exporter is unknown or does not carry an option, the size is
            not one, or an adapter is named twice.
    """

    via: str | None = None
    profile: str | None = None
    activations: str | None = None
    weights: str | None = None
    size: int | str | None = None
    calibration: Path | str | None = BUILT_IN_CALIBRATION
    kv: str | None = None
    sampling: SamplingAdvice | None = None
    force: bool = False
    accept_loss: bool = False
    exits: Sequence[int] = ()
    adapters: Adapters = ()
    progress: ProgressCallback = no_progress
    on_estimate: Callable[[ExportEstimate], None] | None = None
    on_chatter: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.via is not None:
            self._require_carried(self.via)
        if len(self.scales) < (1 if isinstance(self.adapters, str | Path) else len(self.adapters)):
            raise ConfigError(
                "An adapter is named twice.", f"Got {self.adapters!s:.200}.", "Name it once, with its scale."
            )

    def _require_carried(self, via: str) -> None:
        if via not in VIA:
            raise ConfigError(
                "The exporter is unknown.", f"Got {via!r:.40}.", f"Choose {', '.join(VIA)}, or leave it out."
            )
        strange = {
            "profile": self.profile is not None,
            "activations": self.activations is not None,
            f"weights {self.weights}": self.weights not in _FLOAT_WEIGHTS,
            "size": bool(self.size_bytes),
            "calibration": self.calibration not in (None, BUILT_IN_CALIBRATION),
            "kv": self.kv is not None,
            "exits": bool(self.exits),
            "accept_loss": self.accept_loss,
            "adapters": bool(self.adapters),
        }
        if names := [name for name, is_given in strange.items() if is_given]:
            raise ConfigError(
                f"An export via {via} does not carry these options: {', '.join(names)}.",
                "Its graph computes in float32, with the operators that the other exporter writes.",
                "Leave them out.",
            )

    @property
    def size_bytes(self) -> int:
        """Most bytes of ``weights.bin``; 0 for no limit."""
        return parse_limit(self.size)

    @property
    def scales(self) -> dict[Path, float]:
        """Absolute path of an adapter -> its scale."""
        adapters = (self.adapters,) if isinstance(self.adapters, str | Path) else self.adapters
        scales = adapters if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 1.0)
        return {absolute_path(Path(path)): scale for path, scale in scales.items()}

    @property
    def chooses_types(self) -> bool:
        """Whether types of weights were chosen: what is quantised already may then be rounded a second time."""
        return bool(self.size_bytes) or self.weights not in (None, KEEP)
