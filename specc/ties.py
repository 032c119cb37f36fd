"""Which parameters share another's numbers, known without reading any weights."""

from specc.elaborate.modules import Program
from specc.ir.dim import Dim, product, total
from specc.ir.graph import Graph
from specc.lang import tree
from specc.weights.names import Pattern


def tied_names(program: Program, graph: Graph) -> set[str]:
    """Parameters of `graph` that a `tie` of the spec gives another's numbers."""
    found: set[str] = set()
    for item, _ in program.items(tree.Weights):
        for rule in item.rules:
            if isinstance(rule, tree.Tie):
                pattern = Pattern(rule.name.text)
                found |= {name for name in graph.parameter_facts if pattern.matches(name)}
    return found


def own_parameters(program: Program, graph: Graph) -> Dim:
    """How many numbers the weights hold, those that are shared counted once."""
    tied = tied_names(program, graph)
    return total(product(f.type.shape) for n, f in graph.parameter_facts.items() if n not in tied)
