"""Random stacks of convolutions and pools over padded sequences: without a warning, positions in a
padded batch equal those alone; mistakes in the proof are detected.
"""

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specc_numpy
from specc.analysis import padding_check as proof
from specc.analysis import padding_dataflow, padding_safe_ops
from specc.diagnostics.diagnostic import SpeccError
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, GraphBuilder, Input, Parameter, Value
from specc.ir.types import Type

B, N, WIDTH = Dim.symbol("b"), Dim.symbol("n"), 2
Array = NDArray[Any]


class WindowStack:
    """A stack of windows over `x` and its padding mask."""

    def __init__(self, seed: int, side: str) -> None:
        self.rng, self.build = random.Random(seed), GraphBuilder()
        self.x = self.build.add_input("x", Input(Type("f32", (B, N, Dim.from_value(WIDTH)))))
        self.keep = self.build.add_input("keep", Input(Type("bool", (B, N)), padding_side=side))  # type: ignore[arg-type]  # a side
        self.strides = side == "right" or self.rng.random() < 0.2
        for n in range(self.rng.randint(1, 3)):
            self.window(n)

    def one(self, op: Any, *args: Value | None) -> Value:
        return self.build.add_op(op, *args)

    def window(self, n: int) -> None:
        """Add a window, with or without a mask before it, sometimes after an op that is not zero at
        zero.
        """
        kernel = (self.rng.randint(1, 3),)
        stride = (self.rng.choice((1, 1, 2, 3)) if self.strides else 1,)
        kind = self.rng.choice(("conv", "conv", "max", "mean", "thin"))
        if kind == "thin":
            self.thin(self.rng.choice((0, 0, 1, 2)), stride[0])
            return
        dilation = (self.rng.choice((1, 1, 2)) if kind != "mean" else 1,)
        span = (kernel[0] - 1) * dilation[0]
        pads = (self.rng.randint(0, span), self.rng.randint(0, span))
        if self.rng.random() < 0.7:
            low = -np.inf if kind == "max" else 0.0
            hidden = self.one(ops.Constant(low, "f32"))
            shown = self.one(ops.Insert(2), self.keep)
            self.x = self.one(ops.Where(), shown, self.x, hidden)
        match kind:
            case "conv":
                shape = Type.of("f32", WIDTH, WIDTH, *kernel)
                weight = self.build.add_parameter(
                    Parameter(name=f"w{n}", type=shape, initializer="zeros")
                )
                bias = self.build.add_parameter(
                    Parameter(name=f"b{n}", type=Type.of("f32", WIDTH), initializer="zeros")
                )
                op: Any = ops.Conv(kernel, stride, dilation, pads)
                self.x = self.one(op, self.x, weight, bias)
            case "max":
                op = ops.MaxPool(kernel, stride, dilation, pads)
                self.x = self.one(op, self.x)
            case _:
                counted = self.rng.random() < 0.5
                op = ops.AveragePool(kernel, stride, pads, (0,), counted)
                self.x = self.one(op, self.x)
        if not op.is_position_preserving(0):
            self.keep = self.one(
                ops.DownsamplePaddingMask(stride[0], op.get_output_lag(0)), self.keep
            )

    def thin(self, start: int, step: int) -> None:
        """Return `x[:, start::step]` and the same of the padding mask."""
        stop = self.x.type.shape[1]
        for name in ("x", "keep"):
            op = ops.StridedSlice(1, Dim.from_value(start), stop, Dim.from_value(step))
            setattr(self, name, self.one(op, getattr(self, name)))

    def finished(self) -> Graph:
        return self.build.build_graph("g", {"y": self.x, "rows": self.keep})


def sample_weights(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    return {
        name: rng.standard_normal([d.evaluate({}) for d in f.type.shape])
        for name, f in graph.parameter_facts.items()
    }


ROWS, MORE = 11, 4


def find_failure(seed: int, side: str) -> bool | None:
    """Return True if positions of a stack without warning differ; None if it has a warning."""
    graph = WindowStack(seed, side).finished()
    if any(d.code == "W0601" for d in proof.check_padding(graph)):
        return None
    rng = np.random.default_rng(seed)
    weights = sample_weights(graph, rng)
    x = rng.standard_normal((1, ROWS + MORE, WIDTH))
    keep = np.ones((1, ROWS + MORE), bool)
    real = slice(MORE, None) if side == "left" else slice(0, ROWS)
    keep[:, : real.start or 0] = keep[:, real.stop or ROWS + MORE :] = False
    try:
        alone = specc_numpy.evaluate_graph(graph, {"x": x[:, real], "keep": keep[:, real]}, weights)
        padded = specc_numpy.evaluate_graph(graph, {"x": x, "keep": keep}, weights)
    except SpeccError:
        return False  # too few positions for these windows
    found, wanted = padded["y"][padded["rows"]], alone["y"][0]
    return found.shape != wanted.shape or not np.allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize(
    "many",
    [50, pytest.param(300, marks=pytest.mark.parity), pytest.param(3000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_without_a_warning_padding_has_no_effect(side: str, many: int) -> None:
    said = [find_failure(seed, side) for seed in range(many)]
    assert not any(said), said.index(True)
    # Some stacks have a warning, others do not.
    assert min(said.count(None), said.count(False)) > many // 6


def plant_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Plant a mistake that suppresses a warning."""
    match name:
        case "a stride leaves nothing padded":
            first = lambda graph, places: frozenset({places.padded_length})
            monkeypatch.setattr(padding_dataflow, "find_padded_lengths", first)
        case "nothing is shifted":
            monkeypatch.setattr(
                padding_safe_ops.PaddedUse, "is_shifted", property(lambda self: False)
            )
        case "every mean is clean behind zeros":
            monkeypatch.setattr(
                padding_safe_ops,
                "is_window_padding_invariant",
                lambda r: r.is_zero_padded or r.facts.minimum_pad_axes,
            )


@pytest.mark.parametrize(
    ("mistake", "side", "first_seed"),
    [
        ("a stride leaves nothing padded", "right", 24),
        ("nothing is shifted", "left", 57),
        ("every mean is clean behind zeros", "right", 145),
    ],
)
def test_planted_mistakes_are_detected(
    mistake: str, side: str, first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`first_seed` detected the mistake before."""
    plant_mistake(monkeypatch, mistake)
    assert any(find_failure(seed, side) for seed in (first_seed, *range(400)))
