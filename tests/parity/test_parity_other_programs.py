"""Packages with the naming conventions `hf` and `genai`, run by the programs that read them: they
generate the tokens of the spec.

The programs have their own environments: Optimum needs an older transformers, the others are not
Python or bring their own ONNX Runtime. SPECC_GENAI_PYTHON and SPECC_OPTIMUM_PYTHON name Python
executables, SPECC_NODE_MODULES a `node_modules` with @huggingface/transformers; `make other-runtimes`
installs all three in `.other-runtimes/`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from support.elaborated_specs import run_reference
from support.profiled_models import (
    ProfiledModel,
    open_profiled_model,
    vary_generated_tokens,
    write_profiled_package,
)
from support.published_models import randomize_weights

from specc.cli.main import main

pytestmark = pytest.mark.parity
ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "support" / "other_programs"
GPT2 = {"layers": 2, "d": 32, "heads": 4, "vocab": 61, "context": 64, "stop": [60]}
LLAMA = {"layers": 2, "d": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocab": 61, "stop": "[60]"}
T5 = {
    "d": 32,
    "heads": 4,
    "head_dim": 8,
    "hidden": 48,
    "vocab": 61,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
TOKENS = 12
CLOSE = 1e-4
"""Where the two best logits of the reference are closer than this share of their range,
nothing is decided.
"""


def find_python_with(module: str, name: str) -> str:
    """Return the Python that has a module; skip if there is none."""
    named = os.environ.get(f"SPECC_{name.upper()}_PYTHON", "")
    made = ROOT / ".other-runtimes" / name / "bin" / "python"
    if named or made.exists():
        return named or str(made)
    if find_spec(module) is None:
        pytest.skip(
            f"{module} is not installed: set SPECC_{name.upper()}_PYTHON, or run `make other-runtimes`"
        )
    return sys.executable


def node_modules() -> str:
    """Return a directory with transformers.js; skip if there is none, or no Node."""
    found = os.environ.get(
        "SPECC_NODE_MODULES", str(ROOT / ".other-runtimes" / "node" / "node_modules")
    )
    if shutil.which("node") is None or not (Path(found) / "@huggingface" / "transformers").exists():
        pytest.skip(
            "transformers.js is not installed: set SPECC_NODE_MODULES, or run `make other-runtimes`"
        )
    return found


def run_program(command: Sequence[str]) -> list[list[int]]:
    """Return the tokens that a program prints on its last line."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **offline},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return made


def greedy(
    model: ProfiledModel, given: Mapping[str, NDArray[Any]], start: NDArray[Any], stop: int
) -> list[list[int]]:
    """Return greedy tokens of the float64 reference, from full forward passes; assert that no two
    candidates are close.
    """
    generation = model.spec.model.generation
    assert generation
    names = list(model.spec.model.graph.inputs)
    mask = names[names.index(generation.sequence_input) + 1]
    ids, keep = start, given.get(mask, np.ones(start.shape, bool))
    for _ in range(TOKENS):
        inputs = {**given, generation.sequence_input: ids, mask: keep}
        logits = run_reference(model.spec, model.weights, inputs)[generation.logits_output][:, -1]
        best = np.sort(logits, axis=1)
        assert ((best[:, -1] - best[:, -2]) > CLOSE * (best[:, -1] - best[:, 0])).all(), (
            "choose another seed"
        )
        ids = np.concatenate([ids, logits.argmax(1)[:, None]], axis=1)
        keep = np.concatenate([keep, np.ones((len(ids), 1), bool)], axis=1)
    made = until(ids[:, start.shape[1] :].tolist(), stop)
    assert len({token for row in made for token in row}) > 6, (
        "one word again and again proves little"
    )
    return made


def until(rows: list[list[int]], stop: int) -> list[list[int]]:
    """Return the tokens before the first stop token."""
    return [row[: row.index(stop)] if stop in row else row for row in rows]


def configured(directory: Path, data: Mapping[str, object]) -> Path:
    """Add the config.json that readers of `hf` packages need."""
    (directory / "config.json").write_text(json.dumps(data), encoding="utf-8")
    return directory


GPT2_JSON = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_head": 4, "n_layer": 2,
    "n_positions": 64, "vocab_size": 61, "eos_token_id": 60, "bos_token_id": 60, "pad_token_id": 60,
}  # fmt: skip
T5_JSON = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 32, "num_heads": 4, "d_kv": 8,
    "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "vocab_size": 61, "eos_token_id": 1, "pad_token_id": 0,
    "decoder_start_token_id": 0, "is_encoder_decoder": True,
}  # fmt: skip


@pytest.mark.parametrize(("spec", "sets"), [("gpt2", GPT2), ("llama", LLAMA)])
def test_genai_tokens(spec: str, sets: dict[str, object], tmp_path: Path) -> None:
    python = find_python_with("onnxruntime_genai", "genai")
    model = vary_generated_tokens(open_profiled_model("genai", spec, **sets, seed=3))
    directory = write_profiled_package(model, tmp_path / "package")
    prompts = np.random.default_rng(0).integers(1, 59, (2, 5))
    want = greedy(model, {}, prompts, 60)
    said = run_program(
        [
            python,
            str(PROGRAMS / "with_genai.py"),
            str(directory),
            json.dumps(prompts.tolist()),
            str(TOKENS),
        ]
    )
    assert until(said, 60) == want


def test_optimum_tokens_for_padded_prompts(tmp_path: Path) -> None:
    python = find_python_with("optimum", "optimum")
    model = vary_generated_tokens(open_profiled_model("hf", "gpt2", **GPT2, seed=3))
    directory = configured(write_profiled_package(model, tmp_path / "package"), GPT2_JSON)
    prompts = np.random.default_rng(0).integers(1, 59, (3, 5))
    keep = np.arange(5) >= np.array([[0], [2], [4]])
    want = greedy(model, {"attention_mask": keep}, prompts, 60)
    command = [
        python,
        str(PROGRAMS / "with_optimum.py"),
        str(directory),
        "decoder",
        json.dumps(prompts.tolist()),
    ]
    assert (
        until(run_program([*command, json.dumps(keep.astype(int).tolist()), str(TOKENS), "1"]), 60)
        == want
    )


def test_optimum_encoder_decoder_tokens(tmp_path: Path) -> None:
    python = find_python_with("optimum", "optimum")
    model = vary_generated_tokens(open_profiled_model("hf", "t5", **T5, seed=3))
    directory = configured(write_profiled_package(model, tmp_path / "package"), T5_JSON)
    source = np.random.default_rng(0).integers(2, 59, (3, 5))
    keep = np.arange(5) < np.array([[5], [3], [2]])
    names = list(model.spec.model.graph.inputs)
    want = greedy(model, {names[0]: source, names[1]: keep}, np.zeros((3, 1), np.int64), 1)
    command = [
        python,
        str(PROGRAMS / "with_optimum.py"),
        str(directory),
        "translator",
        json.dumps(source.tolist()),
    ]
    assert (
        until(run_program([*command, json.dumps(keep.astype(int).tolist()), str(TOKENS), "1"]), 1)
        == want
    )


JSON: dict[str, dict[str, object]] = {"gpt2": GPT2_JSON, "t5": T5_JSON}
PUBLISHED: dict[str, tuple[Any, Any]] = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config),
    "t5": (transformers.T5ForConditionalGeneration, transformers.T5Config),
}


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("spec", PUBLISHED)
def test_optimum_tokens_of_transformers(spec: str, beams: int, tmp_path: Path) -> None:
    """The published checkpoint compiled on the command line, then the same call to both."""
    python = find_python_with("optimum", "optimum")
    made, config = PUBLISHED[spec]
    data = {k: v for k, v in JSON[spec].items() if k not in ("model_type", "architectures")}
    model = randomize_weights(made(config(**data)), seed=2)
    with torch.no_grad():
        # a table that is the head too answers each word with itself
        model.get_input_embeddings().weight.mul_(0.05)
    model.save_pretrained(tmp_path / "checkpoint")
    package = tmp_path / "package"
    command = [
        "compile",
        spec,
        "--weights",
        str(tmp_path / "checkpoint"),
        "--graphs",
        "step",
        "--io-names",
        "hf",
    ]
    assert main([*command, "-o", str(package)]) == 0
    for file in ("config.json", "generation_config.json"):
        shutil.copy(tmp_path / "checkpoint" / file, package / file)
    ids = np.random.default_rng(0).integers(2, 59, (3, 5))
    lengths = np.array([[5], [3], [2]])
    keep = (np.arange(5) >= 5 - lengths) if spec == "gpt2" else (np.arange(5) < lengths)
    seen = torch.from_numpy(keep.astype(np.int64))
    want = model.generate(
        input_ids=torch.from_numpy(ids),
        attention_mask=seen,
        max_new_tokens=TOKENS,
        num_beams=beams,
        do_sample=False,
    )
    kind, first = ("decoder", 5) if spec == "gpt2" else ("translator", 1)
    assert len(set(want[:, first:].flatten().tolist())) > 6, (
        "one word again and again proves little"
    )
    program = [
        python,
        str(PROGRAMS / "with_optimum.py"),
        str(package),
        kind,
        json.dumps(ids.tolist()),
    ]
    assert (
        run_program([*program, json.dumps(seen.tolist()), str(TOKENS), str(beams)])
        == want[:, first:].tolist()
    )


def test_transformers_js_tokens(tmp_path: Path) -> None:
    modules = node_modules()
    model = vary_generated_tokens(open_profiled_model("hf", "gpt2", **GPT2, seed=3))
    # it looks for `onnx/model.onnx`, with the weights inside or beside under a name of
    # its own
    write_profiled_package(model, tmp_path / "package" / "onnx", "inline")
    configured(tmp_path / "package", GPT2_JSON)
    prompts = np.random.default_rng(0).integers(1, 59, (2, 5))
    want = greedy(model, {}, prompts, 60)
    command = [
        "node",
        str(PROGRAMS / "with_transformers_js.mjs"),
        modules,
        str(tmp_path),
        "package",
    ]
    assert until(run_program([*command, json.dumps(prompts.tolist()), str(TOKENS)]), 60) == want
