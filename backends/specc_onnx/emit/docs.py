"""What a model says of itself to a person who looks at it in a viewer: the spec's own
line, and what inputs hold.
"""

from onnx import ModelProto

from specc.ir.graph import Graph, Input

SIDES = {"left": " in front", "right": " behind", "any": ""}
"""Where rows that do not exist stand."""


def document(model: ModelProto, graph: Graph, doc: str) -> None:
    """Put the spec's line on the model and its graph, and on each input what it holds."""
    model.doc_string = model.graph.doc_string = doc
    for value in model.graph.input:
        if (facts := graph.input_facts.get(value.name)) is not None:
            value.doc_string = input_doc(facts)


def input_doc(facts: Input) -> str:
    """`i64[batch, seq], from 0 to 50256`."""
    if facts.keep:
        side = SIDES[facts.keep]
        return f"{facts.type}: which rows exist; padding stands{side or ' anywhere'}"
    below = facts.below.number if facts.below is not None else None
    return str(facts.type) if below is None else f"{facts.type}, from 0 to {below - 1}"
