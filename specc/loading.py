"""Where a graph's numbers come from: a seed, or the tensors of a file or folder."""

from specc.ir.graph import Graph
from specc.weights.bind import bind
from specc.weights.checkpoint import open_weights
from specc.weights.rules import Rules, Wanted, tied_pairs
from specc.weights.values import Binding, Seeded


def seeded(graph: Graph, wanted: list[Wanted], rules: Rules, seed: int) -> Seeded:
    """Every parameter as its initializer and the seed make it."""
    by_name = {w.name: w for w in wanted}
    starts = {name: facts.initial for name, facts in graph.parameter_facts.items()}
    return Seeded(seed, by_name, starts, tied_pairs(by_name, rules))


def bound(wanted: list[Wanted], rules: Rules, path: str) -> Binding:
    """Every parameter matched with the tensors of a file or folder."""
    checkpoint = open_weights(path)
    try:
        return bind(wanted, rules, checkpoint)
    except BaseException:
        checkpoint.close()
        raise
