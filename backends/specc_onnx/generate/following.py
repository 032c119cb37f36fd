"""What says of each written token whether its row exists."""

import math
from typing import NoReturn

from specc.ir import ops
from specc.ir.defaults import of_each_token
from specc.ir.graph import Graph, Node, Value
from specc.text.diagnostic import fail
from specc_onnx.generate.work import Work


def following(work: Work, name: str) -> Graph | None:
    """What says of each token that is written whether it exists; None where all do.
    E0944 for a default that reads more than the token.
    """
    defaults, growing = work.whole.defaults, work.derived.growing
    # An input that promises its padding on one side is not asked again about a written
    # row: that stands behind the prompt, and exists.
    sided = work.whole.graph.input_facts[name].keep != "any"
    if defaults is None or name not in defaults.outputs or sided:
        return None
    each = of_each_token(defaults, name, growing)
    if each is None:
        _more_than_one(name, growing)
    return None if _always(each.outputs[name]) else each


def _always(value: Value) -> bool:
    """Whether tokens, which are 0 or above, all exist: `ids >= 0`, `ids != -1`."""
    match value.node:
        case Node(ops.Compare(fn=fn), (Value(node=None), Value(node=Node(op)))):
            least = op.value if isinstance(op, ops.Constant) else math.inf
            return (fn == "ge" and least <= 0) or (fn in ("gt", "ne") and least < 0)
    return False


def _more_than_one(name: str, growing: str) -> NoReturn:
    fail(
        "E0944",
        f"the default of `{name}` reads more than the row of `{growing}` that is written",
        notes=["a model that decodes by itself knows the newest token alone"],
        helps=["compile a package: --for step", f"make `{name}` of each token alone"],
    )
