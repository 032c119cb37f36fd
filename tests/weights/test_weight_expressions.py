"""Weight expressions compute the values of NumPy, have the inferred shape, and are views where
possible."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from specc.weights.expression_evaluation import (
    Array,
    TensorByteRange,
    evaluate_weight_expression,
    find_stored_byte_range,
    infer_expression_dtype,
    infer_expression_shape,
)
from specc.weights.formats.safetensors_header import TensorEntry
from specc.weights.weight_expressions import (
    AddScalarExpr,
    CastExpr,
    ChunkExpr,
    CoalesceExpr,
    ConcatExpr,
    Expr,
    NegateExpr,
    PermuteRopeExpr,
    RearrangeExpr,
    ReshapeExpr,
    ResizeGridExpr,
    SliceExpr,
    StackExpr,
    TensorExpr,
    TransposeExpr,
    WeightExpressionError,
    iterate_tensor_names,
    rename_tensors,
    resolve_coalesce,
)

A = np.arange(24, dtype=np.float32).reshape(4, 6)
B = A + 100
CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
TENSORS: dict[str, Array] = {
    "a": A,
    "b": B,
    "cube": CUBE,
    "one": A[None],
    "grid": CUBE.reshape(1, 6, 4)[:, :5],
}
SHAPES = {n: t.shape for n, t in TENSORS.items()}

a, b, cube = TensorExpr("a"), TensorExpr("b"), TensorExpr("cube")

CASES: list[tuple[Expr, Array, str]] = [
    (a, A, "a"),
    (TransposeExpr(a), A.T, "transpose(a)"),
    (TransposeExpr(cube), CUBE.transpose(0, 2, 1), "transpose(cube)"),
    (TransposeExpr(cube, (2, 0, 1)), CUBE.transpose(2, 0, 1), "transpose(cube, axes=[2, 0, 1])"),
    (ReshapeExpr(a, (3, -1)), A.reshape(3, 8), "reshape(a, shape=[3, -1])"),
    (ConcatExpr((a, b), 1), np.concatenate([A, B], 1), "concat([a, b], axis=1)"),
    (StackExpr((a, b)), np.stack([A, B]), "stack([a, b])"),
    (StackExpr((TransposeExpr(a),)), A.T[None], "stack([transpose(a)])"),
    (SliceExpr(a, 1, 2, 5), A[:, 2:5], "slice(a, axis=1, from=2, to=5)"),
    (ChunkExpr(a, 0, 1, 2), A[2:], "split(a, axis=0, into=2)[1]"),
    (ChunkExpr(a, 1, 1, (1, 2, 3)), A[:, 1:3], "split(a, axis=1, into=[1, 2, 3])[1]"),
    (PermuteRopeExpr(a, "half", 1), A[[0, 2, 1, 3]], "permute_pairs(a, to=half, heads=1)"),
    (NegateExpr(a), -A, "negate(a)"),
    (CastExpr(a, "f64"), A.astype(np.float64), "cast(a, to=f64)"),
    (AddScalarExpr(a, 1.0), A + 1, "add(a, 1.0)"),
    (
        RearrangeExpr(a, "(p q) i -> q (p i)", (("p", 2),)),
        A.reshape(2, 2, 6).transpose(1, 0, 2).reshape(2, 12),
        "",
    ),
    (CoalesceExpr((TensorExpr("absent"), b)), B, "first_present(absent, b)"),
]


@pytest.mark.parametrize(("expr", "value", "text"), CASES, ids=[c[2] or "rearrange" for c in CASES])
def test_value_shape_and_text(expr: Expr, value: Array, text: str) -> None:
    assert infer_expression_shape(expr, SHAPES) == value.shape
    found = evaluate_weight_expression(
        resolve_coalesce(expr, TENSORS.__contains__), TENSORS.__getitem__
    )
    assert np.array_equal(found, value)
    assert not text or str(expr) == text


def test_rotary_pair_permutations_are_inverse() -> None:
    heads = PermuteRopeExpr(TensorExpr("rows"), "half", 2)
    rows = {"rows": np.arange(12.0).reshape(12, 1)}
    halves = evaluate_weight_expression(heads, rows.__getitem__)
    assert halves[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert np.array_equal(
        evaluate_weight_expression(PermuteRopeExpr(heads, "interleaved", 2), rows.__getitem__),
        rows["rows"],
    )


def test_fused_projections_are_split() -> None:
    """GPT-NeoX stores query, key and value of each head together."""
    h, d, i = 2, 3, 4
    parts = np.arange(3 * h * d * i, dtype=np.float32).reshape(3, h, d, i)
    stored = parts.transpose(1, 0, 2, 3).reshape(h * 3 * d, i)
    expr = RearrangeExpr(
        TensorExpr("qkv"), "(h three d) i -> three (h d) i", (("three", 3), ("h", h))
    )
    assert np.array_equal(
        evaluate_weight_expression(expr, {"qkv": stored}.__getitem__), parts.reshape(3, h * d, i)
    )


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (TransposeExpr(TensorExpr("v")), "fewer than two axes"),
        (TransposeExpr(a, (0, 0)), "not a permutation of the 2 axes"),
        (ReshapeExpr(a, (5, -1)), "cannot become"),
        (ReshapeExpr(a, (-1, -1)), "not a valid shape"),
        (ConcatExpr((a, cube), 0), "differ along other axes"),
        (ConcatExpr((), 0), "nothing to concatenate"),
        (StackExpr((a, cube)), "cannot stack"),
        (StackExpr(()), "nothing to stack"),
        (SliceExpr(a, 0, 2, 5), "slice 2:5 is out of range"),
        (SliceExpr(a, 2, 0, 1), "axis 2 is out of range"),
        (ChunkExpr(a, 0, 0, 3), "cannot be split into 3 equal parts"),
        (ChunkExpr(a, 0, 2, 2), "part 2 is out of range"),
        (ChunkExpr(a, 0, 0, (1, 2)), "do not add up"),
        (PermuteRopeExpr(a, "half", 3), "heads of pairs"),
        (ResizeGridExpr(TensorExpr("grid"), 2, 2, 2), "not a square grid"),
        (RearrangeExpr(a, "a b"), "no `->`"),
        (RearrangeExpr(a, "(p q) i -> p q i"), "pass the length"),
        (RearrangeExpr(a, "(p q) i -> p q i", (("p", 3),)), "3 does not divide it"),
        (RearrangeExpr(a, "a -> a"), "for 1 axes, the tensor has 2"),
        (RearrangeExpr(a, "a b -> a"), "one side"),
        (RearrangeExpr(a, "a a -> a a"), "duplicate"),
        (RearrangeExpr(a, "a [b] -> a b"), "cannot be read"),
    ],
)
def test_shape_errors(expr: Expr, words: str) -> None:
    with pytest.raises(WeightExpressionError, match=words.replace("(", r"\(")):
        infer_expression_shape(expr, {**SHAPES, "v": (3,)})


def test_element_types() -> None:
    dtypes = {"a": "bf16", "b": "f32"}
    assert infer_expression_dtype(AddScalarExpr(a, 1.0), dtypes) == "f32"
    assert infer_expression_dtype(NegateExpr(a), dtypes) == "bf16"
    assert infer_expression_dtype(CastExpr(a, "f16"), dtypes) == "f16"
    with pytest.raises(WeightExpressionError, match="bf16 and f32"):
        infer_expression_dtype(ConcatExpr((a, b)), dtypes)
    low = {"a": np.array([0.001], ml_dtypes.bfloat16)}
    assert (
        evaluate_weight_expression(AddScalarExpr(a, 1.0), low.__getitem__)[0]
        == np.float32(1) + low["a"].astype(np.float32)[0]
    )


def make_entries(**shapes: tuple[int, ...]) -> Mapping[str, TensorEntry]:
    return {n: TensorEntry(n, "f32", s, 64, 4 * int(np.prod(s))) for n, s in shapes.items()}


@pytest.mark.parametrize(
    ("expr", "tensor_view"),
    [
        (a, TensorByteRange("a", 0, 96)),
        (ReshapeExpr(a, (2, 12)), TensorByteRange("a", 0, 96)),
        (SliceExpr(a, 0, 1, 3), TensorByteRange("a", 24, 48)),
        (ChunkExpr(a, 0, 1, 2), TensorByteRange("a", 48, 48)),
        (ChunkExpr(ReshapeExpr(a, (2, 2, 6)), 0, 1, 2), TensorByteRange("a", 48, 48)),
        (SliceExpr(TensorExpr("one"), 1, 1, 2), TensorByteRange("one", 24, 24)),
        (TransposeExpr(TensorExpr("one"), (1, 0, 2)), TensorByteRange("one", 0, 96)),
        (CastExpr(a, "f32"), TensorByteRange("a", 0, 96)),
        (CoalesceExpr((TensorExpr("absent"), a)), TensorByteRange("a", 0, 96)),
        (SliceExpr(a, 1, 0, 2), None),
        (TransposeExpr(a), None),
        (NegateExpr(a), None),
        (CastExpr(a, "f16"), None),
    ],
)
def test_stored_views(expr: Expr, tensor_view: TensorByteRange | None) -> None:
    assert find_stored_byte_range(expr, make_entries(a=(4, 6), one=(1, 4, 6))) == tensor_view


def test_a_view_has_the_bytes_of_the_value() -> None:
    expr = ChunkExpr(SliceExpr(ReshapeExpr(a, (4, 2, 3)), 0, 1, 4), 0, 2, 3)
    view = find_stored_byte_range(expr, make_entries(a=(4, 6)))
    assert view is not None
    assert (
        evaluate_weight_expression(expr, TENSORS.__getitem__).tobytes()
        == A.tobytes()[view.offset : view.offset + view.nbytes]
    )


def test_list_and_rename_tensors() -> None:
    expr = ConcatExpr((NegateExpr(a), CoalesceExpr((b, cube))))
    assert list(iterate_tensor_names(expr)) == ["a", "b", "cube"]
    assert (
        str(rename_tensors(expr, str.upper))
        == "concat([negate(A), first_present(B, CUBE)], axis=0)"
    )


def test_position_grids_are_resized() -> None:
    """Expected values are PyTorch's bicubic interpolation (align_corners=False) of the squares of 0
    to 8."""
    table = np.concatenate([[-7.0], np.arange(9.0) ** 2]).astype(np.float32).reshape(1, 10, 1)
    found = evaluate_weight_expression(
        ResizeGridExpr(TensorExpr("t"), 2, 4, 1), {"t": table}.__getitem__
    )
    assert (
        infer_expression_shape(ResizeGridExpr(TensorExpr("t"), 2, 4, 1), {"t": table.shape})
        == found.shape
        == (1, 9, 1)
    )
    assert found[0, 0, 0] == -7
    np.testing.assert_allclose(found[0, 1:, 0], TORCH, rtol=1e-6)


def test_unchanged_grid_size() -> None:
    table = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    assert np.array_equal(
        evaluate_weight_expression(ResizeGridExpr(TensorExpr("t"), 3, 3), {"t": table}.__getitem__),
        table,
    )


TORCH = [
    0.935634613,
    2.008327484,
    4.969211578,
    7.684482574,
    29.348545074,
    36.258274078,
    48.344264984,
    56.896572113,
]
