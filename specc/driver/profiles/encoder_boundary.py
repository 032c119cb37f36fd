"""Find the encoder output in a graph, and the cross-attention that reads it."""

from collections.abc import Iterable, Iterator

from specc.ir import ops
from specc.ir.graph import Graph, Value


def find_encoder_output(encode: Graph, source: Value, handed: Iterable[Value]) -> Value | None:
    """Return the last value f[batch, positions, features] on every path from `source` to
    `handed` (their common dominator), or None if there is none.

    Values that do not depend on `source`, such as a mask from another input, are ignored.
    """
    above: dict[Value, Value | None] = {source: None}
    depth = {source: 0}

    def meet(a: Value, b: Value) -> Value:
        while a is not b:
            if depth[a] < depth[b]:
                a, b = b, a
            up = above[a]
            assert up is not None, "every value here depends on the source"
            a = up
        return a

    def nearest(values: Iterable[Value]) -> Value | None:
        found: Value | None = None
        for value in values:
            if value in above:
                found = value if found is None else meet(found, value)
        return found

    for node, results in encode.nodes:
        if (up := nearest(a for a in node.args if a)) is not None:
            for result in results:
                above[result], depth[result] = up, depth[up] + 1
    at = nearest(handed)
    while at is not None and not _is_hidden_state(at, source):
        at = above[at]
    return at


def _is_hidden_state(value: Value, source: Value) -> bool:
    return (
        value.type.rank == 3
        and value.type.dtype == "f32"
        and value.type.shape[0] == source.type.shape[0]
        and value is not source
    )


def find_cross_attention(step: Graph, handed: Iterable[str]) -> list[dict[str, str]]:
    """Return the names of the key and the value of each cross-attention, in step order."""
    origin: dict[Value, str] = {step.inputs[name]: name for name in handed if name in step.inputs}
    found: list[dict[str, str]] = []
    for node, results in step.nodes:
        if isinstance(node.op, ops.Attend):
            if pair := dict(_key_and_value(node.args, origin)):
                found.append(pair)
        elif node.op.view and len(node.args) == 1 and node.args[0] in origin:
            origin |= dict.fromkeys(results, origin[node.args[0]])
    return found


def _key_and_value(
    args: tuple[Value | None, ...], origin: dict[Value, str]
) -> Iterator[tuple[str, str]]:
    for word, value in zip(("key", "value"), args[1:3], strict=True):
        if value in origin:
            yield word, origin[value]
