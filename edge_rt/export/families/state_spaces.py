"""State spaces in settings of models: Mamba-2, as several families have it."""

from __future__ import annotations

import math
from typing import Any, Final

from edge_rt.errors import InvalidModelFile, as_json
from edge_rt.export.families.config_reader import ConfigReader
from edge_rt.export.families.header_reader import HeaderReader
from edge_rt.export.sources.gguf_types import FETCH_AGAIN
from edge_rt.package.layers import MAX_HEAD_DIM, MAX_HEADS, MAX_TAPS, MAX_WIDTH, StateSpace

SPACE_NAMES: Final = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "dt_bias": "ssm_dt.bias",
    "A_log": "ssm_a",
    "D": "ssm_d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
"""transformers' names within a state space -> GGUF's."""
SPACE_HEADER_NAMES: Final = {"ssm_a": "ssm_a.weight", "ssm_d": "ssm_d.weight"}
"""What GGUF files name without an end."""


def require_no_step_limit(config: ConfigReader) -> None:
    """Refuse limits of a state space's steps."""
    limit = config.get("time_step_limit")
    if limit is not None and limit != [0.0, math.inf] and limit != [0.0, {"__float__": "Infinity"}]:
        raise config.refused(f"time_step_limit is {as_json(limit)}")


def config_space(config: ConfigReader, size: int, **more: Any) -> StateSpace:
    """Return the state space of a ``config.json``; ``size``: features of all heads."""
    require_no_step_limit(config)
    heads = config.count("mamba_n_heads", MAX_HEADS, default=128)
    head = size // heads
    if config.get("mamba_d_head") not in (None, "auto"):
        head = config.count("mamba_d_head", MAX_HEAD_DIM)
    if heads * head != size:
        raise config.wrong("mamba_n_heads", f"{heads} of {head}, and {size} features")
    return StateSpace(
        heads,
        head,
        config.count("mamba_n_groups", heads, default=1),
        config.count("mamba_d_state", MAX_HEAD_DIM, default=256),
        config.count("mamba_d_conv", MAX_TAPS, default=4),
        has_conv_bias=config.flag("mamba_conv_bias", default=True),
        has_bias=config.flag("mamba_proj_bias"),
        **more,
    )


def header_space(reader: HeaderReader, layer: str, **more: Any) -> StateSpace:
    """Return the state space of a GGUF header; ``layer``: what the names of the tensors of one begin with."""
    heads, size = reader.count("ssm.time_step_rank", MAX_HEADS), reader.count("ssm.inner_size", MAX_WIDTH)
    if size % heads:
        raise InvalidModelFile(
            f"{reader.where}: '{reader.key('ssm.inner_size')}' cannot be used.",
            f"It is {size}, no multiple of {heads} heads.",
            FETCH_AGAIN,
        )
    return StateSpace(
        heads,
        size // heads,
        reader.count("ssm.group_count", heads),
        reader.count("ssm.state_size", MAX_HEAD_DIM),
        reader.count("ssm.conv_kernel", MAX_TAPS),
        has_conv_bias=reader.has_tensor(f"{layer}ssm_conv1d.bias"),
        has_bias=reader.has_tensor(f"{layer}ssm_in.bias"),
        **more,
    )
