"""Standalone generators produce the same tokens in JavaScript (onnxruntime-web in Node).

The package is installed by `make other-runtimes`, or is in the directory that SPECC_NODE names (the one
with `node_modules`). Without it the tests are skipped; nothing is downloaded.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.generation_models import GenerationCase, elaborate_smallest, make_settings

pytestmark = pytest.mark.parity

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "onnx_in_node.mjs"


@pytest.fixture(scope="session")
def packages() -> Path:
    """Return the directory whose `node_modules` has the package."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")
    directory = Path(os.environ.get("SPECC_NODE", ROOT / ".other-runtimes" / "node")).resolve()
    if not (directory / "node_modules" / "onnxruntime-web").is_dir():
        pytest.skip(
            "onnxruntime-web is not installed: `make other-runtimes`, or name its folder in SPECC_NODE"
        )
    return directory


def run_in_node(
    packages: Path, model: Path, feeds: dict[str, np.ndarray[Any, Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Return what the model computes in JavaScript."""
    given = {
        n: {"type": str(a.dtype), "dims": list(a.shape), "data": a.ravel().tolist()}
        for n, a in feeds.items()
    }
    command = ["node", str(SCRIPT), str(packages), str(model)]
    done = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    return {n: np.array(t["data"], t["type"]).reshape(t["dims"]) for n, t in made.items()}


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {
        "seed": 11,
        "top_k": 12,
        "top_p": 0.9,
        "min_p": 0.01,
        "temperature": 0.9,
        "repetition_penalty": 1.2,
    },
    "beam": {"num_beams": 3, "num_return_sequences": 2},
}


@pytest.mark.parametrize("strategy", SETTINGS)
@pytest.mark.parametrize(
    "name", ["gpt2", "mistral", "mixtral", "lstm_lm", "transformer", "rnnsearch"]
)
def test_tokens_of_the_native_runtime(
    name: str, strategy: str, packages: Path, tmp_path: Path
) -> None:
    spec = elaborate_smallest(name)
    case = GenerationCase(
        spec, make_settings(spec, strategy, max_tokens=12, **SETTINGS[strategy]), target="onnx"
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    found = run_in_node(packages, path, case.feeds)
    tokens, scores = case.run()
    assert found["tokens"].tolist() == tokens.tolist()
    other = found["scores" if strategy == "beam" else "log_probs"]
    assert np.abs(other - scores).max() < 1e-5
