"""Measure the quantization loss of a trained language model on validation text, for the
quantization kinds of specc and the recipes of the onnxruntime-genai model builder.

The model is trained by `byte_lm.py`, and SPECC_BYTE_LM is its directory. `--quick` does not need
the trained model.
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import byte_lm
import decoders
import generation
import numpy as np
from measure import Goal, format_goals
from numpy.typing import NDArray

import specc

HERE = Path(__file__).parent
TEXTS, LENGTH = 48, 256
"""The number of validation windows, and the number of bytes per window."""

OURS: dict[str, dict[str, Any]] = {
    "specc, float32": {},
    "specc, int8": {"quantize": "int8"},
    "specc, int8-weights": {"quantize": "int8-weights"},
    "specc, int4 (self-generated data)": {"quantize": "int4"},
    "specc, int4, group size 32": {"quantize": "int4", "group_size": 32},
    "specc, int4, round to nearest": {"quantize": "int4", "calibration_samples": 0},
}
THEIRS = {
    "genai builder, int4": (),
    "genai builder, int4, group size 128": ("block_size=128",),
    "genai builder, int4, k_quant": ("algo_config=k_quant",),
}
"""Options of the genai model builder in addition to `-p int4`; no option is the default recipe."""
GOAL = ("specc, int4 (self-generated data)", "genai builder, int4")

Logits = NDArray[np.float64]


@dataclass(frozen=True)
class ModelLoss:
    """The mean KL divergence from float32 in nats, top-1 agreement and bits per byte over all
    positions, and the total file size in bytes.
    """

    divergence: float
    same: float
    bits: float
    size: int


def iterate_report_lines(directory: Path, rounds: int, quick: bool) -> Iterator[str]:
    """Yield the table and the goal. `rounds` has no effect, because no times are measured."""
    checkpoint = _prepare_checkpoint(directory, quick)
    count, length = (4, 64) if quick else (TEXTS, LENGTH)
    ids = byte_lm.sample_windows(byte_lm.read_texts()[1], count, length)
    exact, losses, remarks = None, {}, []
    for name, made in _make_models(checkpoint, directory, remarks):
        logits, size = made
        found = _compute_log_softmax(logits(ids))
        exact = found if exact is None else exact
        losses[name] = _compute_loss(exact, found, ids, size)
    yield from _format_table(losses, remarks, ids.size)


def _format_table(losses: dict[str, ModelLoss], remarks: list[str], places: int) -> Iterator[str]:
    yield (
        "### Quantization error of a Llama with 10.7 million parameters, trained on the bytes of "
        f"Python's documentation, on {places} held-out bytes\n"
    )
    yield from (f"{remark}\n" for remark in remarks)
    yield "| | KL divergence, nats | same top-1 byte | bits per byte | MB |"
    yield "|---|---|---|---|---|"
    for name, loss in losses.items():
        yield (
            f"| {name} | {loss.divergence:.5f} | {loss.same:.2%} | {loss.bits:.4f} | "
            f"{loss.size / 1e6:.3g} |"
        )
    yield ""
    ours, theirs = (losses.get(name) for name in GOAL)
    if ours and theirs:
        share = ours.divergence / theirs.divergence
        title = f"{GOAL[0]}: KL divergence / that of {GOAL[1]}"
        yield from format_goals([Goal(title, 0.5, share, at_most=True)])


def _make_models(
    checkpoint: Path, directory: Path, remarks: list[str]
) -> Iterator[tuple[str, tuple[Callable[[NDArray[np.int64]], Logits], int]]]:
    """Yield each model by name: a function from token ids to logits, and the total file size in
    bytes. The float32 model comes first.
    """
    for n, (name, options) in enumerate(OURS.items()):
        out = directory / f"recipe-{n}"
        specc.compile(checkpoint, out / "m.onnx", weights_as="copy", **options)
        with specc.load(out / "m.onnx") as model:
            yield (
                name,
                (lambda ids, m=model: m.run(input_ids=ids)["logits"], measure_model_size(out)),
            )
    python = generation.find_genai_python()
    if not python:
        remarks.append("onnxruntime-genai is not installed: `make other-runtimes`.")
        return
    for n, (name, extra) in enumerate(THEIRS.items()):
        out = directory / f"recipe-genai-{n}"
        if said := decoders.build_genai_model(python, checkpoint, out, "int4", extra):
            remarks.append(f"{name} fails: {said}")
            continue
        graph = decoders.DecoderWithPast(out / "model.onnx")
        yield (
            name,
            (
                lambda ids, g=graph: g.run(ids, ids.shape[1], g.make_empty_caches(len(ids)))[0],
                measure_model_size(out),
            ),
        )


def _prepare_checkpoint(directory: Path, quick: bool) -> Path:
    """Return the directory of the trained model, or of a briefly trained one with `quick`."""
    named = Path(os.environ.get("SPECC_BYTE_LM", "") or directory / "byte_lm")
    script = HERE / "byte_lm.py"
    if quick and not named.exists():
        command = [sys.executable, str(script), "--out", str(named), "--minutes", "0.2"]
        subprocess.run(command, check=True, stdout=sys.stderr)
    if not (named / "model.safetensors").exists():
        raise SystemExit(
            "SPECC_BYTE_LM is not the directory of a trained model; to train one in an hour: "
            f"python benchmarks/{script.name} --out DIR"
        )
    return named


def _compute_log_softmax(logits: NDArray[Any]) -> Logits:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def _compute_loss(exact: Logits, found: Logits, ids: NDArray[np.int64], bytes: int) -> ModelLoss:
    """Compute the loss of the log-probabilities `found` relative to `exact`, both [sequences,
    positions, vocabulary].
    """
    divergence = (np.exp(exact) * (exact - found)).sum(-1).mean()
    same = (exact.argmax(-1) == found.argmax(-1)).mean()
    told = np.take_along_axis(found[:, :-1], ids[:, 1:, None], -1)
    return ModelLoss(float(divergence), float(same), float(-told.mean() / math.log(2)), bytes)


def measure_model_size(directory: Path) -> int:
    """Return the size of weight and graph files in bytes, excluding tokenizer files."""
    kinds = {".onnx", ".data", ".safetensors"}
    return sum(p.stat().st_size for p in directory.rglob("*") if p.suffix in kinds)
