"""What a spec says beside its graph: how inputs are read, results shown, text generated."""

from collections.abc import Mapping

from specc.decode.option_faults import Vocabulary
from specc.elaborate.context import Context, Env
from specc.elaborate.data import described
from specc.elaborate.generating import generation_settings, vocabulary_of
from specc.elaborate.modules import Program
from specc.ir.graph import Graph
from specc.ir.model import Generation
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, fail
from specc.text.source import Span
from specc.text.suggest import suggest


def generation_of(
    context: Context, program: Program, block: tree.Block, env: Env, made: Graph
) -> tuple[Generation | None, tuple[Diagnostic, ...]]:
    """What the spec says of generating, and warnings about it."""
    for item, _ in program.items(tree.Generate):
        inputs, results = (
            [p.name for p in block.params],
            [p.name for p in block.results],
        )
        for name, known, word in (
            (item.growing, inputs, "input"),
            (item.source, results, "result"),
        ):
            if name not in known:
                helps = suggest(name, known, f"it has {', '.join(known)}")
                fail(
                    "E0221",
                    f"the graph `{block.name}` has no {word} `{name}`",
                    item.span,
                    helps=helps,
                )
        # nothing is written of a symbolic reading; names and plain values are checked
        if context.symbolic:
            generation_settings(context, item, env, Vocabulary())
            return Generation(item.name, item.growing, item.source), ()
        vocabulary = vocabulary_of(made, item.growing, item.source)
        settings, warnings = generation_settings(context, item, env, vocabulary)
        return Generation(item.name, item.growing, item.source, settings), warnings
    return None, ()


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
    sides, what = block.params, "input"
    if kind is tree.Shows:
        sides, what = block.results, "result"
    known = [p.name for p in sides]
    for item, module in program.items(tree.Reading):
        for entry in item.entries:
            if not isinstance(entry, kind) or entry.name in data:
                continue
            if entry.name not in known:
                helps = suggest(entry.name, known, f"there are {', '.join(known)}")
                title = f"the graph `{block.name}` has no {what} `{entry.name}`"
                fail("E0221", title, entry.span, helps=helps)
            told = _call_data(described(context, entry.value, env), entry.span)
            data[entry.name] = {"home": module.path, **told}
    return data


def _call_data(data: object, span: Span | None) -> dict[str, object]:
    if not isinstance(data, dict):
        fail("E0203", "say how: `image(…)`, `text(…)`, `choice(…)`, `numbers()`", span)
    return data
