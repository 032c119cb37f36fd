"""Weight expressions compute what NumPy does, have the shape they said, and are views
where they say so.
"""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from specc.weights.apply import Array, apply
from specc.weights.formats.safetensors import Entry
from specc.weights.rearrange import Unfit
from specc.weights.shape import View, dtype_of, shape_of, view_of
from specc.weights.transform import (
    AddNumber,
    Cast,
    Concat,
    Expr,
    FirstPresent,
    Negate,
    Part,
    PermutePairs,
    Rearrange,
    Reshape,
    ResizeGrid,
    Slice,
    Stack,
    Tensor,
    Transpose,
    chosen,
    renamed,
    tensors_of,
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

a, b, cube = Tensor("a"), Tensor("b"), Tensor("cube")

CASES: list[tuple[Expr, Array, str]] = [
    (a, A, "a"),
    (Transpose(a), A.T, "transpose(a)"),
    (Transpose(cube), CUBE.transpose(0, 2, 1), "transpose(cube)"),
    (
        Transpose(cube, (2, 0, 1)),
        CUBE.transpose(2, 0, 1),
        "transpose(cube, axes=[2, 0, 1])",
    ),
    (Reshape(a, (3, -1)), A.reshape(3, 8), "reshape(a, shape=[3, -1])"),
    (Concat((a, b), 1), np.concatenate([A, B], 1), "concat([a, b], axis=1)"),
    (Stack((a, b)), np.stack([A, B]), "stack([a, b])"),
    (Stack((Transpose(a),)), A.T[None], "stack([transpose(a)])"),
    (Slice(a, 1, 2, 5), A[:, 2:5], "slice(a, axis=1, from=2, to=5)"),
    (Part(a, 0, 1, 2), A[2:], "split(a, axis=0, into=2)[1]"),
    (Part(a, 1, 1, (1, 2, 3)), A[:, 1:3], "split(a, axis=1, into=[1, 2, 3])[1]"),
    (PermutePairs(a, "half", 1), A[[0, 2, 1, 3]], "permute_pairs(a, to=half, heads=1)"),
    (Negate(a), -A, "negate(a)"),
    (Cast(a, "f64"), A.astype(np.float64), "cast(a, to=f64)"),
    (AddNumber(a, 1.0), A + 1, "add(a, 1.0)"),
    (
        Rearrange(a, "(p q) i -> q (p i)", (("p", 2),)),
        A.reshape(2, 2, 6).transpose(1, 0, 2).reshape(2, 12),
        "",
    ),
    (FirstPresent((Tensor("absent"), b)), B, "first_present(absent, b)"),
]


@pytest.mark.parametrize(
    ("expr", "value", "text"), CASES, ids=[c[2] or "rearrange" for c in CASES]
)
def test_value_shape_and_text(expr: Expr, value: Array, text: str) -> None:
    assert shape_of(expr, SHAPES) == value.shape
    found = apply(chosen(expr, TENSORS.__contains__), TENSORS.__getitem__)
    assert np.array_equal(found, value)
    assert not text or str(expr) == text


def test_the_two_orders_of_rotary_pairs_are_inverse() -> None:
    heads = PermutePairs(Tensor("rows"), "half", 2)
    rows = {"rows": np.arange(12.0).reshape(12, 1)}
    halves = apply(heads, rows.__getitem__)
    assert halves[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert np.array_equal(
        apply(PermutePairs(heads, "interleaved", 2), rows.__getitem__), rows["rows"]
    )


def test_fused_projections_of_published_models_come_apart() -> None:
    """GPT-NeoX stores each head's query, key and value together."""
    h, d, i = 2, 3, 4
    parts = np.arange(3 * h * d * i, dtype=np.float32).reshape(3, h, d, i)
    stored = parts.transpose(1, 0, 2, 3).reshape(h * 3 * d, i)
    expr = Rearrange(
        Tensor("qkv"), "(h three d) i -> three (h d) i", (("three", 3), ("h", h))
    )
    assert np.array_equal(
        apply(expr, {"qkv": stored}.__getitem__), parts.reshape(3, h * d, i)
    )


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        (Transpose(Tensor("v")), "no two axes"),
        (Transpose(a, (0, 0)), "each of the 2 axes once"),
        (Reshape(a, (5, -1)), "cannot become"),
        (Reshape(a, (-1, -1)), "no shape"),
        (Concat((a, cube), 0), "differ not only"),
        (Concat((), 0), "nothing to join"),
        (Stack((a, cube)), "cannot be rows of one axis"),
        (Stack(()), "nothing to stack"),
        (Slice(a, 0, 2, 5), "not all in an axis of 4"),
        (Slice(a, 2, 0, 1), "there is no axis 2"),
        (Part(a, 0, 0, 3), "no 3 equal parts"),
        (Part(a, 0, 2, 2), "there is no part 2 of 2"),
        (Part(a, 0, 0, (1, 2)), "do not make up"),
        (PermutePairs(a, "half", 3), "whole pairs"),
        (ResizeGrid(Tensor("grid"), 2, 2, 2), "no square grid"),
        (Rearrange(a, "a b"), "no `->`"),
        (Rearrange(a, "(p q) i -> p q i"), "say how long"),
        (Rearrange(a, "(p q) i -> p q i", (("p", 3),)), "3 does not divide it"),
        (Rearrange(a, "a -> a"), "for 1 axes, the tensor has 2"),
        (Rearrange(a, "a b -> a"), "one side"),
        (Rearrange(a, "a a -> a a"), "twice"),
        (Rearrange(a, "a [b] -> a b"), "cannot be read"),
    ],
)
def test_what_does_not_fit_is_said(expr: Expr, words: str) -> None:
    with pytest.raises(Unfit, match=words.replace("(", r"\(")):
        shape_of(expr, {**SHAPES, "v": (3,)})


def test_element_types() -> None:
    dtypes = {"a": "bf16", "b": "f32"}
    assert dtype_of(AddNumber(a, 1.0), dtypes) == "f32"
    assert dtype_of(Negate(a), dtypes) == "bf16"
    assert dtype_of(Cast(a, "f16"), dtypes) == "f16"
    with pytest.raises(Unfit, match="bf16 and f32"):
        dtype_of(Concat((a, b)), dtypes)
    low = {"a": np.array([0.001], ml_dtypes.bfloat16)}
    assert (
        apply(AddNumber(a, 1.0), low.__getitem__)[0]
        == np.float32(1) + low["a"].astype(np.float32)[0]
    )


def entries(**shapes: tuple[int, ...]) -> Mapping[str, Entry]:
    return {n: Entry(n, "f32", s, 64, 4 * int(np.prod(s))) for n, s in shapes.items()}


@pytest.mark.parametrize(
    ("expr", "view"),
    [
        (a, View("a", 0, 96)),
        (Reshape(a, (2, 12)), View("a", 0, 96)),
        (Slice(a, 0, 1, 3), View("a", 24, 48)),
        (Part(a, 0, 1, 2), View("a", 48, 48)),
        (Part(Reshape(a, (2, 2, 6)), 0, 1, 2), View("a", 48, 48)),
        (Slice(Tensor("one"), 1, 1, 2), View("one", 24, 24)),
        (Transpose(Tensor("one"), (1, 0, 2)), View("one", 0, 96)),
        (Cast(a, "f32"), View("a", 0, 96)),
        (FirstPresent((Tensor("absent"), a)), View("a", 0, 96)),
        (Slice(a, 1, 0, 2), None),
        (Transpose(a), None),
        (Negate(a), None),
        (Cast(a, "f16"), None),
    ],
)
def test_what_lies_in_the_file_already(expr: Expr, view: View | None) -> None:
    assert view_of(expr, entries(a=(4, 6), one=(1, 4, 6))) == view


def test_a_view_has_the_bytes_of_the_value() -> None:
    expr = Part(Slice(Reshape(a, (4, 2, 3)), 0, 1, 4), 0, 2, 3)
    view = view_of(expr, entries(a=(4, 6)))
    assert view is not None
    assert (
        apply(expr, TENSORS.__getitem__).tobytes()
        == A.tobytes()[view.offset : view.offset + view.nbytes]
    )


def test_names_can_be_listed_and_changed() -> None:
    expr = Concat((Negate(a), FirstPresent((b, cube))))
    assert list(tensors_of(expr)) == ["a", "b", "cube"]
    assert (
        str(renamed(expr, str.upper))
        == "concat([negate(A), first_present(B, CUBE)], axis=0)"
    )


def test_position_grids_are_resized_as_published_models_do() -> None:
    """Numbers of PyTorch's bicubic interpolation, corners not aligned, of the values 0
    to 8 squared.
    """
    table = (
        np.concatenate([[-7.0], np.arange(9.0) ** 2])
        .astype(np.float32)
        .reshape(1, 10, 1)
    )
    found = apply(ResizeGrid(Tensor("t"), 2, 4, 1), {"t": table}.__getitem__)
    assert (
        shape_of(ResizeGrid(Tensor("t"), 2, 4, 1), {"t": table.shape})
        == found.shape
        == (1, 9, 1)
    )
    assert found[0, 0, 0] == -7
    np.testing.assert_allclose(found[0, 1:, 0], TORCH, rtol=1e-6)


def test_a_grid_of_the_same_size_stays_as_it_is() -> None:
    table = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    assert np.array_equal(
        apply(ResizeGrid(Tensor("t"), 3, 3), {"t": table}.__getitem__), table
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
