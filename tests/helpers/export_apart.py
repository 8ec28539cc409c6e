"""An export in a process of its own, whose peak of memory is the export's."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
from edge_rt.export import export_model
options = {"weights": sys.argv[4] or None, "activations": sys.argv[5] or None}
report = export_model(sys.argv[1], sys.argv[2], profile=sys.argv[3], **options)
print(json.dumps({**report.to_json(), "has_sympy": "sympy" in sys.modules}))
"""


def export_apart(gguf, folder, *, profile, weights=None, activations=None):
    """Make ``folder`` with the ``package`` of a checkpoint and the ``report.json`` of its export; return the report.

    It has one field more, ``has_sympy``: whether that library was imported, which no export needs.
    """
    folder.mkdir()
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        str(gguf),
        str(folder / "package"),
        profile,
        weights or "",
        activations or "",
    ]
    report = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    (folder / "report.json").write_text(report)
    return json.loads(report)
