"""Runs models with tract on the processor: with_tract.py FOLDER NAME..., as
with_openvino.py does.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tract


def as_array(told: dict[str, Any]) -> Any:
    """An array from its type, its lengths and its numbers."""
    return np.array(told["data"], told["type"]).reshape(told["dims"])


def as_json(array: Any) -> dict[str, Any]:
    """The same back; what is no number is a text."""
    data = [x if np.isfinite(x) else str(x) for x in array.ravel().tolist()]
    return {"type": str(array.dtype), "dims": list(array.shape), "data": data}


def run(directory: Path, name: str) -> None:
    """One model with all its inputs; its lengths stay open."""
    model = tract.onnx().load(directory / f"{name}.onnx")
    inputs = [model.input_name(n) for n in range(model.input_count())]
    ready = model.into_model().into_runnable()
    turn = 0
    while (path := directory / f"{name}.{turn}.json").exists():
        told = json.loads(path.read_text())
        made = ready.run([as_array(told[n]) for n in inputs])
        # its outputs bear other names, in the model's order
        results = {str(n): as_json(t.to_numpy()) for n, t in enumerate(made)}
        (directory / f"{name}.{turn}.out.json").write_text(json.dumps(results))
        turn += 1


def main() -> None:
    """Every model that is named."""
    directory = Path(sys.argv[1])
    for name in sys.argv[2:]:
        wrong = ""
        try:
            run(directory, name)
        except Exception as error:
            # behind it stands where in its own sources it was
            wrong = str(error).split("Stack backtrace")[0] or repr(error)
        print(json.dumps({"name": name, "wrong": wrong}), flush=True)


main()
