"""The flags of what makes packages and drafters: export, quantising and training."""

from __future__ import annotations

from typing import Final

from edge_rt.cli.options.flags import KV_TYPE, completed_from
from edge_rt.cli.options.spread import Flag
from edge_rt.package.kv_formats import KV_FORMAT
from edge_rt.package.weights_info import WEIGHTS as WEIGHT_NAMES

QUANTISING: Final = "Quantisation and graph"
TRAINING: Final = "Training"

# --- packages ---

OUT: Final = Flag(("-o", "--out"), "Folder to create.", metavar="DIR")
VIA: Final = Flag(
    ("--via",),
    "transformers: let its exporter trace a folder's model, of any architecture (needs transformers and torch: the "
    "extra [transformers]).",
    metavar="EXPORTER",
    shown="edge-rt's own exporter",
    panel=QUANTISING,
    complete=completed_from("transformers"),
)
PROFILE: Final = Flag(
    ("--profile",),
    "native (edge-rt's operators) or portable (ONNX Runtime's).",
    metavar="PROFILE",
    shown="what this machine runs",
    panel=QUANTISING,
    complete=completed_from("native", "portable"),
)
ACTIVATIONS: Final = Flag(
    ("--activations",),
    "auto (8 bits, and 16 where measuring says that they matter), int8 (8 bits everywhere) or float (closest to the "
    "checkpoint; portable only).",
    metavar="KIND",
    panel=QUANTISING,
    complete=completed_from("auto", "int8", "float"),
)
CALIBRATION: Final = Flag(
    ("--calibration",),
    "Text by which weights are quantised and 4-bit cache keys are calibrated; none: weights are only rounded, and "
    "keys are not calibrated.",
    metavar="FILE|none",
    shown="a text of edge-rt's own",
    panel=QUANTISING,
)
DEFAULT_KV_TYPE: Final = KV_TYPE.but(
    help="Format of the KV cache that the package is loaded with by default, such as f16 or int8.",
    shown="int8 where it measurably loses little, else f16",
    panel=QUANTISING,
    complete=completed_from(*KV_FORMAT),
)
WEIGHTS: Final = Flag(
    ("--weights",),
    "Types of the weights: keep (the checkpoint's), int4 (about 4.7 bits a weight in the layers, 8.5 in embedding and "
    "head), int8, nested8 (8 bits, 4 of them a model that drafts; native only), f16 or f32.",
    metavar="TYPE",
    shown="int4 for folders of floats, else keep",
    complete=completed_from(*WEIGHT_NAMES),
)
SIZE: Final = Flag(
    ("--size",),
    "Maximum size of the weights, such as 700MiB: every matrix gets 4 to 8 bits, as its errors matter (native only).",
    metavar="SIZE",
)
EXITS: Final = Flag(
    ("--exits",),
    "Cut the graph after these layers, such as 6,10,15, so that drafts can end there (--spec exit; native only).",
    metavar="LAYERS",
    panel=QUANTISING,
)
ADAPTER: Final = Flag(
    ("--adapter",),
    "Merge a LoRA adapter: a folder of PEFT or a GGUF file; with a factor as PATH:0.5. Repeatable.",
    metavar="PATH[:SCALE]",
)
ACCEPT_LOSS: Final = Flag(
    ("--accept-loss",),
    "Write the package even if quantising changes the predictions more than is allowed.",
    panel=QUANTISING,
)
DRY_RUN: Final = Flag(
    ("--dry-run",),
    "Show the types of the weights, and the disk and memory that the export would take; write nothing.",
)

# --- trained drafters ---

KIND: Final = Flag(
    ("--kind",),
    "What is trained: head, exit (adapters of a package's exits) or model (a package of the model's first layers).",
    metavar="KIND",
    shown="head",
    complete=completed_from("head", "exit", "model"),
)
LAYERS: Final = Flag(
    ("--layers",), "Layers of a draft model (--kind model).", metavar="N", shown="2", panel=TRAINING, least=1
)
DATA: Final = Flag(
    ("--data",),
    "Prompts that the model answers, as bench takes them; self: it writes the user's turns, too.",
    metavar="FILE|self",
    shown="self",
)
TIME: Final = Flag(("--time",), "Time for everything, such as 90s, 30m or 8h.", metavar="TIME", shown="30m")
TRAIN_TOKENS: Final = Flag(
    ("--tokens",),
    "Answer tokens to generate (in files of about 20,000), instead of for half of the time.",
    metavar="N",
    panel=TRAINING,
    least=1,
)
UPDATES: Final = Flag(
    ("--updates",), "Training steps, instead of for the rest of the time.", metavar="N", panel=TRAINING, least=1
)
DROPOUT: Final = Flag(
    ("--dropout",), "Share of inputs that is left out in training.", metavar="SHARE", shown="0", panel=TRAINING
)
UNROLLED: Final = Flag(
    ("--unrolled",), "Tokens in a row that a head learns to guess.", metavar="N", shown="1", panel=TRAINING, least=1
)
VOCABULARY: Final = Flag(
    ("--vocabulary",),
    "Tokens that it can guess: the most frequent ones.",
    metavar="N",
    shown="4096",
    panel=TRAINING,
    least=16,
)
WORK: Final = Flag(
    ("--work",),
    "Folder for answers and checkpoints; a later run with it continues.",
    metavar="DIR",
    shown="one in the cache folder",
    panel=TRAINING,
)
