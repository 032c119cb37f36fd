"""Every config field with other values: a small transformers model and the spec read the same
config.json.
"""

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import specc_numpy
from specc.diagnostics.diagnostic import SpeccError
from specc.driver import weight_sources as loading
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import (
    list_model_parameters,
    read_weight_rules,
)
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.weights.parameter_sources import read_parameter
from support.published_models import Arrays

TOLERANCE = 1e-5
IDS = np.array([[3, 17, 1, 29, 8, 8, 22, 5, 11, 2, 30, 19]])
SHORT_IDS = IDS[:, :7] % 31


@dataclass(frozen=True)
class FieldCase:
    """A spec, its transformers class, a tiny configuration, and how to run both.

    `others` lists further values of fields; `without` lists fields that the class itself handles
    incorrectly.
    """

    spec: str
    config: str
    model: str
    tiny: Mapping[str, Any]
    inputs: Callable[[Mapping[str, Any]], Arrays]
    run: Callable[[Any, Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    other_values: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    excluded_fields: tuple[str, ...] = ()


def make_text_inputs(config: Mapping[str, Any]) -> Arrays:
    """Return token ids without padding."""
    return {"input_ids": IDS, "attention_mask": np.ones(IDS.shape, bool)}


def run_decoder(model: Any, x: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the logits of each position."""
    return {"logits": model(input_ids=x["input_ids"], use_cache=False, return_dict=True).logits}


ACTIVATIONS = ("relu", "gelu", "gelu_new", "quick_gelu", "silu", "mish")
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "hidden_size": 32,
}
DECODER_SIZES = {"vocab_size": 31, "max_position_embeddings": 20, **SIZES}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
DIVISORS = [1.0 + n / 4 for n in range(4)]
ROPES: tuple[Any, ...] = (
    {"rope_type": "default", "rope_theta": 50.0},
    {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0},
    {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": DIVISORS, "long_factor": DIVISORS, "factor": 4.0},
    YARN,
    *({**YARN, **more} for more in (
        {"mscale": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0.4}, {"mscale_all_dim": 0.4}, {"truncate": False},
        {"mscale": 0, "mscale_all_dim": 0.4}, {"mscale": 1.0, "mscale_all_dim": 1.0}, {"attention_factor": 1.3},
        {"attention_factor": 1.3, "mscale": 0.7, "mscale_all_dim": 0.4}, {"beta_fast": 8.0}, {"beta_slow": 0.2},
        {"beta_fast": 0}, {"beta_slow": 0}, {"beta_fast": None}, {"factor": 1.0}, {"factor": None},
        {"partial_rotary_factor": 0.5}, {"rope_theta": 3.0}, {"original_max_position_embeddings": 4},
        {"type": "linear"}, {"beta_fast": 8.0, "beta_slow": 0.2, "truncate": False})),
    {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"},
    {k: v for k, v in YARN.items() if k != "rope_theta"},
    {k: v for k, v in YARN.items() if k != "factor"},
    LLAMA3,
    {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"},
    {k: v for k, v in LLAMA3.items() if k != "low_freq_factor"},
    {k: v for k, v in LLAMA3.items() if k != "high_freq_factor"},
    {k: v for k, v in LLAMA3.items() if k != "factor"},
    {**LLAMA3, "partial_rotary_factor": 0.5},
    {},
)  # fmt: skip
OLD_ROPES: tuple[Any, ...] = tuple(
    {("type" if k == "rope_type" else k): v for k, v in rope.items() if k != "rope_theta"}
    for rope in (ROPES[2], YARN, {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}, LLAMA3,
                 {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "dynamic", "factor": 2.0})
)  # fmt: skip
ROTARY: Mapping[str, tuple[Any, ...]] = {
    "rope_parameters": ROPES,
    "rope_scaling": OLD_ROPES,
    "rope_theta": (50.0, 7),
    "partial_rotary_factor": (0.5,),
    "original_max_position_embeddings": (8,),
    "default_theta": (77.0,),
    "num_key_value_heads": (4, 2, 1, None),
    "head_dim": (6, 16, None),
    "layer_types": (["full_attention", "sliding_attention"],),
}


def list_other_values(name: str, value: Any) -> tuple[Any, ...]:
    """Return other values of a field, by its name and current value."""
    if isinstance(value, str) and name.endswith(("_act", "activation_function", "act_fn")):
        return ACTIVATIONS
    match value:
        case bool():
            return (not value,)
        case int():
            return (max(2 * value, 1),)
        case float():
            return (value * 3 + 0.1,)
        case str():
            return ("relu",)
        case None:
            return (True, 3, 0.5)
        case list():
            return ([*value, *value],)
        case dict():
            return ({"0": "a", "1": "b", "2": "c"},)
    return ()


def iterate_field_changes(family: FieldCase) -> Iterator[tuple[str, Any]]:
    """Yield each field of the class and of the tiny configuration with each other value."""
    defaults = getattr(transformers, family.config)(**family.tiny).to_dict()
    for name in sorted({*defaults, *family.other_values} - {*family.excluded_fields}):
        tried = (*family.other_values.get(name, ()), *list_other_values(name, defaults.get(name)))
        yield from ((name, value) for value in tried)


@dataclass(frozen=True)
class PublishedRun:
    """A small transformers model and its outputs."""

    model: Any
    results: Arrays

    def weights(self) -> Arrays:
        """Return all weights, tied ones under each name."""
        return {n: p.numpy() for n, p in self.model.state_dict().items()}

    def is_equal(self, other: "PublishedRun") -> bool:
        """Whether both weights and outputs are equal."""
        pairs = ((self.weights(), other.weights()), (self.results, other.results))
        return all(
            a.keys() == b.keys() and all(np.array_equal(x, b[n]) for n, x in a.items())
            for a, b in pairs
        )


def run_published(family: FieldCase, settings: Mapping[str, Any], directory: Path) -> PublishedRun:
    """Run the transformers model of a config.json with weights that depend on their names and
    shapes only.
    """
    (directory / "config.json").write_text(json.dumps(settings))
    config = getattr(transformers, family.config).from_pretrained(
        directory, attn_implementation="eager", experts_implementation="eager"
    )
    model = getattr(transformers, family.model)(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = np.random.default_rng(list(name.encode())).standard_normal(tuple(p.shape))
            values = (
                values / p[0].numel() ** 0.5
                if p.dim() > 1
                else 0.3 * values + name.endswith("weight")
            )
            p.copy_(torch.from_numpy(values))
        inputs = {n: torch.from_numpy(x.copy()) for n, x in family.inputs(settings).items()}
        # run a copy: some classes change their weights in the first run
        outputs = family.run(copy.deepcopy(model).double(), inputs)
    return PublishedRun(model, {n: x.double().numpy() for n, x in outputs.items()})


def evaluate_spec_outputs(
    family: FieldCase, settings: Mapping[str, Any], hf_model: Any, directory: Path
) -> Arrays:
    """Return the float64 outputs of the spec for the same config.json and the saved checkpoint."""
    hf_model.float().save_pretrained(directory / "saved")
    (directory / "saved" / "config.json").write_text(json.dumps(settings))
    spec = open_spec(family.spec, config=str(directory / "saved"))
    model = elaborate_model(spec.program, spec.config_options)
    context = create_context(spec.program)
    config = evaluate_and_check_config(context, spec.program, spec.config_options)
    rules = read_weight_rules(
        spec.program, LexicalScope(context=context, module=spec.program.module, config=config)
    )
    values = loading.bind_checkpoint(
        list_model_parameters(model.graph), rules, str(directory / "saved" / "model.safetensors")
    )
    weights = {
        name: read_parameter(values, values.get_tied_source(name) or name)
        for name in values.parameters
    }
    return specc_numpy.evaluate_graph(model.graph, family.inputs(settings), weights)


def has_close_outputs(actual: Arrays, expected: Arrays) -> bool:
    """Whether all outputs agree within the tolerance."""
    return all(
        actual[n].shape == x.shape
        and np.abs(actual[n] - x).max(initial=0) <= TOLERANCE * np.abs(x).max(initial=0)
        for n, x in expected.items()
    )


def check_every_field(family: FieldCase, directory: Path, max_share: float = 1 / 3) -> None:
    """Check that the spec follows or rejects every other value of every field.

    At most the share `most` of the values may be ones that transformers itself cannot use.
    """
    base = {"model_type": getattr(transformers, family.config).model_type, **family.tiny}
    baseline = run_published(family, base, directory)
    assert has_close_outputs(
        evaluate_spec_outputs(family, base, baseline.model, directory), baseline.results
    )
    baseline.model.double()
    outcome: Counter[str] = Counter()
    for name, value in iterate_field_changes(family):
        outcome[
            try_field_value(family, {**base, name: value}, baseline, directory)
            or f"{name}: {value}"
        ] += 1
    wrong = sorted(outcome.keys() - OUTCOMES)
    assert not wrong, f"passed over: {wrong}"
    assert outcome["obeyed"] >= 5, outcome
    assert outcome["breaks"] < outcome.total() * max_share, outcome


OUTCOMES = {"breaks", "the same", "no numbers", "refused", "obeyed"}
"""Possible outcomes of another value: transformers cannot use it (an error, or outputs that are not
finite); nothing changes; the spec rejects it; the spec follows it.
"""


def try_field_value(
    family: FieldCase, config: Mapping[str, Any], baseline: PublishedRun, directory: Path
) -> str:
    """Return one of `OUTCOMES`, or "" if the spec silently gives other outputs."""
    try:
        outputs = run_published(family, config, directory)
    except Exception:
        # transformers, torch and Python raise various errors for invalid values
        return "breaks"
    if outputs.is_equal(baseline):
        return "the same"
    if not all(np.isfinite(x).all() for x in outputs.results.values()):
        return "no numbers"
    try:
        found = evaluate_spec_outputs(family, config, outputs.model, directory)
    except SpeccError:
        return "refused"
    return "obeyed" if has_close_outputs(found, outputs.results) else ""
