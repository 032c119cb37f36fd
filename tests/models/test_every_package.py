"""Packages of every built-in generative spec in ONNX Runtime generate the tokens of the float64
reference.

Greedy tokens are compared with full passes of the reference if its two largest logits differ
enough; a sequence in a padded batch equals itself alone; a second run gives equal tokens.
"""

from typing import Any

import numpy as np
import pytest
from support.mechanism_sample import sample_mechanisms
from support.small_configs import FAMILIES, LONG_AXES, SMALL_CONFIGS, list_specs_with
from support.verification_lines import list_model_lines

import specc
import specc.runtime.model_package
import specc_numpy
from specc.api import Model
from specc.ir.graph import Graph
from specc.runtime.generator import Generator
from specc.runtime.random_inputs import make_random_inputs

GENERATING = list_specs_with("generate")
BESIDE = [n for n in GENERATING if n in FAMILIES][1::2]
"""Every other family waits for the long sweep: the parity suite has all of them write
as the published classes do.
"""
SIMILAR = {
    "gemma3",  # gemma3n_text
    "llama",  # llama4_text, deepseek_v2, ernie4_5
    "llava_next",  # qwen3_vl
    "mbart",  # t5, transformer
    "numbers",  # transformer
    "qwen2_vl",  # qwen3_vl
    "qwen3_5_text",  # compiles longest
    "sparsemax_lm",  # bloom
}
"""Specs of the parity suite; the default suite has another one that generates in the same way."""
TRAINED = {"dates"}
TOKENS = 7
APART = 1e-4


@pytest.fixture(
    scope="module",
    params=[
        *sample_mechanisms([n for n in GENERATING if n not in BESIDE], costly=SIMILAR),
        *(pytest.param(n, marks=pytest.mark.slow) for n in BESIDE),
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp(request.param) / "model"
    init = None if request.param in TRAINED else 3
    specc.compile(
        request.param,
        path,
        init=init,
        set=SMALL_CONFIGS[request.param],
        graphs=["score", "encode", "step"],
    )
    return specc.load(path)


def writer(model: Model) -> Generator:
    assert model.generator
    return model.generator


def make_inputs(model: Model, rows: int, seed: int = 0) -> dict[str, Any]:
    """Return inputs other than the tokens, and a prompt if the spec has no start token or no other
    required input.
    """
    graph, grows = model.manifest.graph, writer(model).input_signature.sequence_input
    rng = np.random.default_rng(seed)
    length = str(graph.inputs[grows].type.shape[1])
    symbols = {s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()} - set(
        graph.length_equations
    )
    sizes = {s: LONG_AXES.get(s, 4) for s in symbols} | {
        str(graph.inputs[grows].type.shape[0]): rows,
        length: 3,
    }
    made = make_random_inputs(graph, sizes, rng)
    along = [n for n, v in graph.inputs.items() if length in map(str, v.type.shape)]
    settings = writer(model).generation.settings
    others = {n: v for n, v in made.items() if n not in along}
    return (
        others if others and settings.get("start") is not None else {**others, grows: made[grows]}
    )


def generate_greedy(
    model: Model, inputs: dict[str, Any]
) -> tuple[list[list[int]], list[list[float]]]:
    """Return the tokens of full passes of the reference, and the logit gap of each token."""
    graph, grows = model.manifest.graph, writer(model).input_signature.sequence_input
    weights = model.weights()
    start = writer(model).generation.settings.get("start")
    rows = len(next(iter(inputs.values())))
    codebooks = [writer(model).num_codebooks] if writer(model).num_codebooks else []
    tokens = inputs.get(grows, np.full((rows, 1, *codebooks), start))
    length = tokens.shape[1]
    margins = []
    given = model.selected_model.prepare_inputs({**inputs, grows: tokens})
    exist = {
        n: given[n]
        for n, f in graph.input_facts.items()
        if f.padding_side
        and str(graph.inputs[grows].type.shape[1]) in map(str, graph.inputs[n].type.shape)
    }
    for _ in range(TOKENS):  # generated tokens are valid by the default
        whole = model.selected_model.prepare_inputs({**inputs, grows: tokens})
        kept = {n: whole[n].copy() for n in exist}
        for n, v in exist.items():
            kept[n][:, :length] = v
        prepared = model.selected_model.prepare_inputs({**inputs, **kept, grows: tokens})
        logits = specc_numpy.evaluate_graph(graph, prepared, weights)[
            writer(model).generation.logits_output
        ][:, -1]
        best = np.sort(logits, axis=-1)
        gaps = (best[..., -1] - best[..., -2]) / (best[..., -1] - best[..., 0])
        margins.append(gaps.reshape(rows, -1).min(axis=1))
        tokens = np.concatenate([tokens, logits.argmax(-1)[:, None]], axis=1)
    return tokens[:, length:].tolist(), np.array(margins).T.tolist()


@pytest.mark.parametrize("prompt", ["a prompt", "none"])
def test_tokens_equal_those_of_the_reference(model: Model, prompt: str) -> None:
    inputs, grows = make_inputs(model, rows=3), writer(model).input_signature.sequence_input
    if prompt == "none":
        # Most specs have no prefix, or a start token only.
        if not writer(model).allows_empty_prompt:
            return
        inputs[grows] = inputs[grows][:, :0]
    want, margins = generate_greedy(model, inputs)
    options: dict[str, Any] = {"max_tokens": TOKENS, "strategy": "greedy", "stop": []}
    made = model.generate(**inputs, **options, delay_pattern=[]).results()
    for row, (expected, margin) in enumerate(zip(want, margins, strict=True)):
        certain = next((n for n, m in enumerate(margin) if m < APART), TOKENS)
        steps = np.reshape(made[row][0].tokens, np.shape(expected))
        assert steps[:certain].tolist() == expected[:certain], row


def test_a_second_run_gives_equal_tokens(model: Model) -> None:
    inputs = make_inputs(model, rows=2)
    first = model.generate(**inputs, max_tokens=TOKENS).results()
    model.generate(**make_inputs(model, rows=1, seed=9), max_tokens=3).results()
    assert model.generate(**inputs, max_tokens=TOKENS).results() == first


def test_prompts_of_different_lengths_generate_as_each_alone(model: Model) -> None:
    grows = writer(model).input_signature.sequence_input
    inputs = make_inputs(model, rows=3)
    if grows not in inputs or not _keeps(model.manifest.graph, grows):
        return
    empty = writer(model).allows_empty_prompt
    prompts: list[list[Any]] = [[1, 2, 3, 1], [] if empty else [2], [3, 2]]
    if codebooks := writer(model).num_codebooks:
        prompts = [[[token] * codebooks for token in prompt] for prompt in prompts]
    beside = {n: v for n, v in inputs.items() if n != grows}

    def written(rows: slice) -> list[Any]:
        here = {n: v[rows] for n, v in beside.items()} | {grows: prompts[rows]}
        return list(model.generate(**here, max_tokens=TOKENS).results())

    together = written(slice(3))
    alone = [written(slice(row, row + 1))[0] for row in range(3)]
    assert [row[0].tokens for row in together] == [row[0].tokens for row in alone]


def test_encoder_and_step_agree_with_the_reference(model: Model) -> None:
    package = specc.runtime.model_package.open_package(model.path)
    for role in ("encode", "step"):
        if role in package.graph_names:
            assert list(list_model_lines(package.load_graph(role), rounds=2))


def _keeps(graph: Graph, grows: str) -> bool:
    return any(
        f.padding_side and graph.inputs[n].type.shape == graph.inputs[grows].type.shape[:2]
        for n, f in graph.input_facts.items()
    )
