"""Build the block tree of a graph, with shapes, parameter counts, costs and spec lines. Select the
blocks that diagrams expand.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from specc.analysis.model_cost import format_dim_formula
from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import extract_docstring_summary
from specc.driver.generation_graphs import derive_generation_graphs
from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Node
from specc.ir.model_definition import ModelDefinition
from specc.visualize.block_dataflow import (
    BlockDataflow,
    build_block_dataflow,
    find_node_scopes,
    is_scope_inside,
)
from specc.visualize.scope_summary import ScopeSummary, summarize_graph

MAX_LINES = 24
"""The maximum number of spec lines shown for a block."""

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
"""The op classes that determine the kind of a block. If a block has ops of several kinds, its kind
is the first of them in `KIND_ORDER`, or otherwise in this table.
"""

KIND_ORDER = ("attention", "experts", "recurrent", "convolution", "linear", "embedding", "norm")


@immutable_dataclass(kw_only=True)
class SpecLine:
    """A source line of a spec: file name, line number and text."""

    file: str
    line_number: int
    text: str


@immutable_dataclass(kw_only=True)
class Block:
    """A scope of a graph, or a group of `repeats` equal scopes. `path` is the path of the first
    scope. Costs and parameter counts are sums over the equal scopes.
    """

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
    """The outermost scope that is merged into the block. `path` is the innermost scope."""
    members: tuple[str, ...] = ()
    """The equal scopes in the enclosing block that this block represents."""

    @property
    def label(self) -> str:
        """The diagram label of the block. The label of a numbered block includes the parent and the
        main component, as in `layer.0 SelfAttention`.
        """
        if not self.name[:1].isdecimal():
            return self.name
        parents = self.path.split(".")[: -len(self.name.split("."))]
        name = ".".join([*parents[-1:], self.name])
        if not self.name.isdecimal():
            return name
        named_blocks = [b for b in self.inner_blocks.values() if not b.name[0].isdecimal()]
        main = max(named_blocks, key=lambda b: b.parameter_count.number or 0, default=None)
        return f"{name} {main.name if main else self.op}".rstrip()

    def walk_blocks(self) -> Iterator["Block"]:
        """Yield the block and all nested blocks, outermost first."""
        yield self
        for block in self.inner_blocks.values():
            yield from block.walk_blocks()


@immutable_dataclass(kw_only=True)
class _BlockBuilder:
    """A builder of the blocks of a graph. `sizes` are the sizes of symbolic dimensions."""

    graph: Graph
    sizes: Mapping[str, int]
    node_scopes: Mapping[Node, str]

    def build_block(self, summary: ScopeSummary, name: str, path: str, outer: str) -> Block:
        """Build the block of a summary node. `outer` is the outermost scope that is merged into the
        block.
        """
        inner_blocks: dict[str, Block] = {}
        block_names: dict[str, str] = {}
        for child in summary.children.values():
            child_block = self._make_child(child, path)
            inner_blocks[child_block.name] = child_block
            block_names |= dict.fromkeys(child.members, child_block.name)
        nodes = [n for n, _ in self.graph.nodes if is_scope_inside(self.graph.get_scope(n), path)]
        return Block(
            name=name,
            path=path,
            kind=classify_block(nodes),
            op="" if inner_blocks else summary.op,
            output_type=format_dims(summary.type.shape, self.sizes) if summary.type else "",
            parameter_count=summary.sum_over_subtree("parameter_count"),
            multiply_adds=summary.sum_over_subtree("multiply_adds"),
            saved_multiply_adds=summary.sum_over_subtree("saved_multiply_adds"),
            repeats=summary.repeats,
            description="" if inner_blocks else _get_description(summary.op, nodes),
            lines=tuple(self._iterate_lines(path, nodes))[:MAX_LINES],
            flow=build_block_dataflow(
                self.graph,
                self.node_scopes,
                outer,
                lambda scope: block_names.get(_get_child_name(scope, path), ""),
            ),
            inner_blocks=inner_blocks,
            outer_path=outer,
        )

    def _make_child(self, summary: ScopeSummary, path: str) -> Block:
        """Create the block of a nested scope. Merge a block with its child if it has only one."""
        merged_names, repeats, members_of_part = [summary.name], 1, summary.members
        outer = path_of_first = f"{path}.{summary.members[0]}".lstrip(".")
        while (
            len(summary.children) == 1
            and not summary.parameter_count.terms
            and not summary.multiply_adds.terms
        ):
            repeats *= summary.repeats
            (summary,) = summary.children.values()
            merged_names.append(summary.name)
            path_of_first = f"{path_of_first}.{summary.members[0]}"
            # only the first of several equal layers is drawn in the diagram
            outer = path_of_first if len(summary.members) > 1 else outer
        child_block = self.build_block(summary, ".".join(merged_names), path_of_first, outer)
        members = tuple(f"{path}.{name}".lstrip(".") for name in members_of_part)
        return replace(_repeat_block(child_block, repeats), members=members)

    def _iterate_lines(self, path: str, nodes: list[Node]) -> Iterator[SpecLine]:
        """Yield the source lines of the nodes in a scope and in its direct children."""
        seen_lines: set[tuple[str, int]] = set()
        for node in nodes:
            relative_scope = self.graph.get_scope(node).removeprefix(path).strip(".")
            if relative_scope.count(".") > 0 and path:
                continue
            for span in self.graph.get_origin(node).spans[:1]:
                span = span if path else _find_user_span(span)
                name, number = span.source.name, span.line
                if (name, number) not in seen_lines:
                    seen_lines.add((name, number))
                    text = span.source.get_line_text(number).strip()
                    yield SpecLine(file=name, line_number=number, text=text)


def _get_description(op: str, nodes: list[Node]) -> str:
    """Return the summary from the documentation of an op, or "" if no node has the op."""
    node = next((n for n in nodes if n.op.name == op), None)
    return extract_docstring_summary(node.op.__doc__) if node else ""


def _find_user_span(span: Span) -> Span:
    """Return the source span in the user's spec from which a span in the standard library was
    called.
    """
    while span.caller is not None:
        span = span.caller
    return span


def format_dims(dims: Sequence[Dim], sizes: Mapping[str, int]) -> str:
    """Format the dimensions of a shape, as in `[batch, 8]`."""
    return f"[{', '.join(format_dim_formula(d, sizes) for d in dims)}]"


def _repeat_block(block: Block, repeats: int) -> Block:
    """Return a block that represents `repeats` blocks equal to `block`."""
    return replace(
        block,
        repeats=block.repeats * repeats,
        parameter_count=block.parameter_count * repeats,
        multiply_adds=block.multiply_adds * repeats,
        saved_multiply_adds=block.saved_multiply_adds * repeats,
    )


def classify_block(nodes: list[Node]) -> str:
    """Return the kind of a block, which determines its color: a key of `BLOCK_KINDS` or `other`."""
    kinds = {k for k, types in BLOCK_KINDS.items() for n in nodes if isinstance(n.op, types)}
    return next((k for k in (*KIND_ORDER, *BLOCK_KINDS) if k in kinds), "other")


def build_diagram_block_tree(graph: Graph, sizes: Mapping[str, int] | None = None) -> Block:
    """Build the block tree of a graph. The root block has the name of the graph. `sizes` contains
    the sizes of symbolic dimensions in output types and costs.
    """
    builder = _BlockBuilder(graph=graph, sizes=sizes or {}, node_scopes=find_node_scopes(graph))
    return builder.build_block(summarize_graph(graph, sizes), graph.name, "", "")


def _get_child_name(scope: str, path: str) -> str:
    """Return the name of the child of `path` that contains a scope, or "" if there is none."""
    if scope == path or not is_scope_inside(scope, path):
        return ""
    return scope.removeprefix(path).lstrip(".").split(".")[0]


WHOLE_MODEL = "whole"


def list_model_graphs(model: ModelDefinition) -> dict[str, Graph]:
    """Return the graph of a spec and the graphs that are derived for generation, by name. Raise one
    of E0711 to E0718 if no graphs can be derived for generation.
    """
    graphs = {WHOLE_MODEL: model.graph}
    if model.generation is not None:
        derived_graphs = derive_generation_graphs(
            model.graph, model.generation, defaults=model.defaults
        )
        if derived_graphs.encode is not None:
            graphs["encode"] = derived_graphs.encode
        graphs["step"] = derived_graphs.step
    return graphs


BlockPredicate = Callable[[Block], bool]


def choose_blocks_to_expand(block: Block, max_items: int) -> BlockPredicate:
    """Return a predicate that is true for blocks to expand. Outer blocks are expanded first, as
    long as the diagram has at most `max_items` items. Blocks with a residual connection in an
    expanded block are always expanded.
    """
    expanded: set[str] = set()
    for depth in range(1, 8):
        candidates = {b.path for b in _list_nested_blocks(block, depth) if _is_composed(b)}
        if _count_shown_items(block, candidates) > max_items:
            break
        expanded = candidates
    # expand blocks that contain residual connections
    for block_inside in block.walk_blocks():
        if block_inside is block or block_inside.path in expanded:
            expanded |= {
                inner_block.path
                for inner_block in block_inside.inner_blocks.values()
                if _has_residual(inner_block)
            }
    return lambda b: b.path in expanded


def _count_shown_items(block: Block, expanded: set[str]) -> int:
    """Count the items of a diagram in which the blocks with the paths `expanded` are expanded."""
    inner_count = sum(len(b.flow.items) for b in block.walk_blocks() if b.path in expanded)
    return len(block.flow.items) + inner_count


def _has_residual(block: Block) -> bool:
    """Return True if a block adds one of its inputs to a value that it computes."""
    items = block.flow.items
    consumers = {b for a, b in block.flow.edges if items[a].role == "port"}
    return _is_composed(block) and any(items[n].name == "+" for n in consumers)


def _is_composed(block: Block) -> bool:
    """Return True if a block contains more than one nested block or operation."""
    steps = [i for i in block.flow.items if i.role in ("block", "op")]
    return bool(block.inner_blocks) and len(steps) > 1


def _list_nested_blocks(block: Block, depth: int) -> list[Block]:
    """Return all blocks that are nested in a block, up to `depth` levels deep."""
    inner_blocks = list(block.inner_blocks.values())
    if depth <= 1:
        return inner_blocks
    return inner_blocks + [
        b for child in inner_blocks for b in _list_nested_blocks(child, depth - 1)
    ]
