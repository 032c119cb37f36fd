"""The tree of blocks of a graph (shapes, parameters, cost, spec lines), and the selection of blocks
to expand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specc.analysis.model_cost import SummaryNode, format_dim_formula, summarize_graph
from specc.diagnostics.render import extract_docstring_summary
from specc.diagnostics.source import Span
from specc.driver.generation_graphs import derive_graphs
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.model import ModelDefinition
from specc.visualize.block_dataflow import (
    BlockDataflow,
    build_block_dataflow,
    find_node_scopes,
    is_scope_inside,
)

MAX_LINES = 24
"""Maximum number of spec lines that are shown for a block."""

BLOCK_KINDS: Mapping[str, tuple[type, ...]] = {
    "attention": (ops.Attend, ops.WeightedSum),
    "recurrent": (ops.RecurrentLayer, ops.QuantizedLstm, ops.Scan),
    "convolution": (ops.Conv, ops.ConvTranspose, ops.PatchEmbedding),
    "norm": (ops.LayerNorm, ops.RMSNorm, ops.GroupNorm),
    "embedding": (ops.Embedding, ops.QuantizedEmbedding, ops.Sinusoid),
    "experts": (ops.MixtureOfExperts,),
    "linear": (ops.Linear, ops.QuantizedLinear, ops.MatMul, ops.Einsum),
    "activation": (ops.Pointwise, ops.Softmax, ops.MaskedSoftmax, ops.Rotate),
}
"""The kind of a block by the ops in it; the first match applies."""

KIND_ORDER = ("attention", "experts", "recurrent", "convolution", "linear", "embedding", "norm")


@dataclass(frozen=True, kw_only=True)
class SpecLine:
    """A line of a spec: file name, line number and text."""

    file: str
    line_number: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Block:
    """A scope, or several equal scopes; `path` is the path of the first scope."""

    name: str
    path: str
    kind: str
    op: str
    output_type: str
    parameter_count: Dim
    multiply_adds: Dim
    saved_multiply_adds: Dim
    repeats: int
    description: str
    lines: tuple[SpecLine, ...]
    flow: BlockDataflow
    inner_blocks: Mapping[str, "Block"] = field(default_factory=dict)
    outer_path: str = ""
    """The outermost scope that is merged into the block; `path` is the innermost."""
    members: tuple[str, ...] = ()
    """The scopes of the enclosing block that this block represents."""

    @property
    def label(self) -> str:
        """The label of the block in a drawing. For a numbered block, it includes the parent and the
        main component, e.g. `layer.0 SelfAttention`.
        """
        if not self.name[:1].isdecimal():
            return self.name
        around = self.path.split(".")[: -len(self.name.split("."))]
        name = ".".join([*around[-1:], self.name])
        if not self.name.isdecimal():
            return name
        inner = [b for b in self.inner_blocks.values() if not b.name[0].isdecimal()]
        main = max(inner, key=lambda b: b.parameter_count.number or 0, default=None)
        return f"{name} {main.name if main else self.op}".rstrip()

    def walk_blocks(self) -> Iterator["Block"]:
        """Yield this block and all nested blocks, outermost first."""
        yield self
        for block in self.inner_blocks.values():
            yield from block.walk_blocks()


@dataclass(frozen=True, kw_only=True)
class _BlockBuilder:
    graph: Graph
    sizes: Mapping[str, int]
    node_scopes: Mapping[Node, str]

    def build_block(self, part: SummaryNode, name: str, path: str, outer: str) -> Block:
        """Build the block of a summary node; `outer` is the outermost scope that is merged into the
        block.
        """
        inner: dict[str, Block] = {}
        names: dict[str, str] = {}
        for child in part.parts.values():
            child_block = self._make_child(child, path)
            inner[child_block.name] = child_block
            names |= dict.fromkeys(child.members, child_block.name)
        nodes = [n for n, _ in self.graph.nodes if is_scope_inside(self._make_scope(n), path)]
        return Block(
            name=name,
            path=path,
            kind=classify_block(nodes),
            op="" if inner else part.op,
            output_type=format_dims(part.type.shape, self.sizes) if part.type else "",
            parameter_count=part.sum_over_subtree("parameter_count"),
            multiply_adds=part.sum_over_subtree("multiply_adds"),
            saved_multiply_adds=part.sum_over_subtree("saved_multiply_adds"),
            repeats=part.repeats,
            description="" if inner else _get_description(part.op, nodes),
            lines=tuple(self._iterate_lines(path, nodes))[:MAX_LINES],
            flow=build_block_dataflow(
                self.graph,
                self.node_scopes,
                outer,
                lambda home: names.get(_get_child_name(home, path), ""),
            ),
            inner_blocks=inner,
            outer_path=outer,
        )

    def _make_child(self, part: SummaryNode, path: str) -> Block:
        """Create the block of a nested scope. A scope with a single child is merged with this
        child.
        """
        merged_names, repeats, members_of_part = [part.name], 1, part.members
        outer = first = f"{path}.{part.members[0]}".lstrip(".")
        while (
            len(part.parts) == 1 and not part.parameter_count.terms and not part.multiply_adds.terms
        ):
            repeats *= part.repeats
            (part,) = part.parts.values()
            merged_names.append(part.name)
            first = f"{first}.{part.members[0]}"
            # of several equal layers, only the first is drawn
            outer = first if len(part.members) > 1 else outer
        child_block = self.build_block(part, ".".join(merged_names), first, outer)
        members = tuple(f"{path}.{name}".lstrip(".") for name in members_of_part)
        return replace(_merge_equal_blocks(child_block, repeats), members=members)

    def _make_scope(self, node: Node) -> str:
        return find_build_scope(self.graph, node)

    def _iterate_lines(self, path: str, nodes: list[Node]) -> Iterator[SpecLine]:
        """Yield the source lines of the nodes of a scope and of its direct children."""
        listed: set[tuple[str, int]] = set()
        for node in nodes:
            merged_names = self._make_scope(node).removeprefix(path).strip(".")
            if merged_names.count(".") > 0 and path:
                continue
            origin = self.graph.node_origins.get(node)
            for span in origin.spans[:1] if origin else ():
                span = span if path else _find_user_span(span)
                name, number = span.source.name, span.line
                if (name, number) not in listed:
                    listed.add((name, number))
                    text = span.source.get_line_text(number).strip()
                    yield SpecLine(file=name, line_number=number, text=text)


def _get_description(op: str, nodes: list[Node]) -> str:
    """Return the first paragraph of the documentation of an operation."""
    heavy = next((n for n in nodes if n.op.name == op), None)
    return extract_docstring_summary(heavy.op.__doc__) if heavy else ""


def _find_user_span(span: Span) -> Span:
    """Return the span of the user's call that led to a span in the standard library."""
    while span.caller is not None:
        span = span.caller
    return span


def format_dims(dims: Sequence[Dim], sizes: Mapping[str, int]) -> str:
    """Format the dimensions of a shape, e.g. `[batch, 8]`."""
    return f"[{', '.join(format_dim_formula(d, sizes) for d in dims)}]"


def _merge_equal_blocks(block: Block, repeats: int) -> Block:
    """Return a block that represents `repeats` equal blocks."""
    return replace(
        block,
        repeats=block.repeats * repeats,
        parameter_count=block.parameter_count * repeats,
        multiply_adds=block.multiply_adds * repeats,
        saved_multiply_adds=block.saved_multiply_adds * repeats,
    )


def classify_block(nodes: list[Node]) -> str:
    """Return the kind of a block, which selects its color: `attention` if it contains attention."""
    found = {k for k, types in BLOCK_KINDS.items() for n in nodes if isinstance(n.op, types)}
    return next((k for k in (*KIND_ORDER, *BLOCK_KINDS) if k in found), "other")


def build_block_tree(graph: Graph, sizes: Mapping[str, int] | None = None) -> Block:
    """Build the block tree of a graph; the root has the name of the graph."""
    maker = _BlockBuilder(graph=graph, sizes=sizes or {}, node_scopes=find_node_scopes(graph))
    return maker.build_block(summarize_graph(graph, sizes), graph.name, "", "")


def _get_child_name(scope: str, path: str) -> str:
    """Return the name of the direct child of a path that contains a scope, or "" if the scope is
    not below the path.
    """
    if scope == path or not is_scope_inside(scope, path):
        return ""
    return scope.removeprefix(path).lstrip(".").split(".")[0]


def find_build_scope(graph: Graph, node: Node) -> str:
    """Return the path under which a node was first built."""
    origin = graph.node_origins.get(node)
    return origin.scopes[0] if origin and origin.scopes else ""


WHOLE_MODEL = "whole"


def map_model_graphs(model: ModelDefinition) -> dict[str, Graph]:
    """Return the graph of a spec, and the graphs derived for generation if the spec has a
    `generate` section. Raise E0711 to E0718.
    """
    found = {WHOLE_MODEL: model.graph}
    if model.generation is not None:
        derived = derive_graphs(model.graph, model.generation, defaults=model.defaults)
        if derived.encode is not None:
            found["encode"] = derived.encode
        found["step"] = derived.step
    return found


BlockPredicate = Callable[[Block], bool]


def expand_blocks(block: Block, max_items: int) -> BlockPredicate:
    """Select the blocks to expand, outermost first, while at most `max_items` items are drawn."""
    expanded: set[str] = set()
    for depth in range(1, 8):
        trial = {b.path for b in _iterate_within(block, depth) if _is_composed(b)}
        if _count_shown_items(block, trial) > max_items:
            break
        expanded = trial
    # show residual connections
    for outer in block.walk_blocks():
        if outer is block or outer.path in expanded:
            expanded |= {
                inner.path for inner in outer.inner_blocks.values() if _has_residual(inner)
            }
    return lambda b: b.path in expanded


def _count_shown_items(block: Block, expanded: set[str]) -> int:
    """Count the items of a drawing in which the blocks with these paths are expanded."""
    inner = sum(len(b.flow.items) for b in block.walk_blocks() if b.path in expanded)
    return len(block.flow.items) + inner


def _has_residual(block: Block) -> bool:
    """Return True if a block adds one of its inputs to a computed value."""
    items = block.flow.items
    reads = {b for a, b in block.flow.edges if items[a].role == "port"}
    return _is_composed(block) and any(items[n].name == "+" for n in reads)


def _is_composed(block: Block) -> bool:
    """Return True if a block contains several blocks or operations."""
    parts = [i for i in block.flow.items if i.role in ("block", "op")]
    return bool(block.inner_blocks) and len(parts) > 1


def _iterate_within(block: Block, depth: int) -> list[Block]:
    """Return the blocks that are nested in a block up to a depth."""
    inner = list(block.inner_blocks.values())
    if depth <= 1:
        return inner
    return inner + [b for child in inner for b in _iterate_within(child, depth - 1)]
