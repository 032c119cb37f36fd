"""Causality errors: the op, its position and the reason."""

from collections.abc import Callable

import pytest
from support.op_examples import make_sequence_conv

from specc.analysis import masked_constants
from specc.analysis.attention_matrices import TraversalBudget
from specc.analysis.causality import check_causality, find_time_symbol
from specc.analysis.mask_bands import find_mask_band
from specc.analysis.time_dataflow import trace_time_dataflow
from specc.diagnostics.diagnostic import Diagnostic, Source, Span
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Value
from specc.ir.types import Type

B, T = Dim.symbol("batch"), Dim.symbol("tgt")
SOURCE = Source("decoder.specc", "target: f32[batch, tgt]\ny = op(target)\n")
DECLARED, ASKED = Span(SOURCE, 0, 6), Span(SOURCE, 24, 38)


def make_builder() -> tuple[GraphBuilder, Value]:
    build = GraphBuilder()
    return build, build.add_input("target", Input(Type.of("f32", B, T, 4), span=DECLARED))


def get_causality_errors(build: GraphBuilder, output: Value) -> list[Diagnostic]:
    return check_causality(finish_graph(build, output), "tgt", "target", ["logits"])


def finish_graph(build: GraphBuilder, output: Value) -> Graph:
    return build.build_graph("main", {"logits": output})


def make_score_indices(build: GraphBuilder, x: Value) -> tuple[Value, Value]:
    """Return `i` as [q 1] and `j` as [1 k]."""
    extent = build.add_op(ops.Extent(1), x)
    return build.add_op(ops.Insert(1), extent), build.add_op(ops.Insert(0), extent)


def apply_attention(build: GraphBuilder, x: Value, mask: Value | None) -> Value:
    while mask and mask.type.rank < 4:
        mask = build.add_op(ops.Insert(0), mask)
    heads = build.add_op(ops.Insert(1), x)
    out = build.add_op(ops.Attend(0.5), heads, heads, heads, mask, span=ASKED)
    return build.add_op(ops.Squeeze(1), out)


def test_causal_window_is_proved() -> None:
    build, x = make_builder()
    i, j = make_score_indices(build, x)
    near = build.add_op(
        ops.Compare("lt"),
        build.add_op(ops.Arith("sub"), i, j),
        build.add_op(ops.Constant(3, "i64")),
    )
    y = apply_attention(
        build, x, build.add_op(ops.And(), build.add_op(ops.Compare("le"), j, i), near)
    )
    assert get_causality_errors(build, y) == []
    assert str(trace_time_dataflow(finish_graph(build, y), "tgt").get_state(y).axes[1]) == "[0, 2]"


def test_attention_without_a_mask() -> None:
    build, x = make_builder()
    (fault,) = get_causality_errors(build, apply_attention(build, x, None))
    assert fault.code == "E0712"
    assert fault.title == (
        "`logits` cannot be generated along `tgt`: without a mask, positions attend to later positions"
    )
    assert fault.primary is not None
    assert (fault.primary.span, fault.helps) == (ASKED, ("write `mask=causal`",))
    assert fault.related_labels[-1].span == DECLARED


def test_mask_with_one_later_position() -> None:
    build, x = make_builder()
    i, j = make_score_indices(build, x)
    ahead = build.add_op(ops.Arith("add"), i, build.add_op(ops.Constant(1, "i64")))
    (fault,) = get_causality_errors(
        build, apply_attention(build, x, build.add_op(ops.Compare("le"), j, ahead))
    )
    assert fault.title.endswith("the mask lets a position attend to 1 later position")
    assert fault.notes == ("q - k can be as low as -1 here",)
    assert fault.helps == ("add `& causal` to the mask",)


def make_loop_body() -> Graph:
    inner = GraphBuilder()
    row, carry = (inner.add_input(n, Input(Type.of("f32", B, 4))) for n in ("x", "c"))
    after = inner.add_op(ops.Arith("add"), row, carry)
    return inner.build_graph("body", {"c": after, "y": after})


def apply_scan(build: GraphBuilder, x: Value, reverse: bool) -> Value:
    zero = build.add_op(ops.Constant(0.0, "f32"))
    first = build.add_op(ops.Expand(0, B), build.add_op(ops.Insert(0), zero))
    wide = build.add_op(ops.Expand(1, Dim.from_value(4)), build.add_op(ops.Insert(1), first))
    return build.add_node(ops.Scan(make_loop_body(), 1, 1, 1, reverse=reverse), x, wide)[1]


def add_broadcast(build: GraphBuilder, x: Value, row: Value) -> Value:
    return build.add_op(ops.Arith("add"), x, build.add_op(ops.Insert(1), row))


CASES: dict[str, tuple[str, Callable[[GraphBuilder, Value], Value]]] = {
    "this mean reads every position": ("E0711", lambda b, x: b.add_op(ops.Reduce("mean", 1), x)),
    "this softmax divides by a sum over every position": (
        "E0711",
        lambda b, x: b.add_op(ops.Softmax(1), x),
    ),
    "this reverses the sequence": ("E0711", lambda b, x: b.add_op(ops.Flip(1), x)),
    "this concatenates two tensors that grow along `tgt`": (
        "E0711",
        lambda b, x: b.add_op(ops.Concat(1), x, x),
    ),
    "earlier positions depend on the newest position": (
        "E0713",
        lambda b, x: add_broadcast(b, x, b.add_op(ops.Last(1), x)),
    ),
    "this is the final length of `tgt`, which is unknown during generation": (
        "E0714",
        lambda b, x: b.add_op(
            ops.Arith("mul"), x, b.add_op(ops.Cast("f32"), b.add_op(ops.Size(T)))
        ),
    ),
    "this scan runs backwards": ("E0715", lambda b, x: apply_scan(b, x, True)),
    "the result contains values for later positions": (
        "E0712",
        lambda b, x: b.add_op(ops.MatMul(), b.add_op(ops.Einsum("b q d, b k d -> b q k"), x, x), x),
    ),
    "this selects a fixed number of positions, but early steps have fewer positions": (
        "E0711",
        lambda b, x: b.add_node(ops.TopK(1, Dim.from_value(2)), x)[0],
    ),
    "only the first position of a time axis can be selected by its index": (
        "E0711",
        lambda b, x: b.add_op(ops.Index(1, Dim.from_value(1)), x),
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_message_of_each_kind_of_leak(what: str) -> None:
    code, make = CASES[what]
    build, x = make_builder()
    (fault,) = get_causality_errors(build, make(build, x))
    assert fault.code == code
    assert fault.title == f"`logits` cannot be generated along `tgt`: {what}"


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.add_op(ops.Last(1), x),
        lambda b, x: b.add_op(ops.Delay(1, 1, 0.0), x),
        lambda b, x: b.add_op(ops.CumSum(1), x),
        lambda b, x: b.add_op(ops.LayerNorm(1e-5), x, None, None),
        lambda b, x: apply_scan(b, x, False),
    ],
)
def test_causal_graphs_are_proved(make: Callable[[GraphBuilder, Value], Value]) -> None:
    build, x = make_builder()
    assert get_causality_errors(build, make(build, x)) == []


def test_lookahead_compensated_by_a_delay() -> None:
    build, x = make_builder()
    w = build.add_input("w", Input(Type.of("f32", 4, 4, 2)))
    peek = build.add_op(make_sequence_conv(2, 1, 1), x, w, None)
    (fault,) = get_causality_errors(build, build.add_op(ops.Delay(1, 1, 0.0), peek))
    assert fault.title.endswith("this convolution reads 1 later position")
    assert "a later `delay` compensates for this" in fault.notes[0]


def test_output_independent_of_the_time_axis() -> None:
    build, _ = make_builder()
    other = build.add_input("other", Input(Type.of("f32", B, 4)))
    (fault,) = get_causality_errors(build, build.add_op(ops.Pointwise("tanh"), other))
    assert (fault.code, fault.title.endswith("it does not depend on `target`")) == ("E0716", True)


def test_attention_weights_of_a_causal_mask() -> None:
    build, x = make_builder()
    i, j = make_score_indices(build, x)
    heads = build.add_op(ops.Insert(1), x)
    mask = build.add_op(
        ops.Insert(0), build.add_op(ops.Insert(0), build.add_op(ops.Compare("le"), j, i))
    )
    assert (
        get_causality_errors(build, build.add_node(ops.Attend(1.0), heads, heads, heads, mask)[1])
        == []
    )
    (fault,) = get_causality_errors(build, build.add_op(ops.Einsum("b q d, b k d -> b q k"), x, x))
    assert fault.title.endswith("the result contains values for later positions")


def test_time_axis_follows_the_batch_axis() -> None:
    build, x = make_builder()
    assert find_time_symbol(finish_graph(build, x), "target") == "tgt"


def test_mask_beyond_the_search_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask with too many nodes is reported as not analyzed."""
    b = GraphBuilder()
    x = b.add_input("x", Input(Type.of("f32", Dim.symbol("b"), T, 4)))
    rows = b.add_op(ops.Extent(1), x)
    i, j = (b.add_op(ops.Insert(axis), rows) for axis in (1, 0))
    mask = b.add_op(ops.Compare("le"), j, i)
    for width in range(50):
        far = b.add_op(ops.Arith("sub"), i, b.add_op(ops.Constant(width, "i64")))
        mask = b.add_op(ops.And(), b.add_op(ops.Compare("ge"), j, far), mask)
    for _ in range(2):
        mask = b.add_op(ops.Insert(0), mask)
    head = b.add_op(ops.Insert(1), x)
    y = b.add_op(ops.Attend(0.5), head, head, head, mask)
    graph = b.build_graph("g", {"y": y})
    assert check_causality(graph, "tgt", "x", ["y"]) == []
    for cached in (find_mask_band, trace_time_dataflow, masked_constants.find_masked_constants):
        cached.cache_clear()
    monkeypatch.setattr(TraversalBudget.__init__, "__defaults__", (40,))
    monkeypatch.setattr(masked_constants, "MAX_ATTENTION_MATRICES", 10)
    (fault,) = check_causality(graph, "tgt", "x", ["y"])
    for cached in (find_mask_band, trace_time_dataflow, masked_constants.find_masked_constants):
        cached.cache_clear()
    assert fault.code == "E0712"
    assert fault.title.endswith(
        "the analysis of the mask did not finish: 50 000 values were visited"
    )
