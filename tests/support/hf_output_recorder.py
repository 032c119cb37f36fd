"""Record outputs of transformers: `make reference-outputs` writes `tests/kept/hf_outputs.npz` with one tiny
checkpoint per family.

`tests/parity` compares many configurations of each head; these are the smallest. Only missing cases
are recorded, and those that are named: `python -m support.hf_output_recorder bert`.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open

from specc.weights.formats.safetensors import write_safetensors
from support.hf_audio_cases import AUDIO
from support.hf_cases import ModelCase
from support.hf_encoder_decoder_cases import TRANSLATORS
from support.hf_outputs import (
    OutputArchive,
    RecordedOutputs,
    generate_large_inputs,
    generate_weight,
    sample_values,
    write_outputs,
)
from support.hf_text_cases import DECODERS, ENCODERS, RecordedCase
from support.hf_vision_cases import VISION
from support.padded_batches import Arrays, PaddingMask, Samples

CASES = ENCODERS | DECODERS | TRANSLATORS | VISION | AUDIO


def record_outputs(name: str, one: RecordedCase, directory: Path) -> RecordedOutputs:
    """Return the outputs of the transformers model for each sample alone, in float64."""
    case = replace(one.case, samples=generate_large_inputs(name, one.case.samples))
    config = getattr(transformers, case.config)(**case.tiny)
    kind = getattr(transformers, case.model)
    model = kind(config)
    model.save_pretrained(directory)
    # names in the checkpoint, not in the module
    with safe_open(directory / "model.safetensors", "np") as file:
        shapes = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    computed = one.computed.split()
    shapes = {n: shape for n, shape in shapes.items() if not any(part in n for part in computed)}
    write_safetensors(
        directory / "model.safetensors",
        {n: generate_weight(n, s) for n, s in shapes.items()},
        force=True,
    )
    options = {"attn_implementation": "eager"} if case.eager else {}
    hf_model = kind.from_pretrained(directory, experts_implementation="eager", **options).eval()
    if not case.float32_only:
        hf_model.double()
    return RecordedOutputs(
        config=json.loads((directory / "config.json").read_text()),
        tensors=shapes,
        samples=case.samples,
        results=case.results,
        sides=case.sides if _padded(case.samples) else ("right",),
        sets=one.sets,
        outputs=tuple(_alone(case, hf_model, n) for n in range(len(case.samples.rows))),
    )


def _padded(given: Samples) -> bool:
    return any(isinstance(field, PaddingMask) for field in given.fields.values())


def _alone(case: ModelCase, hf_model: Any, row: int) -> Arrays:
    """Return the inputs of one sample, in the precision of the archive."""
    inputs = {}
    for name, array in case.samples.get_sample(row).items():
        tensor = torch.tensor(array)
        whole = not tensor.is_floating_point()
        inputs[name] = tensor if whole or case.float32_only else tensor.double()
    with torch.no_grad():
        made = case.run_published(hf_model, inputs)
    arrays = {name: x[0].numpy().astype(np.float32) for name, x in made.items()}
    return {n: x if case.results.get(n) else sample_values(x) for n, x in arrays.items()}


def main() -> None:
    stored, named = OutputArchive(), sys.argv[1:]
    recorded_cases = {}
    for name, one in CASES.items():
        if name in stored.names and name not in named:
            recorded_cases[name] = stored[name]
            continue
        with tempfile.TemporaryDirectory() as directory:
            recorded_cases[name] = record_outputs(name, one, Path(directory))
    write_outputs(recorded_cases)


if __name__ == "__main__":
    main()
