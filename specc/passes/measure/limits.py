"""How long an axis may be, where the model looks its row numbers up in a table or turns
by frequencies of texts of some length, and how long it must be at least.

A learned position table of 1024 rows bounds the length of its sequence, `x[:, 0:3]`
needs three rows; ONNX Runtime would say so only by failing.
"""

from bisect import bisect_left
from dataclasses import dataclass

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.fitting import rows_of
from specc.ir.graph import Graph, Node, Value
from specc.passes.prove.local import local_of
from specc.text.source import Span

ROTARY = "--context"
"""What stands for a table where frequencies are those of texts up to some length."""


@dataclass(frozen=True)
class Limit:
    """A symbol may be at most `most`, because of the table `table`, or of frequencies
    (`ROTARY`).
    """

    symbol: str
    most: int
    table: str
    span: Span | None = None

    @property
    def reason(self) -> str:
        """Why, for messages."""
        return reason(self.table, self.most)


def reason(table: str, most: int) -> str:
    """Why a length is at most `most`."""
    if table != ROTARY:
        return f"the table `{table}` has positions for {most}"
    return (
        f"it turns by the frequencies of texts up to {most} tokens, "
        "which `--context` decides when it is compiled"
    )


def limits(graph: Graph) -> dict[str, Limit]:
    """The tightest limit of each symbol."""
    names = {value: name for name, value in graph.parameters.items()}
    found: dict[str, Limit] = {}
    for node, _ in graph.nodes:
        match node:
            case Node(ops.Embedding(), (Value() as ids, Value() as table)):
                rows, name = table.type.shape[0].number, names.get(table, "a table")
            case Node(ops.RopeAngles(most=most), (Value() as ids,)) if most:
                rows, name = most, ROTARY
            case _:
                continue
        greatest = _greatest(ids)
        if rows is None or greatest is None:
            continue
        symbol, above = greatest
        most = rows - 1 - above
        if symbol not in found or most < found[symbol].most:
            spans = graph.made[node].spans if node in graph.made else ()
            found[symbol] = Limit(symbol, most, name, spans[0] if spans else None)
    return found


def ways(graph: Graph) -> dict[str, int]:
    """Lengths above which an attention is done another way than below, by symbol, where
    it can be as long.
    """
    most = {symbol: limit.most for symbol, limit in limits(graph).items()}
    padded = [graph.inputs[n] for n, f in graph.input_facts.items() if f.keep]
    found: dict[str, int] = {}
    for node, _ in graph.nodes:
        local = local_of(node, padded)
        rows = node.args[0].type.shape[2].name if local and node.args[0] else None
        if local and rows and local.above < most.get(rows, local.above + 1):
            found[rows] = max(found.get(rows, 0), local.above)
    return found


def rows_taken(graph: Graph) -> dict[str, int]:
    """The least length of each symbol with which every row is there that a slice or an
    index takes, and a window fits.
    """
    found = _reached(graph)
    for node, _ in graph.nodes:
        for wanted in rows_of(node):
            match wanted.substitute(graph.facts).terms:
                case ((((str() as symbol, 1),), c), ((), k)) if c > 0:
                    found[symbol] = max(found.get(symbol, 0), -(k // c))
    return found


def _reached(graph: Graph) -> dict[str, int]:
    """The least length of each symbol at which every window fits, behind all strides;
    of none where windows fit into no rows as well, and then give none.
    """
    found: dict[str, int] = {}
    refused: set[str] = set()
    for node, results in graph.nodes:
        if not isinstance(node.op, ops.Sliding | ops.KeepRows):
            continue
        spare = [d.substitute(graph.facts) for d in rows_of(node)]
        refused |= {s for d in spare for s in d.symbols() if _below(d, s, 0)}
        for made in (d.substitute(graph.facts) - 1 for d in results[0].type.shape):
            # A longer text never has fewer windows.
            for symbol in made.symbols() if len(made.symbols()) == 1 else ():
                least = bisect_left(
                    range(LONGEST), True, key=lambda n: not _below(made, symbol, n)
                )
                found[symbol] = max(found.get(symbol, 0), least)
    return {symbol: n for symbol, n in found.items() if symbol in refused}


def _below(length: Dim, symbol: str, rows: int) -> bool:
    """Whether a length of one symbol is below 0; of several it is not known."""
    return length.symbols() == {symbol} and length.at({symbol: rows}) < 0


LONGEST = 2**24
"""No window reaches over more rows."""


def _greatest(value: Value) -> tuple[str, int] | None:
    """`(n, c)` where the numbers of `value` are row numbers and at most `n + c`, n
    being a symbol.
    """
    match value.node:
        case Node(ops.Extent(axis=axis), (Value() as x,)):
            rows = _rows(x.type.shape[axis])
            return (rows[0], rows[1] - 1) if rows else None
        case Node(
            ops.CumSum(axis=axis),
            (Value(node=Node(ops.Cast(), (Value() as keep,))) as x,),
        ):
            return _rows(x.type.shape[axis]) if keep.type.dtype == "bool" else None
        case Node(
            ops.Arith(fn="add" | "sub" as fn),
            (Value() as x, Value(node=Node(ops.Constant(value=c)))),
        ):
            inner = _greatest(x)
            return (
                (inner[0], inner[1] + int(c if fn == "add" else -c)) if inner else None
            )
        case Node(
            ops.Arith(fn="max"), (Value() as x, Value(node=Node(ops.Constant())))
        ):
            return _greatest(x)
        case Node(
            ops.Insert() | ops.Expand() | ops.Transpose() | ops.Squeeze(),
            (Value() as x,),
        ):
            return _greatest(x)
        case Node(ops.Where(), (_, Value() as x, Value(node=Node(ops.Constant())))):
            return _greatest(x)
        case _:
            return None


def _rows(length: Dim) -> tuple[str, int] | None:
    """`(n, c)` of a length `n + c`: so many fixed rows stand before or behind `n`."""
    match length.terms:
        case ((((str() as symbol, 1),), 1),):
            return symbol, 0
        case ((((str() as symbol, 1),), 1), ((), more)) if more > 0:
            return symbol, more
    return None
