"""Published models with small random weights: saved as a checkpoint, compiled, compared, and the comparison recorded.

Every weight is random, also those of norms and biases: the initial values of a new model (ones and zeros) hide a norm
in the wrong place and a missing bias. `make parity-table` names the file for the records; without it none is written.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

import specc
from specc.driver import weight_sources as loading
from specc.driver.weights_section_and_load_transforms import list_model_parameters
from specc.huggingface.model_family import load_checkpoint_config
from specc.huggingface.quantization_config import read_quantization_config
from specc.io.file_type_detection import is_gguf_path
from specc.ir.model_definition import ModelDefinition
from specc.runtime.single_model_file import LoadedModel
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import read_parameter
from support.elaborated_specs import (
    ElaboratedSpec,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
)
from support.padded_batches import Samples, Side

RECORD_VARIABLE = "SPECC_PARITY_RECORD"


def record_comparison(
    find_model: Callable[[], ModelDefinition], *, worst: float | None = None, written: int = 0
) -> None:
    """Append a passed comparison to the record: `worst` difference relative to the largest value,
    or the number of equal generated tokens.

    Calls `find_model` only if a record is written.
    """
    path = os.environ.get(RECORD_VARIABLE)
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
    with Path(path).open("a", encoding="utf-8") as file:  # a single write: workers share the file
        file.write(json.dumps(line) + "\n")


Arrays = dict[str, NDArray[Any]]
Run = Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
"""A published model: maps inputs by the spec's names to outputs by the spec's names."""


def randomize_weights(model: torch.nn.Module, seed: int = 0) -> Any:
    """Return the model with random weights (float32 values), ready to run in float64.

    Sinusoidal tables are unchanged: they are not trained.
    """
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if is_sinusoidal(model, name):
                continue
            drawn = torch.randn(p.shape, generator=source)
            if p.dim() > 1:
                p.copy_(drawn * 1.5 / p[0].numel() ** 0.5)
            else:
                p.copy_(0.3 * drawn + float(name.endswith("weight")))
    return model.eval()


def randomize_statistics(model: torch.nn.Module) -> None:
    """Set the running means and variances of batch norms to random values."""
    source = torch.Generator().manual_seed(9)
    for name, gathered in model.named_buffers():
        if name.endswith("running_mean"):
            gathered.copy_(torch.randn(gathered.shape, generator=source))
        if name.endswith("running_var"):
            gathered.copy_(torch.rand(gathered.shape, generator=source) + 0.5)


def is_sinusoidal(model: torch.nn.Module, name: str) -> bool:
    """Whether a parameter is a sinusoidal table, which a few classes store as a weight."""
    return "Sinusoidal" in type(model.get_submodule(name.rpartition(".")[0])).__name__


@dataclass(frozen=True)
class WeightedSpec:
    """A spec with a published model's weights: as a graph for the reference, and compiled."""

    spec: ElaboratedSpec
    weights: Arrays
    compiled: LoadedModel


def open_weighted_spec(
    spec: str, directory: Path, max_tokens: int = 0, graph: str = "", **sets: object
) -> WeightedSpec:
    """Open a spec with the weights and config.json of a directory, or with a GGUF file.

    `longest` is the maximum number of tokens where the model needs it; `graph` selects another
    graph than the default.
    """
    alone = is_gguf_path(directory)
    config = str(directory) if alone or (directory / "config.json").exists() else ""
    found = elaborate_with_config(spec, config, max_tokens, graph, **sets)
    values = loading.bind_checkpoint(
        list_model_parameters(found.model.graph),
        found.rules,
        str(directory),
        quantization=read_quantization_config(load_checkpoint_config(config)) if config else None,
    )
    weights = {
        name: read_parameter(values, values.get_tied_source(name) or name)
        for name in values.parameters
    }
    path = (directory.parent if alone else directory) / "model.onnx"
    specc.compile(
        spec,
        path,
        weights=directory,
        set={k.replace("__", "."): v for k, v in sets.items()},
        context_length=max_tokens,
        graph=graph,
    )
    return WeightedSpec(found, weights, specc.load(path, threads=1))


def build_weighted_spec(
    spec: str, weights: Arrays, directory: Path, graph: str = "", **sets: object
) -> WeightedSpec:
    """Write weights to a checkpoint in `directory` and open the spec with it."""
    write_safetensors(directory / "model.safetensors", weights)
    return open_weighted_spec(spec, directory, graph=graph, **sets)


def list_module_weights(module: torch.nn.Module, prefix: str = "") -> Arrays:
    """Return the weights of a module by name, with a prefix."""
    return {f"{prefix}{name}": p.detach().numpy().copy() for name, p in module.state_dict().items()}


def assert_matches_float32(
    ours: WeightedSpec,
    samples: Samples,
    published: Run,
    results: Mapping[str, str],
    sides: tuple[Side, ...] = ("right",),
) -> None:
    """Call `assert_matches_published` for models that compute some steps in float32 even in float64
    mode.
    """
    assert_matches_published(ours, samples, published, results, sides, reference_tolerance=1e-5)


def assert_matches_published(
    ours: WeightedSpec,
    samples: Samples,
    published: Run,
    results: Mapping[str, str],
    sides: tuple[Side, ...] = ("right",),
    reference_tolerance: float = 1e-9,
) -> None:
    """Assert that the spec gives the published model's float64 outputs: alone, and in a padded
    batch of 3.

    `results` maps each output to its padded axis, "" if it has none; only valid positions are
    compared. The float64 reference must agree to `exactly`.
    """
    worst = 0.0
    batches: list[tuple[Arrays, Side | None]] = [(samples.get_sample(0), None)]
    batches += [(samples.make_batch(side), side) for side in sides]
    for inputs, side in batches:
        with torch.no_grad():
            expected = published({k: _tensor(v) for k, v in inputs.items()})
        reference = run_reference(ours.spec, ours.weights, inputs)
        compiled = ours.compiled.run(**inputs)
        for name, dim in results.items():
            for row in range(len(samples.rows) if side else 1):
                theirs = expected[name][row].numpy()
                valid = (
                    samples.get_positions(row, dim, len(theirs), side)
                    if dim and side
                    else slice(None)
                )
                what = f"{name} of sample {row}, {side or 'alone'}"
                assert_arrays_close(
                    reference[name][row][valid],
                    theirs[valid],
                    f"{what}, reference",
                    reference_tolerance,
                )
                apart = assert_arrays_close(
                    compiled[name][row][valid], theirs[valid], f"{what}, compiled", 1e-5
                )
                worst = max(worst, apart)
    record_comparison(lambda: ours.spec.model, worst=worst)


def run_one_by_one(
    x: Mapping[str, torch.Tensor], run: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Run a model on each sequence without its padding: [batch, seq, …], 0 at padded positions.

    For models without padding masks, or with one padding side. `x` contains token ids and the
    padding mask.
    """
    ids, keep = x.values()
    outputs = [run(row[kept][None])[0] for row, kept in zip(ids, keep, strict=True)]
    whole = torch.zeros(*ids.shape, *outputs[0].shape[1:], dtype=torch.float64)
    for n, row in enumerate(outputs):
        whole[n, keep[n]] = row
    return whole


def _tensor(array: NDArray[Any]) -> torch.Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.double() if tensor.is_floating_point() else tensor
