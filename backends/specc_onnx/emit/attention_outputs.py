"""Add outputs with attention weights to a copy of a compiled model.

The fused `Attention` hides its weights unless asked: its fourth result in mode 3 is
what the softmax gave, after cap and mask. One that stands in an `If` for the sake of
empty inputs is taken out of it first, so a model opened this way needs inputs that are
not empty. One that is done in blocks is done at once instead, whatever the length: the
blocks have no weights to give.
"""

from collections.abc import Iterable, Mapping

from onnx import ModelProto, NodeProto, helper

from specc_onnx.lower.dense_attention import PROBABILITIES_OUTPUT_MODE
from specc_onnx.lower.element_types import ONNX_TYPE_CODES
from specc_onnx.lower.liveness import iterate_node_bodies

PROVIDERS_WITHOUT_WEIGHTS = frozenset({"cuda"})
"""Providers whose `Attention` gives no weights when it is asked for them (1.31)."""


def add_attention_outputs(model: ModelProto, notes: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Add an output `[b, h, q, k]` to `model` for each attention of `notes`; their
    names by scope.

    An attention whose note does not fit the model is left out. Scopes that occur again
    are numbered.
    """
    found: dict[str, str] = {}
    for note in notes:
        for name in ("mask", "added", "blocks"):
            _inline_branch(model, note.get(name, ""), "else_branch")
        value = note.get("weights") or _expose_weights_output(model, note)
        if value is None:
            continue
        if value not in {o.name for o in model.graph.output}:
            kind = ONNX_TYPE_CODES.get(note.get("dtype", "f32"), ONNX_TYPE_CODES["f32"])
            model.graph.output.append(helper.make_tensor_value_info(value, kind, None))
        scope, n = note.get("scope", ""), 1
        while (name := scope if n == 1 else f"{scope} {n}") in found:
            n += 1
        found[name] = value
    return found


def _request_probabilities(node: NodeProto) -> None:
    """Have the fourth result be weights, whatever it was."""
    mode = "qk_matmul_output_mode"
    for attribute in [a for a in node.attribute if a.name == mode]:
        node.attribute.remove(attribute)
    node.attribute.append(helper.make_attribute(mode, PROBABILITIES_OUTPUT_MODE))


def _expose_weights_output(model: ModelProto, note: Mapping[str, str]) -> str | None:
    """Make an `Attention` node return its weights, and return their name."""
    # A branch that was put in the place of its `If` gives its result by the latter's
    # name.
    wanted = note.get("blocks") or note.get("guard") or note.get("node", "")
    if "guard" in note:
        _inline_branch(model, wanted, "then_branch")
    node = _find_producer(model, wanted)
    if node is None or node.op_type != "Attention":
        return None
    if len(node.output) < 4 or not node.output[3]:
        del node.output[1:]
        node.output.extend(["", "", f"{wanted}:weights"])
        _request_probabilities(node)
    name: str = node.output[3]
    return name


def _inline_branch(model: ModelProto, guard: str, branch: str) -> None:
    """Put the nodes of a branch in place of the `If` that makes `guard`."""
    node = _find_producer(model, guard)
    if node is None or node.op_type != "If":
        return
    then = next(
        b
        for a, b in zip(node.attribute, iterate_node_bodies(node), strict=True)
        if a.name == branch
    )
    names = {old.name: new for old, new in zip(then.output, node.output, strict=True)}
    at = list(model.graph.node).index(node)
    del model.graph.node[at]
    for offset, inner in enumerate(then.node):
        moved = NodeProto()
        moved.CopyFrom(inner)
        outputs = [names.get(o, o) for o in inner.output]
        del moved.output[:]
        moved.output.extend(outputs)
        model.graph.node.insert(at + offset, moved)


def _find_producer(model: ModelProto, value: str) -> NodeProto | None:
    return next((n for n in model.graph.node if value and value in n.output), None)
