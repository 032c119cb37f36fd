"""Which weights are rounded, and to what: decided once for all graphs of a model.

`int8`: whole numbers on both sides, each row of the other side by a scale of its own,
so that a row's answer does not depend on its neighbors. `int8-weights`: weights alone,
in blocks. `int4`: so with 4 bits, and 8 where it matters: tables and heads, what the
first attention reads, maps that are small, and what is in a loop. `int8-tensor`: as
`int8`, but in recurrent layers and loops all rows that meet a weight share a scale.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from specc.ir import ops
from specc.ir.graph import Graph, Value
from specc.ir.ops.quantized import Layout, Rounding
from specc.ir.precision import Precision
from specc.passes.quantize.layers import layer_pairs, layer_weights, opened
from specc.passes.quantize.products import product_of
from specc.passes.quantize.uses import Sight, Uses, moved, uses_of
from specc.weights.names import Pattern

Kind: TypeAlias = Literal["int8", "int4", "int8-weights", "int8-tensor"]
KINDS: tuple[Kind, ...] = ("int8", "int4", "int8-weights", "int8-tensor")
BLOCK = 128
ROW: Rounding = "row"
TENSOR: Rounding = "tensor"
SMALL = 1 << 16
"""Maps of fewer numbers than this gain nothing by 4 bits."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What was asked for.

    `kind` is for all weights that no pattern names, None: they stay. Patterns are of
    scopes or weights: `keep` stay as they are, `own` have a kind of their own. `head` is
    the kind of what makes results, `every` leaves out the exceptions of `int4`.
    """

    kind: Kind | None
    keep: tuple[str, ...] = ()
    own: tuple[tuple[str, Kind], ...] = ()
    block: int = BLOCK
    head: Kind | Literal["none", ""] = ""
    every: bool = False

    @property
    def kinds(self) -> tuple[str | None, ...]:
        """Every kind that some weight is to have."""
        return self.kind, self.head, *(kind for _, kind in self.own)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern that must match something."""
        return *self.keep, *(pattern for pattern, _ in self.own)


@dataclass(frozen=True)
class Decision:
    """`plan` has the form of each weight that is rounded, `kept` says of other matrices
    why they are not. `unmatched` are the patterns that name nothing, `names` what they
    could have named. `idle` says of what was asked for and changed nothing.
    """

    plan: Mapping[str, Precision]
    kept: Mapping[str, str]
    unmatched: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)


def decide(
    graph: Graph,
    wish: Wish,
    layout: Layout,
    ties: Mapping[str, str],
    *,
    rounds: bool = True,
    layers: bool = False,
) -> Decision:
    """The plan for a graph as every target gets it; `ties` names the weight whose
    numbers another has. Kernels that read weights in blocks as `rows` are those that
    round what meets them, or not. `layers`: the target has a recurrent layer by whole
    numbers.
    """
    loops = opened(graph)
    every = uses_of(loops)
    choice = _Choice(
        wish=wish,
        layout=layout,
        heads=_heads(loops),
        first=_first_read(loops),
        graph=loops,
        rounds=rounds,
        layers=layer_weights(graph) if layers else frozenset(),
    )
    plan: dict[str, Precision] = {}
    kept: dict[str, str] = {}
    for sharing in _together(every, ties):
        uses = every[sharing[0]]
        for name in sharing[1:]:
            uses = uses.joined(every[name])
        # A tied weight goes by each of its names.
        names = [each for name in sharing for each in _names(name, every[name])]
        form = choice.of(sharing, uses, names)
        if isinstance(form, Precision):
            plan.update(dict.fromkeys(sharing, form))
        else:
            kept.update(dict.fromkeys(sharing, form))
    known = _known(every)
    plan = _paired(plan, graph)
    return Decision(plan, kept, unmatched(wish.patterns, known), names=known)


def _paired(plan: Mapping[str, Precision], graph: Graph) -> dict[str, Precision]:
    """The plan in which a layer is one where both of its weights are: where one is kept,
    the layer becomes a loop, whose part behind the rows reads each by its own scale.
    """
    found = dict(plan)
    layers = {name for name, form in plan.items() if form.rounding == "layer"}
    alone = [pair for pair in layer_pairs(graph) if not layers.issuperset(pair)]
    while alone:
        for weights, states in alone:
            for name, rounding in ((weights, ROW), (states, TENSOR)):
                if name in layers:
                    found[name] = replace(found[name], rounding=rounding)
                    layers.remove(name)
        # layers may share a weight: those that have lost one become loops too
        every = layer_pairs(graph)
        alone = [p for p in every if layers & set(p) and not layers.issuperset(p)]
    return found


def names_of(graph: Graph) -> tuple[str, ...]:
    """What patterns may call the weights of a graph as every target gets it."""
    return _known(uses_of(opened(graph)))


def unmatched(patterns: Iterable[str], names: Iterable[str]) -> tuple[str, ...]:
    """The patterns that none of these names fits."""
    names = tuple(names)
    return tuple(p for p in patterns if not _any(names, (p,)))


def _known(every: Mapping[str, Uses]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for name in every for n in _names(name, every[name])))


def _together(names: Iterable[str], ties: Mapping[str, str]) -> Iterable[list[str]]:
    """Names of weights, those that share numbers together."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(ties.get(name, name), []).append(name)
    return found.values()


def _any(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether a pattern fits a name."""
    known = [Pattern(p) for p in patterns]
    return any(p.matches(name) for name in names for p in known)


def _names(name: str, uses: Uses) -> list[str]:
    """What a pattern may call a weight: its name, that without its last part, and the
    scopes that it is read in.
    """
    above = name.rpartition(".")[0]
    return [n for n in dict.fromkeys((name, above, *uses.scopes)) if n]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """Decides for one weight after another. `heads` and `first` are weights that make
    results, and that the first attention reads.
    """

    wish: Wish
    layout: Layout
    heads: frozenset[str]
    first: frozenset[str]
    graph: Graph
    rounds: bool
    layers: frozenset[str]

    def of(self, sharing: list[str], uses: Uses, names: list[str]) -> Precision | str:
        """The form of a weight, or why it has none."""
        if why := _unfit(uses):
            return why
        if _any(names, self.wish.keep):
            return "asked for"
        # of several patterns that fit, what is said last counts
        own = [kind for pattern, kind in self.wish.own if _any(names, (pattern,))]
        kind = own[-1] if own else self._usual(sharing)
        if kind is None:
            return "not asked for"
        # what is said of a weight, or of heads, is said of small ones too
        asked = own or (self.wish.head and self.heads & set(sharing))
        if kind == "int4" and not asked and not self.wish.every:
            kind = self._careful(sharing, uses, self.graph.parameters[sharing[0]])
        form = self._form(kind, uses)
        if kind == "int8-tensor":
            form = self._by_tensor(sharing, uses) or form
        return replace(form, turned=True) if uses.turned == {True} else form

    def _usual(self, sharing: list[str]) -> Kind | None:
        """The kind of a weight that no pattern names."""
        if self.wish.head and self.heads & set(sharing):
            return None if self.wish.head == "none" else self.wish.head
        return self.wish.kind

    def _careful(self, sharing: list[str], uses: Uses, value: Value) -> Kind:
        """`int4`, or 8 bits where 4 lose too much or win nothing."""
        count = 1
        # of a stack each expert has a map of its own
        for length in value.type.shape[-2:]:
            count *= length.number or 0
        named = set(sharing)
        if uses.table or self.heads & named:
            return "int8-weights"
        if count < SMALL or uses.looped or self.first & named:
            return "int8"
        return "int4"

    def _by_tensor(self, sharing: list[str], uses: Uses) -> Precision | None:
        """Whole numbers whose other side shares a scale: both weights of a layer, and
        what a loop reads. None elsewhere, where a row by itself costs as little.
        """
        layer = self.layers.issuperset(sharing) and uses.turned == {False}
        if uses.table or uses.routed or not (layer or uses.looped):
            return None
        return Precision(
            bits=8, block=0, layout="columns", rounding="layer" if layer else "tensor"
        )

    def _form(self, kind: Kind, uses: Uses) -> Precision:
        """A kind as this target reads it."""
        # Of columns in blocks a standard runtime makes rows again for every product that
        # it does not know: not where a table shares them, nor in a loop. Nor does the
        # standard take one of a stack of numbers of 4 bits, or some of them.
        parts = uses.routed or (uses.cut and kind == "int4")
        kept_whole = uses.table or uses.looped or parts
        if kind in ("int8", "int8-tensor") or (self.layout == "columns" and kept_whole):
            layout = self.layout if uses.linear else "rows"
            return Precision(bits=8, block=0, layout=layout, rounding="row")
        # The kernel rounds rows only where weights are laid out for it beforehand, and
        # those of an expert are picked when it is at work.
        rounds = self.rounds and self.layout == "rows" and not uses.routed
        rounding: Rounding = "block" if rounds else "none"
        return Precision(
            bits=4 if kind == "int4" else 8,
            block=self.wish.block,
            layout=self.layout,
            rounding=rounding,
        )


def _unfit(uses: Uses) -> str:
    """Why a weight cannot be rounded; empty where it can."""
    if uses.other:
        return f"also read by {uses.other[0]}"
    if not uses.linear and not uses.table:
        return "nothing reads it"
    return "read as it lies and turned over" if len(uses.turned) > 1 else ""


# --- where in the graph ---------------------------------------------------------------


def _heads(graph: Graph) -> frozenset[str]:
    """The weights of linear maps behind which nothing heavy is done any more."""
    return frozenset(_maps_behind(graph, list(graph.outputs.values())))


def _first_read(graph: Graph) -> frozenset[str]:
    """The weights of the linear maps that make query, key and value of the first
    attention.
    """
    for node, _ in graph.nodes:
        if isinstance(node.op, ops.Attend):
            read = node.op.query(node), node.op.key(node), node.op.values(node)
            return frozenset(_maps_behind(graph, list(read)))
    return frozenset()


def _maps_behind(graph: Graph, values: list[Value]) -> Iterable[str]:
    """The weights of the nearest linear maps that values are made of."""
    names = {value: name for name, value in graph.parameters.items()}
    seen: set[Value] = set()
    while values:
        value = values.pop()
        node = value.node
        if node is None or value in seen:
            continue
        seen.add(value)
        if product := product_of(node):
            weight = _whole(node.args[product.matrix])
            if weight in names:
                yield names[weight]
        elif not node.op.heavy:
            values += [a for a in node.args if a]


def _whole(value: Value | None) -> Value | None:
    """The weight that a value shows, turned over or cut."""
    while value is not None and value.node and moved(value.node, Sight("")):
        value = value.node.args[0]
    return value
