"""Batch independence of the first built-in specs: they elaborate and run, and samples depend
neither on each other nor on padding.

Each spec is small and has random weights, including norms and biases. The reference result of a
sample alone equals its result in a padded batch and that of ONNX Runtime.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import (
    ElaboratedSpec,
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)
from support.padded_batches import (
    Arrays,
    Field,
    FixedValues,
    PaddingMask,
    Samples,
    Side,
    TokenIds,
    make_samples,
)
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS as IMAGES

from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc_numpy import evaluate_graph


@dataclass(frozen=True)
class Case:
    """A small spec. `results` maps each result to its padded axis."""

    spec: str
    sets: Mapping[str, Any]
    inputs: Mapping[str, Field]
    results: Mapping[str, str]
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sides: tuple[Side, ...] = ("right",)
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.spec} {self.variant}".strip()


IMAGE = {"d": 8, "heads": 2, "layers": 2, "hidden": 16, "image": 12, "patch": 4, "channels": 2}
PAIR = {
    "source": TokenIds("src", 17),
    "source_keep": PaddingMask("src"),
    "target": TokenIds("tgt", 17),
    "target_keep": PaddingMask("tgt"),
}
WORDS = {"ids": TokenIds("seq", 17), "keep": PaddingMask("seq")}
PAIRS = {"src": (5, 1, 3), "tgt": (2, 4, 3)}
BOTH: tuple[Side, ...] = ("left", "right")
SMALL = {
    "vocab": 17,
    "width": 16,
    "heads": 4,
    "hidden": 24,
    "encoder__layers": 2,
    "decoder__layers": 2,
}


def pair(variant: str, **sets: object) -> Case:
    return Case("encoder_decoder", {**SMALL, **sets}, PAIR, {"logits": "tgt"}, PAIRS, BOTH, variant)


CASES = [
    Case(
        "feedforward",
        {"inputs": 5, "hidden": "[7, 6]", "outputs": 3},
        {"x": FixedValues((5,))},
        {"y": ""},
    ),
    Case(
        "transformer",
        {"vocab": 17, "d": 16, "hidden": 24, "heads": 2, "layers": 2, "pad": 0, "bos": 1, "eos": 2},
        PAIR,
        {"logits": "tgt"},
        PAIRS,
        BOTH,
    ),
    pair("post"),
    pair("pre", norm="pre", positions="learned(size=9)", act="gelu"),
    pair(
        "sandwich", norm="sandwich", normalize="rms_norm(eps=1e-6)", tied="false", target_vocab=19
    ),
    pair(
        "grouped rotary",
        norm="pre",
        kv_heads=2,
        positions="none",
        rope="rope(theta=10000.0)",
        pairs="half",
    ),
    pair(
        "scores",
        kv_heads=2,
        encoder__attention__score="cosine",
        decoder__attention__score="additive(6)",
    ),
    pair("more scores", decoder__attention__score="dot", decoder__cross__score="general"),
    pair(
        "windows",
        decoder__attention__mask="causal & window(2)",
        encoder__attention__mask="window(2, ahead=1)",
    ),
    Case(
        "bert",
        {"vocab": 17, "context": 9, "d": 16, "heads": 2, "layers": 2, "hidden": 24},
        {
            "input_ids": TokenIds("seq", 17),
            "attention_mask": PaddingMask("seq"),
            "token_type_ids": TokenIds("seq", 2),
        },
        {"prediction_logits": "seq", "seq_relationship_logits": ""},
        {"seq": (6, 1, 3)},
    ),
    Case(
        "gpt2",
        {"vocab": 17, "context": 9, "d": 16, "heads": 2, "layers": 2, "stop": [0]},
        {"input_ids": TokenIds("seq", 17), "attention_mask": PaddingMask("seq")},
        {"logits": "seq"},
        {"seq": (6, 1, 3)},
        BOTH,
    ),
    Case(
        "elman",
        {"inputs": 4, "hidden": 6, "outputs": 3},
        {"x": FixedValues((5, 4))},
        {"y": "", "last": ""},
    ),
    Case(
        "jordan",
        {"inputs": 4, "hidden": 6, "outputs": 3, "decay": 0.5},
        {"x": FixedValues((5, 4))},
        {"y": ""},
    ),
    Case(
        "lstm_lm",
        {"vocab": 17, "width": 6, "tied": True},
        WORDS,
        {"logits": "seq"},
        {"seq": (6, 1, 3)},
        BOTH,
    ),
    Case(
        "gru_lm",
        {"vocab": 17, "width": 6, "reset": "before", "update": "new"},
        WORDS,
        {"logits": "seq"},
        {"seq": (6, 1, 3)},
        BOTH,
    ),
    Case(
        "bilstm_tagger",
        {"vocab": 17, "tags": 5, "width": 6, "hidden": 7, "layers": 2},
        WORDS,
        {"logits": "seq", "best": "seq"},
        {"seq": (6, 1, 3)},
        BOTH,
    ),
    Case(
        "seq2seq",
        {"vocab": 17, "target_vocab": 19, "width": 6, "hidden": 7, "layers": 2},
        PAIR,
        {"logits": "tgt"},
        PAIRS,
        BOTH,
    ),
    Case(
        "autoencoder",
        {"vocab": 17, "target_vocab": 17, "width": 6, "hidden": 7},
        PAIR,
        {"logits": "tgt"},
        PAIRS,
        BOTH,
    ),
    Case(
        "vit", {**IMAGE, "classes": 5}, {"pixel_values": FixedValues((2, 12, 12))}, {"logits": ""}
    ),
    Case(
        "convnext", IMAGES["convnext"], {"pixel_values": FixedValues((2, 12, 12))}, {"logits": ""}
    ),
    Case("swin", IMAGES["swin"], {"pixel_values": FixedValues((2, 12, 12))}, {"logits": ""}),
    Case(
        "vit_mae",
        {
            **IMAGE,
            "decoder_d": 12,
            "decoder_layers": 1,
            "decoder_heads": 3,
            "decoder_hidden": 20,
            "num_visible": 4,
        },
        {"pixel_values": FixedValues((2, 12, 12)), "noise": FixedValues((9,), uniform=True)},
        {"patches": "", "reconstruction": "", "masked": ""},
    ),
    Case(
        "vit_segmenter",
        {**IMAGE, "classes": 5},
        {"pixel_values": FixedValues((2, 12, 12))},
        {"logits": "", "class_map": ""},
    ),
]

every = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def ready(n: int) -> tuple[ElaboratedSpec, Arrays, Samples]:
    """Return the spec of a case with weights, and three samples."""
    case = CASES[n]
    spec = elaborate_with_config(case.spec, **case.sets)
    return spec, sample_spec_weights(spec), make_samples(case.inputs, case.lengths)


@pytest.mark.parity
@pytest.mark.parametrize("name", sample_sweep(sorted({c.spec for c in CASES})))
def test_specs_pass_the_symbolic_check(name: str) -> None:
    """The symbolic check needs no config values."""
    found = check_spec(open_spec(name))
    assert found.trials
    assert not found.model or found.model.graph.outputs


@every
def test_results_have_the_declared_types(case: Case) -> None:
    spec, weights, given = ready(CASES.index(case))
    assert list(spec.model.graph.outputs) == list(case.results)
    for name, result in run_reference(spec, weights, given.make_batch()).items():
        assert result.shape[0] == 3, name
        assert len(result.shape) == len(spec.model.graph.outputs[name].type.shape), name


@every
def test_a_sample_in_a_padded_batch_equals_itself_alone(case: Case) -> None:
    """PAD and BATCH: for any padding values, any other samples, and every supported padding side."""
    spec, weights, given = ready(CASES.index(case))
    alone = [run_reference(spec, weights, given.get_sample(row)) for row in range(3)]
    for side in case.sides:
        together = run_reference(spec, weights, given.make_batch(side, extra=2))
        for row, mine in enumerate(alone):
            _rows_agree(case, given, mine, together, row, side, 1e-9)


@every
def test_onnx_runtime_agrees_with_the_reference(case: Case) -> None:
    spec, weights, given = ready(CASES.index(case))
    model = OrtModel(spec, weights)
    alone = [run_reference(spec, weights, given.get_sample(row)) for row in range(3)]
    for row, wanted in enumerate(alone):
        found = model.run(given.get_sample(row))
        for name in wanted:
            assert_arrays_close(found[name], wanted[name], f"{name} of sample {row} alone")
    for side in case.sides:
        together = model.run(given.make_batch(side, extra=2))
        for row, wanted in enumerate(alone):
            _rows_agree(case, given, wanted, together, row, side, 1e-5)


@pytest.mark.parametrize(
    ("name", "ids", "wanted"),
    [
        (
            "bert",
            {"input_ids": [[5, 6, 0]]},
            {"attention_mask": [[True, True, False]], "token_type_ids": [[0, 0, 0]]},
        ),
        ("gpt2", {"input_ids": [[5, 0, 6]]}, {"attention_mask": [[True, True, True]]}),
        (
            "transformer",
            {"source": [[5, 6, 0]], "target": [[1, 0]]},
            {"source_keep": [[True, True, False]], "target_keep": [[True, False]]},
        ),
    ],
)
def test_missing_inputs_have_their_defaults(
    name: str, ids: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """The runner fills in defaults of missing inputs."""
    graph = elaborate_with_config(name, layers=1).model.defaults
    assert graph is not None
    given = {k: np.array(v) for k, v in ids.items() if k in graph.inputs}
    assert {k: v.tolist() for k, v in evaluate_graph(graph, given, {}).items()} == wanted


def _rows_agree(
    case: Case, given: Samples, alone: Arrays, together: Arrays, row: int, side: Side, within: float
) -> None:
    """Return True if valid positions of a batch element equal those of the sample alone."""
    for name, dim in case.results.items():
        mine, found = alone[name][0], together[name][row]
        if dim:
            found = found[given.get_positions(row, dim, found.shape[0], side)]
        assert_arrays_close(found, mine, f"{name} of sample {row}, padded on the {side}", within)
