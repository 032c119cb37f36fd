"""The proof that the defaults of inputs may be used while a text is written.

A default is computed from what there is. What it gave for rows that are there must stay
when more come; and what has no rows must not be made from those that grow, since it is
computed once.
"""

from collections.abc import Iterable, Iterator

from specc.ir.defaults import closed
from specc.ir.graph import Graph, Input, Node, needed
from specc.passes.prove.causality import labels_of, span_of
from specc.passes.prove.flow import flow
from specc.passes.prove.leaks import said_of
from specc.text.diagnostic import Diagnostic, Label


def prove_defaults(
    graph: Graph,
    defaults: Graph | None,
    symbol: str,
    growing: str,
    outputs: Iterable[str],
) -> list[Diagnostic]:
    """An error E0718 for each default that `outputs` read and that would change along
    the axis `symbol`.
    """
    if defaults is None:
        return []
    live = needed(graph.outputs[name] for name in outputs)
    read = {a for node in live for a in node.args} | {
        graph.outputs[name] for name in outputs
    }
    used = [
        n
        for n, v in graph.inputs.items()
        if v in read and n in defaults.outputs and n != growing
    ]
    faults: dict[Node | None, Diagnostic] = {}
    for fault in _faults(
        closed(defaults, [n for n in defaults.outputs if n != growing]),
        used,
        symbol,
        growing,
    ):
        faults.setdefault(*fault)
    return list(faults.values())


def _grows(facts: Input | None, symbol: str) -> tuple[Label, ...]:
    """Where what grows is declared."""
    if facts is None or facts.span is None:
        return ()
    return (Label(facts.span, f"`{symbol}` grows here"),)


def _faults(
    defaults: Graph, used: Iterable[str], symbol: str, growing: str
) -> Iterator[tuple[Node | None, Diagnostic]]:
    """The first fault of each default, with the node at fault, so that one cause is told once."""
    found = flow(defaults, symbol)
    grows = _grows(defaults.input_facts.get(growing), symbol)
    for name in used:
        value = defaults.outputs[name]
        live, state = needed([value]), found.state(value)
        leak = next((k for k in found.leaks if k.node in live), None)
        if leak is None and (state.axes or not state.moves):
            continue
        notes: tuple[str, ...] = (
            f"a default without the axis `{symbol}` is made once",
        )
        others: tuple[Label, ...] = ()
        node, why, span = (
            value.node,
            f"it is made from `{growing}`, which grows",
            span_of(defaults, value.node),
        )
        primary = Label(span, why) if span else None
        if leak:
            node, why, notes = (
                leak.node,
                said_of(defaults, leak, found).what,
                said_of(defaults, leak, found).notes,
            )
            primary, others = labels_of(defaults, leak, found)
        title = f"the default of `{name}` would change while the text is written: {why}"
        helps = (
            f"make it of the rows before, as `cumsum(x)` is, or give `{name}` no default",
        )
        yield node, Diagnostic("E0718", title, primary, (*others, *grows), notes, helps)
