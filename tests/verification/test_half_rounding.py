"""Results of models with 16-bit computation: rounding explains errors of a few positions that are
much larger than the others and tokens with nearly equal logits, but no wrong weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc import backend
from specc.diagnostics.diagnostic import SpeccError
from specc.ir.array import Array
from specc.runtime.random_inputs import make_random_inputs
from specc.runtime.single_model_file import LoadedModel, load_model
from specc.verification import generation_verification
from specc.verification.generation_verification import verify_generation
from specc.verification.model_verification import verify_graph
from specc.verification.result_comparison import compute_relative_differences
from specc.verification.rounding_errors_and_overflow import (
    HALF_FORMATS,
    MAX_EXPLAINED_RATIO,
    SAMPLE_COUNT,
    HalfPrecisionErrorEstimator,
    HalfPrecisionRounding,
    RoundingPerturbation,
)

HEAVY_TAILS = {
    # a router that chooses another expert if two scores are nearly equal
    "router": """
  h = linear(x, out=8, bias=false) @ up
  best = argmax(linear(h, out=3, bias=false) @ router, axis=2)
  return linear(h, out=4) @ out + 9.0 * (embedding(best, size=3, dim=4) @ experts)
""",
    # a norm of vectors with two elements, some of which are close to zero
    "norm": """
  h = linear(x, out=2, bias=false) @ up
  return linear(rms_norm(h, eps=1e-6) @ norm, out=4) @ out
""",
}


def compile_half(directory: Path, spec: str, **options: Any) -> LoadedModel:
    """Compile a spec to 16 bits with random weights."""
    path = directory / "m.onnx"
    specc.compile(
        spec, path, init=1, target="ort-cuda", dtype="f16", weights_as="inline", **options
    )
    return load_model(str(path))


def write_spec(directory: Path, body: str) -> str:
    """Write a spec with one input x, float[batch, n, 8]."""
    path = directory / "tails.specc"
    head = "graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 4]) {"
    path.write_text(f"specc 1\nmodel tails\ndims batch, n\n{head}{body}}}\n", encoding="utf-8")
    return str(path)


class Evaluation:
    """Evaluates the graph of a model with the reference."""

    def __init__(self, model: LoadedModel) -> None:
        self.graph, self.weights = model.manifest.graph, model.weights()

    def run(
        self, inputs: Mapping[str, Array], seed: int = -1, scaled: str = ""
    ) -> dict[str, Array]:
        """Return the results, rounded with a seed from 0 on, with the weight `scaled` 6 % larger."""
        weights = {n: w * 1.06 if n == scaled else w for n, w in self.weights.items()}
        hook = HalfPrecisionRounding(np.random.default_rng(seed)) if seed >= 0 else None
        made = backend.load_reference_backend().evaluate_graph(
            self.graph, inputs, weights, result_hook=hook
        )
        return {n: np.asarray(v) for n, v in made.items()}


@pytest.mark.parametrize(
    ("kind", "weights"),
    [("router", ("up.weight", "out.weight", "experts.weight")), ("norm", ("norm.weight",))],
)
def test_rounding_explains_large_errors_of_a_few_positions(
    kind: str, weights: tuple[str, ...], tmp_path: Path
) -> None:
    one = Evaluation(compile_half(tmp_path, write_spec(tmp_path, HEAVY_TAILS[kind])))
    rare_count = 0
    for seed in range(150 if kind == "router" else 20):
        sizes = {"batch": 8, "n": 50}
        inputs = make_random_inputs(one.graph, sizes, np.random.default_rng(seed))
        expected = one.run(inputs)
        errors = HalfPrecisionErrorEstimator(
            graph=one.graph, inputs=inputs, weights=one.weights, expected=expected
        )
        result = one.run(inputs, 1000 + seed)["y"]
        assert errors.describe_excess_error("y", result) == ""
        change = compute_relative_differences(result, expected["y"]).max()
        if change > 0.05:
            samples = [one.run(inputs, n)["y"] for n in range(SAMPLE_COUNT)]
            most = max(compute_relative_differences(s, expected["y"]).max() for s in samples)
            rare_count += bool(change > MAX_EXPLAINED_RATIO * most)
        for name in weights if seed < 20 else ():
            assert errors.describe_excess_error("y", one.run(inputs, 1000 + seed, name)["y"]), name
    # the largest change in four samples does not explain all results
    assert rare_count or kind == "norm"


FINAL_NORMS = [
    ("dots1", "model.norm.weight"),
    ("gpt_oss", "model.norm.weight"),
    ("gemma4_text", "model.norm.weight"),
    ("bamba", "model.final_layernorm.weight"),
]


@pytest.mark.parametrize(("spec", "norm"), sample_sweep(FINAL_NORMS))
def test_verify_accepts_rounded_results_only(spec: str, norm: str, tmp_path: Path) -> None:
    model = compile_half(tmp_path, spec, set=SMALL_CONFIGS[spec])
    one = Evaluation(model)

    def verify(name: str, seed: int) -> None:
        session = SimpleNamespace(
            run=lambda inputs: one.run(inputs, seed, name), outputs=model.session.outputs
        )
        assert [*verify_graph(replace(model, session=session), seed=seed)]

    for seed in (1000, 2000):
        verify("", seed)
    with pytest.raises(SpeccError, match="E0930"):
        verify(norm, 3000)


class HalfKernel(RoundingPerturbation):
    """Rounds the 16-bit values of a graph, and no others."""

    def __call__(self, value: Any, array: Array) -> Array:
        return HalfPrecisionRounding(self.rng)(value, array)

    def perturb_arrays(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        return dict(arrays)


@pytest.mark.parametrize("spec", sample_sweep(("gpt_oss", "gemma4_text", "got_ocr2", "helium")))
def test_verify_accepts_tokens_with_nearly_equal_logits(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are rounded to bf16, which has no CPU kernels."""
    monkeypatch.setitem(HALF_FORMATS, "f16", HALF_FORMATS["bf16"])  # type: ignore[arg-type]
    monkeypatch.setattr(
        generation_verification, "iterate_lengths_above_thresholds", lambda *_: iter(())
    )
    model = compile_half(tmp_path, spec, set=SMALL_CONFIGS[spec], graphs="generate")
    scale, seeds = {"": 1.0}, iter(range(90000, 91000))

    def run_model(decode: Any) -> dict[str, Array]:
        weights = {n: w * scale.get(n, 1.0) for n, w in decode.weights.items()}
        kernel = HalfKernel(np.random.default_rng(next(seeds)))
        return dict(replace(decode, weights=weights).compute_results(kernel))

    monkeypatch.setattr(generation_verification._ReferenceDecode, "run_model", run_model)
    for seed in range(3):
        assert [*verify_generation(model, seed=seed, rounds=3)]
    scale |= {n: -1.0 for n in model.weights() if "embed" in n}
    with pytest.raises(SpeccError, match="E0930"):
        list(verify_generation(model, seed=0, rounds=3))
