"""What a parity run found, a line a comparison, for the table in the docs.

`make parity-table` names the file; without a name nothing is kept.
"""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from specc.ir.model import ModelDefinition

NAME = "SPECC_PARITY_RECORD"


def record(
    find_model: Callable[[], ModelDefinition], *, worst: float | None = None, written: int = 0
) -> None:
    """A comparison of a model that held: the `worst` difference, as a share of the
    greatest value, or how many tokens were written alike. The model is asked for when a file is
    kept.
    """
    path = os.environ.get(NAME)
    if not path:
        return
    model = find_model()
    config = json.dumps(model.config, sort_keys=True, default=str)
    line = {
        "family": model.name,
        "head": model.graph.name,
        "config": hashlib.sha256(config.encode()).hexdigest()[:12],
        "worst": worst,
        "written": written,
    }
    with Path(path).open("a", encoding="utf-8") as file:  # one write: workers share it
        file.write(json.dumps(line) + "\n")
