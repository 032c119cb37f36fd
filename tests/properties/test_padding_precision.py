"""Results that padding cannot affect have no warning; similar results that it affects have one.

The float64 reference with other amounts, sides and values of padding decides which is which.
"""

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.random_padded_specs import (
    HEADER,
    INPUTS,
    PaddedSpec,
    elaborate_padded_spec,
    find_padding_effect,
)

import specc_numpy
from specc.analysis import (
    padding_dataflow,
    padding_facts,
    padding_offsets,
    padding_order_and_windows,
    padding_safe_ops,
    padding_zeros,
)
from specc.analysis.padding_check import check_padding
from specc.analysis.padding_facts import PaddedOpResult
from specc.analysis.padding_masked_scores import is_min_or_max_at_padding
from specc.analysis.padding_zeros import is_zero_preserving
from specc.ir import ops

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ANY, LEFT, RIGHT = ("left", "right", ""), ("left",), ("right",)
"""Sides of the padding; none means both sides at once."""

FIRST = """
  hidden = insert(keep, axis=2)
  f = float(hidden)
  z = where(hidden, x, 0.0)
  s = 30.0 * tanh(sum(x))
"""

CLEAN = (
    ("sum(resize(z, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("sum(resize(z, mode=nearest_exact, size=[3 * n], axis=1), axis=1)", ANY),
    ("max(resize(where(hidden, x, -inf), mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("c = conv(resize(z, mode=nearest, size=[2 * n], axis=1), out=4, kernel=3, padding=same) @ c;"
     "sum(c * resize(f, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("r = resize(z, mode=nearest, size=[2 * n], axis=1);"
     "k = resize(f, mode=nearest, size=[2 * n], axis=1) > 0.5;"
     "sum(r * softmax(where(k, r, -inf), axis=1), axis=1)", ANY),
    ("sum(roll(z, 1, axis=1), axis=1)", ANY),
    ("max(roll(where(hidden, x, -inf), -2, axis=1) * 2.0, axis=1)", ANY),
    ("sum(roll(z, 1, axis=1) * roll(x, 1, axis=1), axis=1)", ANY),
    ("sum(roll(z, 1, axis=1) * (sum(z, axis=1)[:, none, :]), axis=1)", ANY),
    ("g, _ = gru(z, hidden=4, reset=after, bias=false) @ l; sum(g * f, axis=1)", ANY),
    ("g, _ = gru(z, hidden=4, reset=before, update=new, bias=false) @ l; sum(g * f, axis=1)", ANY),
    ("g, _, _ = lstm(z, hidden=4, bias=false, peepholes=true) @ l; sum(g * f, axis=1)", ANY),
    ("g, _ = gru(z, hidden=2, reset=after, bias=false, direction=both) @ l; sum(g * f, axis=1)",
     ANY),
    ("g, _ = rnn(z, hidden=4, act=relu, bias=false) @ l; sum(g * f, axis=1)", ANY),
    ("_, h = gru(z, hidden=4, reset=after, bias=false) @ l; h[:, 0]", LEFT),
    ("_, h = gru(z, hidden=4, reset=after, bias=false, direction=backward) @ l; h[:, 0]", RIGHT),
    ("sort(where(hidden, x, 1e30), axis=1)[:, 0]", ANY),
    ("sort(where(hidden, x, -1e30), axis=1, descending=true)[:, 0]", ANY),
    ("sort(where(hidden, tanh(x), 1e4), axis=1)[:, 0]", ANY),
    ("min(where(hidden, x, 1e30), axis=1)", ANY),
    ("w = softmax(where(keep, s, -1e4), axis=1); sum(x * w[:, :, none] * f, axis=1)", ANY),
    ("w = softmax(where(keep, s, -2e3), axis=1); sum(x * w[:, :, none], axis=1)", ANY),
    ("w = softmax(where(keep, sum(tanh(x)) / 2.0 - 1.0, -1e4), axis=1);"
     "sum(x * w[:, :, none], axis=1)", ANY),
    ("c = conv_transpose(z, out=4, kernel=3, padding=1) @ c; sum(c * f, axis=1)", ANY),
    ("c = conv_transpose(x, out=4, kernel=2, stride=2) @ c;"
     "sum(c * resize(f, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("c = conv_transpose(z, out=4, kernel=4, stride=2, padding=1) @ c;"
     "sum(c * resize(f, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("r = resize(x, mode=nearest, size=[2 * n], axis=1)[:, 1::2]; sum(r * f, axis=1)", ANY),
    ("r = resize(x, mode=nearest, size=[2 * n], axis=1);"
     "k = resize(float(keep), mode=nearest, size=[2 * n], axis=1) > 0.5;"
     "gather(r, argmax(where(k, sum(r), -inf), axis=1), axis=1)", ANY),
    ("m = merge(split(x, into=[2, 2], axis=2), axis=1);"
     "k = merge(expand(keep[:, :, none], axis=2, length=2), axis=1);"
     "a, _ = attend(m, m, m, mask=visible(k));"
     "sum(merge(split(a, into=[n, 2], axis=1), axis=2) * f, axis=1)", ANY),
    ("h = zeros(shape=[batch, 4]); scan r, k in x, keep along n carry h {;"
     "h = where(k[:, none], tanh(h + r), h); }; h", ANY),
    ("h = ones(shape=[batch, 4]); scan r, k in x, f along n carry h {;"
     "h = k * tanh(h + r) + (1.0 - k) * h; }; h", ANY),
    ("h = zeros(shape=[batch, 4]); scan r in z along n carry h collect o {;"
     "h = 0.5 * h + r; o = h; }; sum(o * f, axis=1)", ANY),
    ("h = zeros(shape=[batch, 4]); scan r, k in x, f along n carry h {;"
     "h = tanh(h + r) * k; }; h", LEFT),
    ("sort(where(hidden, x, -inf), axis=1)[:, -1]", ANY),
    ("i = argsort(where(keep, s, inf), axis=1); g = gather(x, i, axis=1);"
     "sum(gather(g, argsort(i, axis=1), axis=1) * f, axis=1)", RIGHT),
    ("_, i = topk(where(hidden, x, -inf), 2, axis=1); float(i[:, 0])", RIGHT),
    ("gather(x, argmax(cumsum(keep), axis=1), axis=1)", ("left", "right")),
    ("c = conv(pad(x, before=1, mode=edge), out=4, kernel=2) @ c; sum(c * f, axis=1)", RIGHT),
)  # fmt: skip
"""Statements and a result that padding does not affect, with padding sides."""

LEAKING = (
    ("sum(resize(z, mode=bilinear, size=[1, 2 * n], axis=1), axis=1)", ()),
    ("sum(resize(z, mode=nearest, size=[7], axis=1), axis=1)", ANY),
    ("sum(resize(z, mode=nearest, size=[n + 1], axis=1), axis=1)", ("left", "")),
    ("sum(resize(x, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("resize(x, mode=nearest, size=[2 * n], axis=1)[:, 0]", LEFT),
    ("r = resize(z, mode=nearest, size=[2 * n], axis=1);"
     "sum(r * float(positions(r))[none, :, none], axis=1)", LEFT),
    ("r = resize(z, mode=nearest, size=[2 * n], axis=1);"
     "a = float(argmax(where(keep, 1.0, -inf), axis=1));"
     "sum(r * (float(positions(r))[none, :] - a[:, none])[:, :, none], axis=1)", LEFT),
    ("r = resize(z, mode=nearest, size=[2 * n], axis=1);"
     "k = resize(f * tanh(x), mode=nearest, size=[2 * n], axis=1) > 0.5;"
     "sum(r * softmax(where(k, r, -1e30), axis=1), axis=1)", ANY),
    ("sum(roll(x, 1, axis=1), axis=1)", ANY),
    ("roll(z, 1, axis=1)[:, 0]", ("right", "")),
    ("last(roll(z, -1, axis=1))", ("left", "")),
    ("sum(roll(z, 1, axis=1) * x, axis=1)", ANY),
    ("sum(roll(z, 1, axis=1) * roll(x, 2, axis=1), axis=1)", ANY),
    ("sum(cumsum(roll(z, 1, axis=1), axis=1) * roll(f, 1, axis=1), axis=1)", ("right", "")),
    ("sum(roll(x, 1, axis=1) * f, axis=1)", ANY),
    ("sum(flip(roll(z, 1, axis=1), axis=1) * x, axis=1)", ANY),
    ("sum(roll(roll(z, 1, axis=1), -2, axis=1) * roll(x, 1, axis=1), axis=1)", ANY),
    ("g, _ = gru(x, hidden=4, reset=after, bias=false) @ l; sum(g * f, axis=1)", LEFT),
    ("g, _ = gru(z + 1.0, hidden=4, reset=after, bias=false) @ l; sum(g * f, axis=1)", LEFT),
    ("g, _ = gru(z, hidden=4, reset=after) @ l; sum(g * f, axis=1)", LEFT),
    ("g, _ = rnn(z, hidden=4, act=sigmoid, bias=false) @ l; sum(g * f, axis=1)", LEFT),
    ("a = expand(parameter(shape=[1, 1, 4]) @ a, axis=0, length=batch);"
     "g, _ = gru(z, hidden=4, reset=after, bias=false, start=a) @ l; sum(g * f, axis=1)", LEFT),
    ("a = expand(parameter(shape=[1, 1, 4]) @ a, axis=0, length=batch);"
     "g, _ = gru(concat([a, z], axis=1), hidden=4, reset=after, bias=false) @ l;"
     "sum(g[:, 1:] * f, axis=1)", LEFT),
    ("_, h = gru(z, hidden=4, reset=after, bias=false) @ l; h[:, 0]", RIGHT),
    ("_, h = gru(z, hidden=4, reset=after, bias=false, direction=backward) @ l; h[:, 0]", LEFT),
    ("sort(where(hidden, x, 1e4), axis=1)[:, 0]", ANY),
    ("sort(where(hidden, x, 1e30), axis=1, descending=true)[:, 0]", ANY),
    ("sort(where(hidden, x, -1e30), axis=1)[:, 0]", ANY),
    ("max(where(hidden, x, 1e30), axis=1)", ANY),
    ("min(where(hidden, x, -1e30), axis=1)", ANY),
    ("sort(where(hidden & (x > 1.0), x, 1e30), axis=1)[:, 0] * 0.0 + sum(where(hidden,"
     " sort(where(hidden & (x > 1.0), x, 1e30), axis=1), 0.0) * 1e-30, axis=1)", LEFT),
    ("w = softmax(where(keep, sum(x), -1e4), axis=1); sum(x * w[:, :, none], axis=1)", ANY),
    ("w = softmax(where(keep, s, -20.0), axis=1); sum(x * w[:, :, none], axis=1)", ANY),
    ("w = softmax(where(keep, tanh(sum(x)), -20.0), axis=1); sum(x * w[:, :, none], axis=1)",
     ANY),
    ("w = softmax(where(keep & (s > 29.9), s, -1e4), axis=1); sum(x * w[:, :, none], axis=1)",
     ANY),
    ("sum(pad(z, after=1, axis=2, value=1.0)[:, :, 1:], axis=1)", ANY),
    ("sum(exp(pad(where(hidden, x, -inf), after=1, axis=2, value=1.0))[:, :, 1:], axis=1)", ANY),
    ("c = conv_transpose(x, out=4, kernel=3, padding=1) @ c; sum(c * f, axis=1)", ANY),
    ("c = conv_transpose(x, out=4, kernel=4, stride=2, padding=1) @ c;"
     "sum(c * resize(f, mode=nearest, size=[2 * n], axis=1), axis=1)", ANY),
    ("sum(resize(z, mode=nearest, size=[3 * n], axis=1)[:, ::2], axis=1)", LEFT),
    ("r = resize(x, mode=nearest, size=[2 * n], axis=1);"
     "k = resize(float(keep), mode=nearest, size=[2 * n], axis=1) > 0.5;"
     "i = argmax(where(k, sum(r), -inf), axis=1);"
     "gather(resize(x, mode=nearest, size=[3 * n], axis=1), i, axis=1)", LEFT),
    ("h = ones(shape=[batch, 4]); scan r in z along n carry h collect o {;"
     "h = 0.5 * h + r; o = h; }; sum(o * f, axis=1)", LEFT),
    ("h = zeros(shape=[batch, 4]); scan r, k in x, f along n carry h {;"
     "h = tanh(h + r) * k; }; h", RIGHT),
    ("(sort(where(hidden, x, -inf), axis=1) + x)[:, -1]", RIGHT),
    ("_, i = topk(where(hidden, x, -inf), 2, axis=1); float(i[:, 0])", LEFT),
    ("c = conv(pad(z, before=1, mode=edge), out=4, kernel=2) @ c; sum(c * f, axis=1)", LEFT),
)  # fmt: skip
"""Statements and a result that padding affects."""


def write_spec(form: str, side: str) -> PaddedSpec:
    """Return the spec of a form."""
    *lines, result = form.split(";")
    body = "\n".join(f"  {line.strip()}" for line in (*lines, f"return {result.strip()}"))
    text = f"{HEADER.format(side=side, shape='batch, 4')}{FIRST}{body}\n}}\n"
    return PaddedSpec(text, side, replaced=False)


def has_effect(spec: PaddedSpec) -> bool:
    """Return True if padding changes a result for any of the default inputs."""
    graph = elaborate_padded_spec(spec.text)
    return any(find_padding_effect(graph, spec, 7, *by) for by in ((1.0, 0.0), *INPUTS))


FLAT = [(form, side) for form, sides in CLEAN for side in sides]
REACHED = [(form, side) for form, sides in LEAKING for side in sides]


@pytest.mark.parametrize(("form", "side"), sample_sweep(FLAT, stride=6))
def test_a_result_independent_of_padding_has_no_warning(form: str, side: str) -> None:
    spec = write_spec(form, side)
    assert not check_padding(elaborate_padded_spec(spec.text))
    assert not has_effect(spec)


@pytest.mark.parametrize(("form", "side"), REACHED)
def test_a_result_that_depends_on_padding_has_a_warning(form: str, side: str) -> None:
    spec = write_spec(form, side)
    assert check_padding(elaborate_padded_spec(spec.text))
    assert has_effect(spec)


TWO = """specc 1
model m
dims batch, c, q
graph g(x: float[batch, c, 4], u: float[batch, q, 4],
        ckeep: keep[batch, c], qkeep: keep[batch, q]) -> (y: float[batch, 4]) {{
  s = matmul(x, transpose(u))
  m = insert(ckeep, axis=2) & insert(qkeep, axis=1)
  h = where(m, s, -1e30)
  {}
}}
"""

BETWEEN_TWO = (
    "return masked_mean_pool(matmul(softmax(h), u), ckeep)",
    "return masked_mean_pool(matmul(transpose(softmax(h, axis=1)), x), qkeep)",
    "w = softmax(max(h, axis=2), axis=1); return sum(x * w[:, :, none], axis=1)",
    "return masked_mean_pool(matmul(tanh(where(m, s, 0.0)), tanh(u)), ckeep)",
)
"""Results of two sequences with padding masks that neither padding affects."""

LEAKING_BETWEEN_TWO = (
    "return sum(matmul(softmax(h), u), axis=1)",
    "w = softmax(h) * softmax(h, axis=1); return sum(sum(w), axis=1)[:, none] * ones(shape=[1, 4])",
    "return masked_mean_pool(matmul(softmax(where(m & (s > 2.0), s, -1e30)), u), ckeep)",
)
"""Results of two sequences that padding of one of them affects."""


def differs_with_padding(text: str) -> bool:
    """Return True if padding of two sequences changes the reference result."""
    graph, rng = elaborate_padded_spec(text), np.random.default_rng(3)
    x, u = rng.normal(size=(1, 5, 4)), rng.normal(size=(1, 6, 4))

    def run(before: int, after: int) -> np.ndarray:
        given = {}
        for name, keep, values in (("x", "ckeep", x), ("u", "qkeep", u)):
            count = values.shape[1]
            padding = 3 * rng.normal(size=(1, before + after, 4))
            parts = [padding[:, :before], values, padding[:, before:]]
            given[name] = np.concatenate(parts, axis=1)
            given[keep] = np.array([[False] * before + [True] * count + [False] * after])
        return specc_numpy.evaluate_graph(graph, given, {})["y"]

    alone = run(0, 0)
    return any(not np.allclose(run(*by), alone, atol=1e-9) for by in ((1, 0), (0, 2), (3, 2)))


@pytest.mark.parametrize("body", BETWEEN_TWO)
def test_masks_of_two_sequences_are_combined(body: str) -> None:
    """A position that one mask hides is masked out, for any value of the other mask."""
    text = TWO.format(body.replace("; ", "\n  "))
    assert not check_padding(elaborate_padded_spec(text))
    assert not differs_with_padding(text)


@pytest.mark.parametrize("body", LEAKING_BETWEEN_TWO)
def test_a_leak_between_two_sequences_has_a_warning(body: str) -> None:
    text = TWO.format(body.replace("; ", "\n  "))
    assert check_padding(elaborate_padded_spec(text))
    assert differs_with_padding(text)


MISTAKES: dict[str, tuple[object, str, object]] = {
    "any resize repeats positions": (
        padding_offsets,
        "get_upsampling_factor",
        lambda node, axis: 2,
    ),
    "repeated positions count one each": (
        padding_dataflow.PaddingDataflow,
        "_count_axis_padding",
        lambda self, length: padding_dataflow.EVERY_POSITION,
    ),
    "rolled positions are in place": (
        padding_dataflow,
        "find_order_dependent_roll",
        lambda *_: None,
    ),
    "a state stays zero with a bias": (
        padding_safe_ops,
        "_is_state_zero",
        lambda use: isinstance(use.node.op, ops.RecurrentLayer) and use.is_zero_padded,
    ),
    "a state stays zero whatever is read": (
        padding_safe_ops,
        "_is_state_zero",
        lambda use: (
            isinstance(use.node.op, ops.RecurrentLayer) and not use.node.op.input_bias(use.node)
        ),
    ),
    "any number is above the others": (
        padding_zeros,
        "is_min_or_max_at_padding",
        lambda padded_result, axis, *, lowest: (
            not lowest or is_min_or_max_at_padding(padded_result, axis, lowest=True)
        ),
    ),
    "any fill underflows": (padding_zeros, "has_underflowing_fill", lambda scores: True),
    "a transposed convolution reads no ends": (
        padding_order_and_windows,
        "_is_transposed_conv_reading_ends",
        lambda use, op: False,
    ),
    "every loop keeps its state": (
        padding_safe_ops,
        "is_loop_state_padding_invariant",
        lambda use: isinstance(use.op, ops.Scan),
    ),
    "every stride is aligned": (padding_facts.PaddedUse, "is_shifted", False),
    "positions stay in place when sorted": (
        padding_dataflow,
        "sorts_padding_first",
        lambda node, facts: False,
    ),
    "an index is valid on every axis": (
        padding_dataflow.PaddingDataflow,
        "_is_indexed_by_position",
        lambda self, length, count: True,
    ),
    "added features are zero": (
        padding_zeros,
        "is_zero_preserving",
        lambda node: isinstance(node.op, ops.Pad) or is_zero_preserving(node),
    ),
    "masks settle each other": (
        padding_dataflow,
        "PaddedOpResult",
        lambda always_true_masks, **kw: PaddedOpResult(always_true_masks=AnyValue(), **kw),
    ),
}


class AnyValue(frozenset[object]):
    """A set that contains everything."""

    def __contains__(self, value: object) -> bool:
        return True


@pytest.mark.parametrize("mistake", sample_sweep([*MISTAKES]))
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    texts = [write_spec(*r).text for r in REACHED]
    texts += [TWO.format(body.replace("; ", "\n  ")) for body in LEAKING_BETWEEN_TWO]
    assert not all(check_padding(elaborate_padded_spec(text)) for text in texts)
