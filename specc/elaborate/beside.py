"""What a spec says beside its graph: how inputs are read, results shown, text generated."""

from collections.abc import Mapping
from typing import NoReturn

from specc.decode.option_faults import Vocabulary
from specc.elaborate.context import Context, Env
from specc.elaborate.data import described
from specc.elaborate.generating import generation_settings, vocabulary_of
from specc.elaborate.modules import Program
from specc.ir.graph import Graph
from specc.ir.model import Generation, Streaming
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, fail
from specc.text.source import Span
from specc.text.suggest import suggest


def generation_of(
    context: Context, program: Program, block: tree.Block, env: Env, made: Graph
) -> tuple[Generation | None, tuple[Diagnostic, ...]]:
    """What the spec says of generating, and warnings about it."""
    for item, _ in program.items(tree.Generate):
        graphs = graphs_of(program)
        # What writes is one head of several: the others score, classify or embed.
        if not _writes(block, item) and any(_writes(g, item) for g in graphs):
            return None, ()
        _check_names(block, item)
        # nothing is written of a symbolic reading; names and plain values are checked
        if context.symbolic:
            generation_settings(context, item, env, Vocabulary())
            return Generation(item.name, item.growing, item.source), ()
        vocabulary = vocabulary_of(made, item.growing, item.source)
        settings, warnings = generation_settings(context, item, env, vocabulary)
        return Generation(item.name, item.growing, item.source, settings), warnings
    return None, ()


def streaming_of(
    program: Program, block: tree.Block, generation: Generation | None
) -> Streaming | None:
    """What the spec says is made of a graph's input while its rows come. E0221 for names
    that no graph has, E0975 where one graph grows along two inputs.
    """
    said = [
        item
        for item, _ in program.items(tree.Stream)
        if _has(block, item) or not any(_has(g, item) for g in graphs_of(program))
    ]
    for item in said:
        _check_names(block, item)
        _check_rows(block, item)
    growing = [item.growing for item in said]
    # What is drawn of rows that grow, and what is made of rows that come, is one graph's
    # only along one input; a text has no rows but those that were written.
    other = next((i for i in said if generation or i.growing != growing[0]), None)
    if other is not None:
        already = f"it is streamed along `{growing[0]}`"
        if generation:
            already = f"`generate` has it written along `{generation.growing}`"
        _grows_already(block, other, already)
    if not said:
        return None
    return Streaming(growing[0], tuple(dict.fromkeys(item.source for item in said)))


def _grows_already(block: tree.Block, item: tree.Stream, already: str) -> NoReturn:
    fail(
        "E0975",
        f"the graph `{block.name}` cannot be streamed along `{item.growing}`, for "
        f"{already}",
        item.span,
        "a second time here",
        helps=["make a second graph for it: a spec may have several"],
    )


def _check_rows(block: tree.Block, item: tree.Stream) -> None:
    """E0702 for an input that has no rows behind the batch."""
    for param in block.params:
        if param.name == item.growing and len(param.type.dims or ()) < 2:
            fail(
                "E0702",
                f"`{param.name}` cannot come row by row: it has no axis behind the batch",
                item.span,
                helps=["give it the axes [batch, length], the length from `dims`"],
            )


def _has(block: tree.Block, item: tree.Stream) -> bool:
    """Whether a graph has both names."""
    inputs, results = [p.name for p in block.params], [r.name for r in block.results]
    return item.growing in inputs and item.source in results


def graphs_of(program: Program) -> list[tree.Block]:
    """Every graph of a spec, in the order of the file."""
    blocks = [i for i in program.module.items.values() if isinstance(i, tree.Block)]
    return [block for block in blocks if block.kind == "graph"]


def _writes(block: tree.Block, item: tree.Generate) -> bool:
    """Whether a graph has the input that grows and a result along the axis it grows by."""
    growing = next((p for p in block.params if p.name == item.growing), None)
    source = next((r for r in block.results if r.name == item.source), None)
    if growing is None or source is None or len(growing.type.dims or ()) < 2:
        return False
    names = [d.path for d in source.type.dims or () if isinstance(d, tree.Name)]
    axis = (growing.type.dims or ())[1]
    return isinstance(axis, tree.Name) and axis.path in names


def _check_names(block: tree.Block, item: tree.Generate | tree.Stream) -> None:
    """E0221 for an input or a result that the graph does not have."""
    for name, sides, word in (
        (item.growing, block.params, "input"),
        (item.source, block.results, "result"),
    ):
        known = [side.name for side in sides]
        if name not in known:
            helps = suggest(name, known, f"it has {', '.join(known)}")
            title = f"the graph `{block.name}` has no {word} `{name}`"
            fail("E0221", title, item.span, helps=helps)


def readings_of(
    context: Context,
    program: Program,
    block: tree.Block,
    env: Env,
    kind: type[tree.Reads] | type[tree.Shows],
) -> Mapping[str, object]:
    """How inputs are read, or results shown, as data for the manifest. What an instance
    says stands before what it extends says, and wins.
    """
    data: dict[str, object] = {}
    what = "result" if kind is tree.Shows else "input"
    known = _side(block, what)
    every = {name for graph in graphs_of(program) for name in _side(graph, what)}
    for item, module in program.items(tree.Reading):
        for entry in item.entries:
            if not isinstance(entry, kind) or entry.name in data:
                continue
            if entry.name in every.difference(known):
                continue  # it is for another graph of the spec
            if entry.name not in known:
                helps = suggest(entry.name, known, f"there are {', '.join(known)}")
                title = f"the graph `{block.name}` has no {what} `{entry.name}`"
                fail("E0221", title, entry.span, helps=helps)
            told = _call_data(described(context, entry.value, env), entry.span)
            data[entry.name] = {"home": module.path, **told}
    return data


def _side(graph: tree.Block, what: str) -> list[str]:
    sides = graph.results if what == "result" else graph.params
    return [side.name for side in sides]


def _call_data(data: object, span: Span | None) -> dict[str, object]:
    if not isinstance(data, dict):
        fail("E0203", "say how: `image(…)`, `text(…)`, `choice(…)`, `numbers()`", span)
    return data
