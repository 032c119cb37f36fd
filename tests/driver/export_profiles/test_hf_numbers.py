"""Graphs of the profile `hf`, called as Optimum calls them, compute the results of the spec, also
for padded batches."""

import numpy as np
import pytest
from support.elaborated_specs import assert_arrays_close, run_reference
from support.profiled_models import (
    ProfiledSessions,
    open_profiled_model,
    run_decoder_only,
    run_encoder_decoder,
)

DECODERS: dict[str, dict[str, object]] = {
    "gpt2": {"layers": 2, "d": 16, "heads": 4, "vocab": 29, "context": 32},
    "llama": {"layers": 2, "d": 16, "heads": 4, "kv_heads": 2, "hidden": 24, "vocab": 29},
    "bloom": {"layers": 2, "d": 16, "heads": 4, "vocab": 29},
}
TRANSLATORS: dict[str, dict[str, object]] = {
    "transformer": {"layers": 2, "d": 16, "heads": 4, "hidden": 24, "vocab": 29},
    "encoder_decoder": {
        "width": 16, "heads": 4, "kv_heads": 2, "hidden": 24, "vocab": 29, "norm": "pre",
        "encoder__layers": 1, "decoder__layers": 3,
    },
    "t5": {"d": 16, "heads": 4, "head_dim": 4, "hidden": 24, "vocab": 29, "encoder_layers": 2, "decoder_layers": 3},
}  # fmt: skip
PIECES = ([6, 1, 1, 1], [1] * 9, [4, 5])
"""A prompt and tokens one by one, all one by one, and several at a time."""


@pytest.mark.parametrize("name", DECODERS)
def test_decoder_chunks_equal_the_full_forward_pass(name: str) -> None:
    model = open_profiled_model("hf", name, **DECODERS[name])
    ids = np.random.default_rng(1).integers(1, 29, (3, 9))
    mask = np.arange(9) >= np.array([[0], [2], [5]])
    want = run_reference(model.spec, model.weights, {"input_ids": ids, "attention_mask": mask})[
        "logits"
    ]
    sessions = ProfiledSessions(model)
    for pieces in PIECES:
        for run, within in ((model.run_reference, 1e-12), (sessions.run, 1e-5)):
            got = np.concatenate(
                list(run_decoder_only(run, model.profiled.graphs["model"], ids, mask, pieces)),
                axis=1,
            )
            assert_arrays_close(got[mask], want[mask], f"{name} in {pieces}", within)


@pytest.mark.parametrize("name", TRANSLATORS)
def test_encoder_decoder_chunks_equal_the_full_forward_pass(name: str) -> None:
    model = open_profiled_model("hf", name, **TRANSLATORS[name])
    rng = np.random.default_rng(1)
    source, target = rng.integers(3, 29, (3, 5)), rng.integers(3, 29, (3, 9))
    kept = np.arange(5) < np.array([[5], [3], [1]])
    inputs = dict(
        zip(
            model.spec.model.graph.inputs,
            (source, kept, target, np.ones((3, 9), bool)),
            strict=True,
        )
    )
    want = run_reference(model.spec, model.weights, inputs)["logits"]
    sessions = ProfiledSessions(model)
    for pieces in PIECES:
        for run, within in ((model.run_reference, 1e-12), (sessions.run, 1e-5)):
            made = run_encoder_decoder(run, model.profiled.graphs, source, kept, target, pieces)
            assert_arrays_close(
                np.concatenate(list(made), axis=1), want, f"{name} in {pieces}", within
            )


def test_only_decoder_model_projects_the_encoder_output() -> None:
    graphs = open_profiled_model("hf", "transformer", **TRANSLATORS["transformer"]).profiled.graphs
    linear = {
        name: sum(node.op.name == "linear" for node, _ in graph.nodes)
        for name, graph in graphs.items()
    }
    layers = 2
    assert linear["encoder_model"] == 6 * layers
    assert linear["decoder_with_past_model"] == 8 * layers + 1
    assert linear["decoder_model"] == 10 * layers + 1
    whole = open_profiled_model("hf", "transformer", **TRANSLATORS["transformer"]).spec.model.graph
    assert (
        sum(n.op.name == "linear" for n, _ in whole.nodes)
        == linear["encoder_model"] + linear["decoder_model"]
    )
