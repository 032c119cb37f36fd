"""Add taps: expose intermediate values of a graph as outputs, selected by name pattern."""

from collections.abc import Mapping, Sequence

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.weights.parameter_names import NamePattern


def add_taps(graph: Graph, patterns: Sequence[str]) -> Graph:
    """Return the graph with extra outputs for every value that a pattern matches.

    Example: `encoder.layers.*.self_attn:weights`. Raise E0408 if a pattern matches nothing.
    """
    outputs = dict(graph.outputs)
    for pattern in patterns:
        # scope names are case-sensitive on every operating system
        hits = [name for name in graph.names if NamePattern(pattern).matches(name)]
        if not hits:
            some = ", ".join(list(graph.names)[:8])
            raise_error(
                "E0408",
                f"`{escape_text(pattern)}` matches no value of the model",
                helps=[f"values are {some} …"],
            )
        outputs.update({_output_name(n, outputs): graph.names[n] for n in hits})
    return Graph(**{**graph.__dict__, "outputs": outputs})


def _output_name(name: str, taken: Mapping[str, object]) -> str:
    """Return a free output name for a tap: `:` becomes `.`, as ONNX reads `:0` as a port."""
    free = name.replace(":", ".")
    while free in taken:
        free += "_"
    return free
