"""Taps (`--tap`): additional graph outputs for intermediate values, selected by scope path."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.weights.parameter_name_patterns import NamePattern


def add_intermediate_outputs(graph: Graph, patterns: Sequence[str]) -> Graph:
    """Add a graph output for every value whose scope path matches a pattern such as
    `encoder.layers.*.self_attn:weights`. Raise E0408 if a pattern matches no value.
    """
    outputs = dict(graph.outputs)
    for pattern in patterns:
        # scope paths are case-sensitive, unlike file names on some operating systems
        matches = [name for name in graph.names if NamePattern(pattern).matches(name)]
        if not matches:
            examples = ", ".join(list(graph.names)[:8])
            raise_error(
                "E0408",
                f"`{escape_text(pattern)}` matches no value of the model",
                helps=[f"names of values: {examples} …"],
            )
        outputs.update({_make_tap_name(n, outputs): graph.names[n] for n in matches})
    return replace(graph, outputs=outputs)


def _make_tap_name(name: str, used_names: Mapping[str, object]) -> str:
    """Return an unused output name for a tap. `:` in the value name is replaced by `.`, because
    runtimes interpret `:0` as an output index.
    """
    unique_name = name.replace(":", ".")
    while unique_name in used_names:
        unique_name += "_"
    return unique_name
