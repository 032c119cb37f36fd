"""Runs models with OpenVINO on the processor: with_openvino.py FOLDER NAME...

For each NAME it reads `FOLDER/NAME.onnx` and the inputs `FOLDER/NAME.0.json`, …, writes
results beside them (`NAME.0.out.json`) and prints a line of JSON: its name, and what
went wrong, if anything did.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino


def as_array(told: dict[str, Any]) -> Any:
    """An array from its type, its lengths and its numbers."""
    return np.array(told["data"], told["type"]).reshape(told["dims"])


def as_json(array: Any) -> dict[str, Any]:
    """The same back; what is no number is a text."""
    data = [x if np.isfinite(x) else str(x) for x in array.ravel().tolist()]
    return {"type": str(array.dtype), "dims": list(array.shape), "data": data}


def run(core: Any, directory: Path, name: str) -> None:
    """One model with all its inputs, in full precision."""
    model = core.compile_model(
        core.read_model(directory / f"{name}.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    known = {said for given in model.inputs for said in given.names}
    turn = 0
    while (path := directory / f"{name}.{turn}.json").exists():
        told = json.loads(path.read_text())
        given = {k: as_array(v) for k, v in told.items() if k in known}
        made = model(given)
        results = {said: as_json(made[o]) for o in model.outputs for said in o.names}
        (directory / f"{name}.{turn}.out.json").write_text(json.dumps(results))
        turn += 1


def main() -> None:
    """Every model that is named."""
    directory, core = Path(sys.argv[1]), openvino.Core()
    for name in sys.argv[2:]:
        wrong = ""
        try:
            run(core, directory, name)
        except Exception as error:
            wrong = str(error) or repr(error)
        print(json.dumps({"name": name, "wrong": wrong}), flush=True)


main()
