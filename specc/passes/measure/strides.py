"""How many rows of padding in front a model takes: where windows move by strides, whole
strides of them, for what stands in front decides which rows are taken.
"""

from specc.ir import ops
from specc.ir.graph import Graph, Value
from specc.ir.reach import links


def strides_before(graph: Graph) -> dict[str, int]:
    """For each input that says which rows exist, how many of them become one behind all
    strides; none where that is one.
    """
    keeps = {n: graph.inputs[n] for n, facts in graph.input_facts.items() if facts.keep}
    found = {name: _behind_all(graph, v) for name, v in keeps.items() if v.type.rank}
    return {name: stride for name, stride in found.items() if stride > 1}


def _behind_all(graph: Graph, keep: Value) -> int:
    """The greatest stride of all lengths that are made of the one that `keep` has."""
    strides = {keep.type.shape[-1]: 1}
    for node, results in graph.nodes:
        if not isinstance(node.op, ops.Sliding | ops.KeepRows | ops.Stride):
            continue
        for link in links(node, results):
            x, to = node.args[link.operand], link.result_axis
            if link.kind != "strided" or x is None or to is None:
                continue
            before = strides.get(x.type.shape[link.operand_axis])
            if before is not None:
                made = results[link.result].type.shape[to]
                strides[made] = max(strides.get(made, 1), before * link.stride)
    return max(strides.values())
