"""Rows that a step keeps in 8 bits, beside the reference.

A number on the edge between two whole ones becomes the one or the other by the last bit
of what was computed before, and then all behind it differs. So the reference goes on
from what the model has kept, wherever that is as near as what it has kept itself: what
is compared is everything else.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from specc.ir import ops
from specc.ir.array import Array
from specc.ir.graph import Graph, Value
from specc.run.agreement import TOLERANCE

After: TypeAlias = Callable[[Value, Array], Array]


def following(
    graph: Graph, got: Mapping[str, Array], weights: Mapping[str, Array]
) -> After | None:
    """What the reference reads in place of rows that it rounds, beside the results `got`
    of the model; None for a graph that keeps none so.
    """
    kept = {v: got[name] for v, name in _kept(graph).items()}
    if not kept:
        return None
    names = {value: name for name, value in graph.parameters.items()}
    before = {v.node.args[0] for v in kept if v.node}
    exact: dict[Value, Array] = {}

    def after(value: Value, array: Array) -> Array:
        if value in before:
            exact[value] = array
        theirs, node = kept.get(value), value.node
        if theirs is None or node is None:
            return array
        x, scale = node.args
        assert x is not None
        assert scale is not None
        # what is new stands behind the rows that were there
        new = theirs[:, :, theirs.shape[2] - array.shape[2] :]
        return as_near(array, new, exact[x], weights[names[scale]])

    return after


def as_near(ours: Array, theirs: Array, x: Array, scale: Array) -> Array:
    """Whole numbers of `x / scale`: theirs where they are a neighbor of ours, and `x` lies
    on the edge between the two as far as float32 can tell; ours elsewhere.
    """
    units = x / scale.astype(np.float64)
    to_edge = np.abs(np.abs(units - np.rint(units)) - 0.5)
    blur = TOLERANCE * np.abs(x).max(initial=0.0) / scale
    apart = np.abs(theirs.astype(np.int16) - ours)
    made: Array = np.where((apart == 1) & (to_edge <= blur), theirs, ours)
    return made


def _kept(graph: Graph) -> dict[Value, str]:
    """The results that hold rounded rows, by the new ones among these."""
    found = {}
    for name, value in graph.outputs.items():
        if value.node is None or not isinstance(value.node.op, ops.Concat):
            continue
        new = value.node.args[-1]
        if new is not None and new.node and isinstance(new.node.op, ops.Quantize):
            found[new] = name
    return found
