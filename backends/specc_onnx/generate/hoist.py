"""The nodes of a step that are the same at every step: they are lowered into the main
graph, once.

ONNX Runtime does not move anything out of a loop's body by itself. For a decoder with
an encoder this is where the keys and values over the encoder's result are computed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node, Value
from specc.ir.types import Type
from specc_onnx.generate.work import Work
from specc_onnx.lower.emitter import Tensor
from specc_onnx.lower.lengths import Lengths
from specc_onnx.lower.table import lower_nodes


def hoist(work: Work, handed: Mapping[str, Tensor]) -> set[Node]:
    """Lower the step's nodes that are the same at every step into the main graph; gives
    them.
    """
    step, g = work.derived.step, work.g
    fixed = set(fixed_nodes(step, handed))
    inputs = {t.name: t.type for t in handed.values()}
    # Only what is handed over has a tensor here: the step's other inputs are born in
    # the body.
    known_here = {n: step.inputs[n] for n in handed}
    work.enter(replace(step, inputs=known_here, outputs={}), handed)
    # The step's symbols are not those of the spec's graph, even where they are spelled
    # the same: its `batch` is all rows of all beams.
    before = g.lengths
    g.lengths = Lengths(inputs, step.facts, work.whole.graph.least)
    types, earlier = g.bodies[0].types, set(g.bodies[0].types)
    lower_nodes(g, step, fixed)
    for name in types.keys() - earlier:
        # the step's batch is all rows, which out here have a length of their own
        rows = {str(work.batch): work.rows}
        shape = tuple(d.substitute(rows) for d in types[name].shape)
        types[name] = Type(types[name].dtype, shape)
    g.lengths = before
    return fixed


def fixed_nodes(step: Graph, handed: Iterable[str]) -> list[Node]:
    """The nodes of `step` that read only weights and what is handed over, in order."""
    known = {step.inputs[n] for n in handed}
    symbols = {s for v in known for d in v.type.shape for s in d.symbols()}
    known |= set(step.parameters.values())
    found = []
    for node, results in step.nodes:
        # A `Range(past)` reads no value at all, yet is another one at every step: its
        # length must be told by what is fixed.
        sizes = (d for d in _sizes(node, results) if not d.symbols() <= symbols)
        told = next(sizes, None) is None
        # What a `Scan` depends on stands in the graph that it holds, which is not
        # looked into here.
        if not told or isinstance(node.op, ops.Scan):
            continue
        if all(a is None or a in known for a in node.args):
            known.update(results)
            found.append(node)
    return found


def _sizes(node: Node, results: Iterable[Value]) -> Iterable[Dim]:
    """The lengths a node depends on: those of its results and of its attributes."""
    for result in results:
        yield from result.type.shape
    yield from _dims(node.op.attributes().values())


def _dims(attributes: Iterable[object]) -> Iterable[Dim]:
    for value in attributes:
        if isinstance(value, Dim):
            yield value
        elif isinstance(value, tuple):
            yield from _dims(value)
