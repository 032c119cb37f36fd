"""Group rows into batches by length within memory limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specc.analysis.cost import count_multiply_adds
from specc.batch_inference.plan import BatchLimits
from specc.batch_inference.result_columns import batch_symbol
from specc.batch_inference.row_inputs import InputRow
from specc.ir import ops
from specc.ir.dim import Dim, DimError, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value

BYTES = 4
"""Of a number of f32."""

MOST, FEWEST = 1.15, 8
"""Positions per position that is not padding; ignored for that few rows."""

Cost = Callable[[int, int], int]
"""What a batch of some rows of some length takes."""


def make_batches(
    rows: Sequence[InputRow], padded: Sequence[str], limits: BatchLimits, memory: Cost
) -> list[list[InputRow]]:
    """Return batches of rows that agree in all lengths except padded ones; a row beyond a limit
    is alone.
    """
    groups: dict[object, list[InputRow]] = {}
    for row in sorted(rows, key=lambda r: (r.length(padded), r.number)):
        groups.setdefault(row.shape(padded), []).append(row)
    found = []
    for group in groups.values():
        batch: list[InputRow] = []
        content = 0
        for row in group:  # the longest comes last, so it decides
            count, longest = len(batch) + 1, row.length(padded)
            content += longest
            places = count * longest
            little_padding = count <= FEWEST or places <= MOST * content
            fits = (
                count <= limits.cap
                and places <= limits.tokens
                and little_padding
                and _bears(memory, limits, count, longest)
            )
            if batch and not fits:
                found.append(batch)
                batch, content = [], longest
            batch.append(row)
        found.append(batch)
    return found


def _bears(memory: Cost, limits: BatchLimits, count: int, longest: int) -> bool:
    """Return whether rows fit in memory; a full batch is asked first, as fewer rows take less."""
    full = memory(limits.cap, longest) <= limits.memory
    return full or memory(count, longest) <= limits.memory


def count_padding(rows: Sequence[InputRow], padded: Sequence[str]) -> tuple[int, int]:
    """How many places a batch has, and how many of them are padding."""
    lengths = [row.length(padded) for row in rows]
    places = len(rows) * max(lengths, default=0)
    return places, places - sum(lengths)


@dataclass(frozen=True)
class CostFormulas:
    """A graph's memory and work as formulas of rows and length, which other lengths equal."""

    batch: str
    sizes: tuple[Dim, ...]
    works: Dim
    facts: dict[str, Dim] = field(default_factory=dict)
    found: dict[tuple[str, int, int], int] = field(default_factory=dict, repr=False)
    """What was asked before: batches are of few lengths."""

    @staticmethod
    def of(graph: Graph) -> "CostFormulas":
        """The sizes of what stands beside each other at each node, and all work."""
        batch = batch_symbol(graph)
        sizes = {_beside(node, results) for node, results in graph.nodes}
        return CostFormulas(
            batch=(batch.name or "") if batch is not None else "",
            sizes=tuple(sorted(sizes, key=str)),
            works=sum_dims(count_multiply_adds(node) for node, _ in graph.nodes),
            facts=dict(graph.facts),
        )

    def _at(self, dim: Dim, rows: int, length: int) -> int:
        names = dim.symbols()
        known = dict.fromkeys(names, length) | {self.batch: rows}
        try:
            facts = {n: self.facts[n].at({**known}) for n in names & self.facts.keys()}
            return dim.at(known | facts)
        except (DimError, KeyError):
            return 0

    def memory(self, rows: int, length: int) -> int:
        """Bytes of the largest operands and results of one node."""
        return self._once("memory", rows, length)

    def work(self, rows: int, length: int) -> int:
        """Multiply-adds."""
        return self._once("work", rows, length)

    def _once(self, what: str, rows: int, length: int) -> int:
        key = (what, rows, length)
        if key not in self.found:
            dims = (self.works,) if what == "work" else self.sizes
            most = max((self._at(d, rows, length) for d in dims), default=0)
            self.found[key] = most if what == "work" else BYTES * most
        return self.found[key]


def _beside(node: Node, results: Sequence[Value]) -> Dim:
    """How many numbers a node reads and makes; of an attention its weights as well."""
    held = [a for a in node.args if a is not None and a.node is not None]
    numbers = [multiply_dims(v.type.shape) for v in (*held, *results)]
    if isinstance(node.op, ops.Attend):
        b, h, q, _ = node.op.query(node).type.shape
        numbers.append(b * h * q * node.op.key(node).type.shape[2])
    return sum_dims(numbers)
