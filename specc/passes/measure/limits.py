"""How long an axis may be, where the model looks its row numbers up in a table or turns
by frequencies of texts of some length, and how long it must be at least.

A learned position table of 1024 rows bounds the length of its sequence, `x[:, 0:3]`
needs three rows; ONNX Runtime would say so only by failing.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specc.ir import ops
from specc.ir.dim import Dim, Part, remainder
from specc.ir.fitting import demands, nodes_within, rows_of
from specc.ir.graph import Graph
from specc.ir.tables import ROTARY, rooms
from specc.passes.prove.local import local_of
from specc.text.source import Span


@dataclass(frozen=True)
class Limit:
    """A length, `symbol` or the text of several, may be at most `most`, because of the
    table `table`, or of frequencies (`ROTARY`).
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
    """The tightest limit of each symbol, whatever other lengths are."""
    found: dict[str, Limit] = {}
    for limit, length in _limited(graph):
        for symbol in sorted(length.symbols()):
            # Where others are no longer than they must be, there is most room.
            least = {s: graph.least.get(s, 0) for s in length.symbols()}
            most = most_of(length, symbol, least, limit.most)
            if symbol not in found or most < found[symbol].most:
                found[symbol] = replace(limit, symbol=symbol, most=most)
    return found


def divided(graph: Graph) -> dict[str, str]:
    """Lengths that must be 0 as no remainder may be left, `n % 2`, by what is divided,
    `n / 2`.
    """
    found: dict[str, str] = {}
    for demand in demands(graph):
        for part in _quotients(demand.length):
            left = remainder(*part.args)
            if left.number is None:
                found[str(left)] = str(part)
    return found


def _quotients(length: Dim) -> Iterator[Part]:
    """The quotients in a length, those in parts of it as well."""
    for monomial, _ in length.terms:
        for atom, _ in monomial:
            if isinstance(atom, Part):
                yield from (p for a in atom.args for p in _quotients(a))
                if atom.fn == "/":
                    yield atom


def most_of(length: Dim, symbol: str, others: Mapping[str, int], most: int) -> int:
    """The greatest `symbol` with which a length is at most `most`, where `others` are
    known; 0 where there is none.
    """
    # Lengths that limits are of never shrink as a symbol grows (`_grows`), so the first
    # one that is too long is found by halves.
    above = bisect_left(
        range(LONGEST), True, key=lambda n: length.at({**others, symbol: n}) > most
    )
    return max(above - 1, 0)


def shared(graph: Graph) -> dict[str, Limit]:
    """The limits of several lengths together, `m + seq`, by the text of the length."""
    found: dict[str, Limit] = {}
    for limit, length in _limited(graph):
        tighter = found.get(limit.symbol, limit).most >= limit.most
        if len(length.symbols()) > 1 and tighter:
            found[limit.symbol] = limit
    return found


def _limited(graph: Graph) -> Iterator[tuple[Limit, Dim]]:
    """Each limit of a length that more rows never make shorter, and that length."""
    names = {value: name for name, value in graph.parameters.items()}
    for room in rooms(graph):
        if not _grows(room.length):
            continue
        made = graph.made.get(room.node)
        span = made.spans[0] if made and made.spans else None
        name = names.get(room.table, "a table") if room.table else ROTARY
        # What is added to all row numbers is no row: it takes room away.
        more = room.length.at(dict.fromkeys(room.length.symbols(), 0))
        length = room.length - more
        yield Limit(str(length), room.most - more, name, span), length


def _grows(length: Dim) -> bool:
    """Whether a length is a sum of symbols, or of quotients of them by numbers."""
    for monomial, c in length.terms:
        for atom, _ in monomial:
            if isinstance(atom, Part) and not (
                atom.fn == "//" and _grows(atom.args[0]) and atom.args[1].number
            ):
                return False
        if monomial and c < 0:
            return False
    return True


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
    for node, _ in nodes_within(graph):
        for wanted in rows_of(node):
            match wanted.substitute(graph.facts).terms:
                # `c·symbol + k` is not below 0 from -k / c on, rounded up; of lengths
                # that are made another way no least one is told
                case ((((str() as symbol, 1),), c), ((), k)) if c > 0:
                    found[symbol] = max(found.get(symbol, 0), -(k // c))
    return found


def _reached(graph: Graph) -> dict[str, int]:
    """The least length of each symbol at which every window fits, behind all strides;
    of none where windows fit into no rows as well, and then give none.
    """
    found: dict[str, int] = {}
    refused: set[str] = set()
    for node, results in nodes_within(graph):
        if not isinstance(node.op, ops.Sliding | ops.KeepRows):
            continue
        spare = [d.substitute(graph.facts) for d in rows_of(node)]
        refused |= {s for d in spare for s in d.symbols() if _below(d, s, 0)}
        for length in results[0].type.shape:
            # Below 0 where there is not even one row.
            made = length.substitute(graph.facts) - 1
            if len(made.symbols()) != 1:
                continue
            (symbol,) = made.symbols()
            found[symbol] = max(found.get(symbol, 0), _least(made, symbol))
    return {symbol: n for symbol, n in found.items() if symbol in refused}


def _least(length: Dim, symbol: str) -> int:
    """The first value of its only symbol at which a length is not below 0: a longer text
    never has fewer windows.
    """
    return bisect_left(
        range(LONGEST), True, key=lambda n: not _below(length, symbol, n)
    )


def _below(length: Dim, symbol: str, rows: int) -> bool:
    """Whether a length of one symbol is below 0; of several it is not known."""
    return length.symbols() == {symbol} and length.at({symbol: rows}) < 0


LONGEST = 2**24
"""No window reaches over more rows."""
