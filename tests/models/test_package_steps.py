"""Properties of compiled packages: for any sequence of steps the logits equal those of a full pass
(padding, batches, reuse).

Random plans take 1, 2 or 5 tokens per step and reorder the batch, also to another size, in between.
The full pass is the package's own `score` graph in the same runtime.
"""

from functools import cache
from itertools import product
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.parameter_sweeps import sample_sweep
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.runtime.decoder_sessions import MIN_BUFFER_POSITIONS, FullForwardSession, KVCacheSession
from specc.runtime.generator import Generator, make_generator

TARGETS = ("ort-cpu", "onnx")
WINDOWED = {
    "decoder.attention.mask": "causal & window(3)",
    "encoder.attention.mask": "window(2, ahead=1)",
}
SPECS: dict[str, dict[str, object]] = {
    "gpt2": SMALL_CONFIGS["gpt2"] | {"layers": 1, "context": 2 * MIN_BUFFER_POSITIONS},
    "small_translator": SMALL_CONFIGS["small_translator"] | WINDOWED,
    "conv_lm": SMALL_CONFIGS["conv_lm"],
    "rwkv": SMALL_CONFIGS["rwkv"],
    "lstm_lm": SMALL_CONFIGS["lstm_lm"],
    "mamba": SMALL_CONFIGS["mamba"],
}
CASES = [pytest.param(name, target, id=f"{name}-{target}") for name in SPECS for target in TARGETS]
PLANNED = sample_sweep(
    [(name, TARGETS[(n + k) % 2]) for n, name in enumerate(SPECS) for k in range(2)]
)
VOCAB = 17
WITHIN = 1e-5
Ids = NDArray[np.int64]
Rows = list[list[int]]


@cache
def package(name: str, target: str) -> Model:
    """Return a spec with random weights as a package that includes the full graph."""
    path = f"{mkdtemp()}/{name}"
    specc.compile(
        name, path, init=3, set=SPECS[name], target=target, graphs=["score", "encode", "step"]
    )
    return specc.load(path, threads=1)


def writer(model: Model) -> Generator:
    assert model.generator
    return model.generator


def make_inputs(model: Model, prompts: Rows, sources: Rows) -> dict[str, Any]:
    """Return inputs for prompts of any lengths, padded on the left, and for sources, padded on the
    right.
    """
    inputs: dict[str, Any] = {writer(model).input_signature.sequence_input: prompts}
    if "source" in model.manifest.graph.inputs:
        longest = max(map(len, sources))
        inputs["source"] = [row + [0] * (longest - len(row)) for row in sources]
    return dict(model.generate(**inputs).prepared_inputs)


def open_decoder_sessions(
    model: Model, prompts: Rows, sources: Rows
) -> tuple[KVCacheSession, FullForwardSession, Ids]:
    """Return a decoder session with KV cache and one with full passes, and the initial inputs of both."""
    inputs, whole = (make_inputs(model, prompts, sources), make_generator(model.selected_model))
    assert whole
    steps, full = writer(model).create_decoder_session(inputs), whole.create_decoder_session(inputs)
    assert isinstance(steps, KVCacheSession)
    assert isinstance(full, FullForwardSession)
    return steps, full, inputs[writer(model).input_signature.sequence_input]


def assert_same(got: NDArray[Any], want: NDArray[Any], what: object) -> None:
    assert got.shape == want.shape, what
    assert np.abs(got - want).max() <= WITHIN * np.abs(want).max(), what


token = st.integers(3, VOCAB - 1)
text = st.lists(token, min_size=1, max_size=5)


@st.composite
def sample_plans(draw: st.DrawFn) -> tuple[Rows, Rows, list[Any]]:
    """Yield prompts, sources, and steps: tokens i64[rows, n], or a new order of the batch."""
    rows = draw(st.integers(1, 3))
    prompts = draw(st.lists(text, min_size=rows, max_size=rows))
    sources = draw(st.lists(text, min_size=rows, max_size=rows))
    plan: list[Any] = []
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            order = draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=4))
            plan.append(("reorder", np.array(order)))
            rows = len(order)
        count = draw(st.sampled_from([1, 2, 5]))
        fed = draw(
            st.lists(st.lists(token, min_size=count, max_size=count), min_size=rows, max_size=rows)
        )
        plan.append(("step", np.array(fed)))
    return prompts, sources, plan


@pytest.mark.parametrize(("name", "target"), PLANNED)
@settings(max_examples=7, deadline=None, derandomize=True, database=None)
@given(plan=sample_plans(), chunk=st.integers(0, 3))
def test_any_steps_give_the_logits_of_full_passes(
    name: str, target: str, plan: tuple[Rows, Rows, list[Any]], chunk: int
) -> None:
    prompts, sources, rest = plan
    steps, full, first = open_decoder_sessions(package(name, target), prompts, sources)
    steps.chunk_size = chunk
    for what, given_ in [("step", first), *rest]:
        if what == "reorder":
            steps.reorder(given_)
            full.reorder(given_)
        else:
            assert_same(steps.step(given_), full.step(given_), (what, given_.shape))


@pytest.mark.parametrize("prompts", [[range(3, 16)], [range(3, 16), range(5, 9), [4]]])
@pytest.mark.parametrize(("name", "target"), sample_sweep([*CASES], stride=5))
def test_a_prompt_in_chunks_gives_the_logits_of_a_full_pass(
    name: str, target: str, prompts: list[range | list[int]]
) -> None:
    """13 tokens with a shorter last chunk; a batch is padded."""
    rows = [*map(list, prompts)]
    steps, full, first = open_decoder_sessions(package(name, target), rows, [[5, 4, 3]] * len(rows))
    steps.chunk_size = 4
    for tokens in (first, np.full((len(rows), 1), 7), np.full((len(rows), 6), 8)):
        assert_same(steps.step(tokens), full.step(tokens), tokens.shape)


def test_generation_does_not_depend_on_the_prefill_chunk_size() -> None:
    path = package("gpt2", "ort-cpu").path
    prompt = {"input_ids": [[*range(3, 16)]], "max_tokens": 5}
    wanted = specc.load(path, threads=1).generate(**prompt).results()[0][0].tokens
    for size in (0, 1, 4, 13):
        model = specc.load(path, threads=1, prefill_chunk_size=size)
        assert (
            writer(model)
            .create_decoder_session(dict(model.generate(**prompt).prepared_inputs))
            .chunk_size
            == size
        )
        assert model.generate(**prompt).results()[0][0].tokens == wanted
    for wrong in (-1, True, "4", None):
        with pytest.raises(specc.SpeccError, match="E0820"):
            specc.load(path, prefill_chunk_size=wrong)


@pytest.mark.parametrize(("name", "target"), sample_sweep([*CASES]))
@settings(max_examples=4, deadline=None, derandomize=True, database=None)
@given(prompts=st.lists(text, min_size=2, max_size=3), seed=st.integers(0, 99))
def test_a_batch_element_equals_itself_alone(
    name: str, target: str, prompts: Rows, seed: int
) -> None:
    """In a batch, after padding, and with another generation in between."""
    model, rng = package(name, target), np.random.default_rng(seed)
    sources = [rng.integers(3, VOCAB, rng.integers(1, 6)).tolist() for _ in prompts]
    fed = rng.integers(3, VOCAB, (3, len(prompts), 1))
    together, _, first = open_decoder_sessions(model, prompts, sources)
    alone = [open_decoder_sessions(model, [p], [s]) for p, s in zip(prompts, sources, strict=True)]
    made = [together.step(first), *(together.step(tokens) for tokens in fed)]
    each = [[steps.step(own)] for steps, _, own in alone]
    for tokens in fed:
        for row, (steps, _, _) in enumerate(alone):  # interleaved
            each[row].append(steps.step(tokens[row : row + 1]))
    for step, batch in enumerate(made):
        for row, one in enumerate(each):
            assert_same(batch[row : row + 1], one[step], (row, step))


@pytest.mark.parametrize(
    ("name", "target", "rows"), sample_sweep(list(product(SPECS, TARGETS, [1, 2])))
)
def test_steps_across_the_end_of_the_first_buffer(name: str, target: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    prompts = rng.integers(3, VOCAB, (rows, MIN_BUFFER_POSITIONS - 4)).tolist()
    steps, full, first = open_decoder_sessions(package(name, target), prompts, [[5, 4, 3]] * rows)
    assert_same(steps.step(first), full.step(first), "the prompt")
    for count in (2, 1, 5, 1, 2):
        tokens = rng.integers(3, VOCAB, (rows, count))
        assert_same(steps.step(tokens), full.step(tokens), count)
        order = rng.permutation(rows)
        steps.reorder(order)
        full.reorder(order)
