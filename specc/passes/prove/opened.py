"""The body of a loop with what it takes from outside put in the place of the inputs that
stand for it.

A mask that was made before a loop is an input of its body, of which nothing is known
there. Behind the input stands what made it: so a proof that looks at the body sees
`causal` inside as it sees it outside.
"""

from specc.ir import ops
from specc.ir.graph import Graph, Node, Value


def opened(node: Node, op: ops.Scan) -> Graph:
    """The body of the loop `node`: its inputs are rows and carries, what it captures are
    the values of the graph around it.
    """
    inner, outer = op.inner(), op.parts(node.args)
    now: dict[Value, Value | None] = {v: v for v in (*inner.rows, *inner.starts)}
    now.update(zip(inner.captured, outer.captured, strict=True))
    nodes, made = [], {}
    for old, results in op.body.nodes:
        new = Node(old.op, tuple(a and now[a] for a in old.args))
        fresh = tuple(Value(r.type, new, r.index) for r in results)
        now.update(zip(results, fresh, strict=True))
        nodes.append((new, fresh))
        if old in op.body.made:
            made[new] = op.body.made[old]
    named = [*op.body.inputs.items()][: op.scanned + op.carries]
    outputs = {name: now[v] for name, v in op.body.outputs.items()}
    return Graph(
        name=op.body.name,
        inputs=dict(named),
        input_facts={name: op.body.input_facts[name] for name, _ in named},
        parameters={},
        parameter_facts={},
        nodes=tuple(nodes),
        outputs={name: v for name, v in outputs.items() if v is not None},
        made=made,
    )
