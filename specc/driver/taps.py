"""Expose inner values of a graph as outputs, by patterns of their names."""

from collections.abc import Mapping, Sequence

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.weights.parameter_names import NamePattern


def add_taps(graph: Graph, patterns: Sequence[str]) -> Graph:
    """The graph with values inside it as further results: `encoder.layers.*.self_attn:weights`."""
    outputs = dict(graph.outputs)
    for pattern in patterns:
        # Scopes are matched as they are written, on every system alike.
        hits = [name for name in graph.names if NamePattern(pattern).matches(name)]
        if not hits:
            some = ", ".join(list(graph.names)[:8])
            raise_error(
                "E0408",
                f"nothing in the model is called `{escape_text(pattern)}`",
                helps=[f"there are {some} …"],
            )
        outputs.update({_output_name(n, outputs): graph.names[n] for n in hits})
    return Graph(**{**graph.__dict__, "outputs": outputs})


def _output_name(name: str, taken: Mapping[str, object]) -> str:
    """A tap's name as a result's: `:` would be read as a port by other programs."""
    free = name.replace(":", ".")
    while free in taken:
        free += "_"
    return free
