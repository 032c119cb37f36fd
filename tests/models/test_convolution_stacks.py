"""Strided convolution stacks of audio models: a sequence in a padded batch gives its results alone;
too short inputs are rejected; pools generate like convolutions.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from support.decode_steps import run_steps
from support.derived_graphs import derive_encoder_and_step
from support.elaborated_specs import (
    ElaboratedSpec,
    OrtModel,
    assert_arrays_close,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)

import specc
from specc.analysis.length_limits import find_min_lengths
from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import SpeccError
from specc.runtime.random_inputs import choose_dim_sizes

Array = NDArray[Any]
WAV2VEC = [(10, 5, 0), (3, 2, 0), (3, 2, 0), (3, 2, 0), (3, 2, 0), (2, 2, 0), (2, 2, 0)]
"""Kernel, stride and padding of wav2vec 2.0's feature encoder (arXiv:2006.11477)."""

STACKS = {
    "wav2vec2": WAV2VEC,
    "whisper": [(3, 1, 1), (3, 2, 1)],
    "odd": [(4, 3, 2), (5, 2, 1), (2, 2, 0)],
    "wide": [(3, 2, 3), (1, 2, 1), (4, 1, 2)],
}


def make_stack(name: str, side: str = "right", masked: bool = True) -> str:
    """Return consecutive convolutions, then attention and a masked mean."""
    lines = ["  k0 = there", "  x = sound"]
    for n, (kernel, stride, pad) in enumerate(STACKS[name]):
        options = f"kernel={kernel}, stride={stride}, padding={pad}"
        if masked:
            call = f"x, k{n + 1} = conv(x, out=3, {options}, keep=k{n}) @ c{n}"
        else:
            call = f"x = conv(x, out=3, {options}) @ c{n}"
            lines.append(f"  k{n + 1} = conv_keep(k{n}, {options})")
        lines += [f"  {call}", "  x = gelu(x)"]
    body = "\n".join(lines)
    last = f"k{len(STACKS[name])}"
    return (
        "specc 1\nmodel stack\ndims batch, n\n"
        f"graph hear(sound: float[batch, n, 2], there: keep[batch, n] {side})\n"
        f"  -> (rows: float[batch, {compute_length(name)}, 3], kept: bool[batch, "
        f"{compute_length(name)}], heard: float[batch, 3]) {{\n"
        f"{body}\n  y = x + (attention(x, heads=1, mask=visible({last})) @ self)\n"
        f"  return x, {last}, masked_mean_pool(y, {last})\n}}\n"
    )


def compute_length(name: str) -> str:
    """Return the output length for `n` positions, convolution by convolution."""
    text = "n"
    for kernel, stride, pad in STACKS[name]:
        text = f"(({text}) + {2 * pad} - {kernel}) // {stride} + 1"
    return text


def made(directory: Path, text: str) -> ElaboratedSpec:
    path = directory / "stack.specc"
    path.write_text(text)
    return elaborate_with_config(str(path))


def make_batch(rng: np.random.Generator, lengths: list[int], width: int) -> dict[str, Array]:
    """Return sequences of these lengths, padded with noise."""
    sound = rng.standard_normal((len(lengths), width, 2)).astype(np.float32)
    there = np.arange(width) < np.array(lengths)[:, None]
    return {"sound": sound, "there": there}


def alone(given: dict[str, Array], row: int) -> dict[str, Array]:
    rows = int(given["there"][row].sum())
    return {name: x[row : row + 1, :rows] for name, x in given.items()}


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("wav2vec2", [400, 401, 719, 720, 1039, 1040, 1333]),
        ("whisper", list(range(1, 12))),
        ("odd", list(range(12, 40))),
        ("wide", list(range(1, 16))),
    ],
)
def test_a_sequence_in_a_padded_batch_equals_itself_alone(
    name: str, lengths: list[int], tmp_path: Path
) -> None:
    spec = made(tmp_path, make_stack(name))
    assert check_padding(spec.model.graph) == []
    weights = sample_spec_weights(spec)
    given = make_batch(np.random.default_rng(2), lengths, max(lengths) + 5)
    by = run_reference(spec, weights, given)
    session = OrtModel(spec, weights)
    found = session.run(given)
    for row, length in enumerate(lengths):
        one = run_reference(spec, weights, alone(given, row))
        there = one["rows"].shape[1]
        assert by["kept"][row].sum() == there, length
        assert by["kept"][row, :there].all(), length
        for what in ("rows", "heard"):
            upto = slice(there) if what == "rows" else slice(None)
            np.testing.assert_allclose(by[what][row, upto], one[what][0], atol=1e-12)
            assert_arrays_close(found[what][row, upto], one[what][0], f"{what} of {length}")


def test_unmasked_padding_has_a_warning_and_an_effect(tmp_path: Path) -> None:
    """Whisper has no padding mask: a warning, and another result in a batch."""
    spec = made(tmp_path, make_stack("whisper", masked=False))
    assert {d.code for d in check_padding(spec.model.graph)} == {"W0601"}
    weights = sample_spec_weights(spec)
    given = make_batch(np.random.default_rng(2), [5, 9], 9)
    by = run_reference(spec, weights, given)["heard"][0]
    one = run_reference(spec, weights, alone(given, 0))["heard"][0]
    assert np.abs(by - one).max() > 1e-3


@pytest.mark.parametrize("side", ["left", ""])
def test_strides_with_left_padding_have_a_warning(side: str, tmp_path: Path) -> None:
    (found,) = check_padding(made(tmp_path, make_stack("whisper", side)).model.graph)[:1]
    assert "the stride of `conv`" in found.title


@pytest.mark.parametrize("rows", [0, 1, 399])
def test_an_input_shorter_than_the_window_is_refused(rows: int, tmp_path: Path) -> None:
    spec = made(tmp_path, make_stack("wav2vec2"))
    weights = sample_spec_weights(spec)
    given = make_batch(np.random.default_rng(2), [rows], rows)
    with pytest.raises(SpeccError) as refused:
        run_reference(spec, weights, given)
    assert [d.code for d in refused.value.diagnostics] == ["E0912"]
    with pytest.raises((Fail, InvalidArgument)):
        OrtModel(spec, weights).run(given)


@pytest.mark.parametrize(
    ("name", "least"), [("wav2vec2", {"n": 400}), ("whisper", {}), ("odd", {"n": 12})]
)
def test_the_model_declares_its_minimum_length(
    name: str, least: dict[str, int], tmp_path: Path
) -> None:
    """If empty inputs give empty results, there is no minimum."""
    assert find_min_lengths(made(tmp_path, make_stack(name)).model.graph) == least


@pytest.mark.parametrize("loop", ["", "scan step in 2 carry x {"])
def test_captures_of_a_loop_have_a_minimum_length(loop: str, tmp_path: Path) -> None:
    inside = f"{loop}\n    x = x + insert(sum(x[:, 0:3], axis=1), axis=1)\n"
    text = (
        "specc 1\nmodel m\n\ndims batch, n\n\n"
        "graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {\n"
        f"{inside}{'}' if loop else ''}\n  return x\n}}\n"
    )
    assert find_min_lengths(made(tmp_path, text).model.graph) == {"n": 3}


def test_verified_lengths_give_several_output_positions(tmp_path: Path) -> None:
    """A single output position would show neither order nor padding."""
    graph = made(tmp_path, make_stack("wav2vec2")).model.graph
    tried = [choose_dim_sizes(graph, turn)["n"] for turn in range(3)]
    assert tried[0] == 400
    assert [(n - 400) // 320 + 1 for n in tried[1:]] > [1, 1]


@pytest.mark.parametrize("name", ["whisper", "wide"])
def test_empty_batches_and_empty_sequences_run(name: str, tmp_path: Path) -> None:
    spec = made(tmp_path, make_stack(name))
    weights = sample_spec_weights(spec)
    session = OrtModel(spec, weights)
    for lengths, width in (([], 7), ([0, 0], 0)):
        given = make_batch(np.random.default_rng(2), list(lengths), width)
        wanted = run_reference(spec, weights, given)
        for what, found in session.run(given).items():
            assert found.shape == wanted[what].shape
            np.testing.assert_allclose(found, wanted[what], atol=1e-6)


def test_left_padding_must_be_a_multiple_of_the_strides(tmp_path: Path) -> None:
    """Three convolutions with strides 3, 2 and 2 reduce 12 positions to one."""
    path = tmp_path / "stack.specc"
    path.write_text(make_stack("odd"))
    specc.compile(path, tmp_path / "stack.onnx", init=0)
    model = specc.load(tmp_path / "stack.onnx", threads=1)
    sound = np.random.default_rng(1).standard_normal((1, 54, 2)).astype(np.float32)
    there = np.ones((1, 54), bool)
    for before in range(25):
        there[:, :before] = False
        if before % 12:
            with pytest.raises(SpeccError, match="E0325"):
                model.run(sound=sound, there=there)
            continue
        found = model.run(sound=sound, there=there)["heard"]
        alone = model.run(sound=sound[:, before:], there=there[:, before:])["heard"]
        assert_arrays_close(found, alone, f"{before} in front")


WRITER = """specc 1
model writer
dims batch, n >= 1

graph g(ids: int[batch, n]) -> (logits: float[batch, n, 7]) {
  x = embedding(ids, size=7, dim=6) @ words
  x = x + (conv(x, out=6, kernel=3, dilation=2, groups=3, padding=causal) @ c)
  x = max_pool(x, kernel=3, stride=1, padding=causal)
  x = x + average_pool(x, kernel=4, stride=1, padding=[3, 0], count_include_pad=COUNTED)
  return linear(x, out=7) @ head
}

generate text of ids from logits { start = 0  stop = 1 }
"""


@pytest.mark.parametrize("counted", ["true", "false"])
def test_pools_generate_like_convolutions(counted: str, tmp_path: Path) -> None:
    spec = made(tmp_path, WRITER.replace("COUNTED", counted))
    graph, weights = spec.model.graph, sample_spec_weights(spec)
    ids = np.random.default_rng(4).integers(0, 7, (2, 9))
    whole = run_reference(spec, weights, {"ids": ids})["logits"]
    derived_graphs = derive_encoder_and_step(graph, "ids", {"logits": "newest"})
    for plan in ([9], [1] * 9, [4, 5], [2, 1, 3, 3]):
        results = run_steps(derived_graphs, graph, {"ids": ids}, weights, plan)
        for end, found in zip(np.cumsum(plan), results, strict=True):
            np.testing.assert_allclose(found["logits"][:, 0], whole[:, end - 1], atol=1e-12)


LISTENER = """specc 1
model listener
dims batch >= 1, frames >= 1, n >= 1

graph g(sound: float[batch, frames, 2], there: keep[batch, frames] right, ids: int[batch, n])
    -> (logits: float[batch, n, 7]) {
  x, k1 = conv(sound, out=6, kernel=3, padding=same, keep=there) @ c1
  x, k2 = conv(gelu(x), out=6, kernel=3, stride=2, padding=1, keep=k1) @ c2
  y = embedding(ids, size=7, dim=6) @ words
  y = y + (attention(y, x, heads=2, mask=visible(k2)) @ cross)
  return linear(y, out=7) @ head
}

generate text of ids from logits { start = 0  stop = 1  max_tokens = 5 }
"""


def test_generation_from_audio_in_a_batch_equals_that_alone(tmp_path: Path) -> None:
    """As in Whisper: a package and a standalone generator generate the same tokens alone and in a
    batch, and reject left padding that is not a multiple of the strides.
    """
    path = tmp_path / "listener.specc"
    path.write_text(LISTENER)
    specc.compile(path, tmp_path / "package", init=2, graphs="all")
    specc.compile(path, tmp_path / "one.onnx", init=2, graphs="generate")
    given = make_batch(np.random.default_rng(3), [9, 4], 9)
    for name in ("package", "one.onnx"):
        model = specc.load(tmp_path / name, threads=1)
        together = [list(r[0].tokens) for r in model.generate(**given).results()]
        for row, tokens in enumerate(together):
            (one,) = model.generate(**alone(given, row)).results()
            assert list(one[0].tokens) == tokens
        shifted = {"sound": given["sound"], "there": np.roll(given["there"], 5, axis=1)}
        with pytest.raises(SpeccError, match="E0325"):
            model.generate(**shifted).results()
