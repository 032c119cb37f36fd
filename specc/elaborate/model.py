"""A whole spec to a model: config read, requirements held, the graph built, what stands around it noted."""

from collections.abc import Iterable, Mapping
from typing import Any

from specc.elaborate.blocks import finish
from specc.elaborate.budget import Steps, deep
from specc.elaborate.calls import call, held
from specc.elaborate.config import Reader, read_config
from specc.elaborate.context import Context, Env, Library, Module, undecided
from specc.elaborate.data import data_of, described
from specc.elaborate.expressions import evaluate
from specc.elaborate.facts import assume
from specc.elaborate.generating import generation_settings, vocabulary_of
from specc.elaborate.modules import Assigned, Program, assign, paths_of, program_of
from specc.elaborate.names import say_shared
from specc.elaborate.needs import NeedsValue
from specc.elaborate.statements import require, run_body
from specc.elaborate.typing import declared, is_tensor, match_tensor
from specc.elaborate.values import RawConfig, Record, Results, Tensor, describe, first
from specc.generation.options import Vocabulary
from specc.ir.defaults import in_a_circle
from specc.ir.dim import Dim, DimLimit
from specc.ir.graph import Builder, Graph, Input, Value
from specc.ir.model import DEFAULTS, Generation, Model
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Span
from specc.text.suggest import did_you_mean


def context_of(
    library: Library, program: Program | None = None, *, symbolic: bool = False, steps: Steps | None = None
) -> Context:
    """A fresh context with its knots tied. With symbols, what `program` calls `dims` stays one when the model runs."""
    made = Context(library, symbolic=symbolic, steps=steps or Steps())
    if program is not None:
        made.lengths = frozenset(program.module.dims) - paths_of(program.fields()).keys()
    made.evaluate, made.call, made.held = evaluate, call, held
    made.configure = lambda c, module, given, span: _configure(c, module, given, span)
    return made


def elaborate(program: Program, library: Library, reader: Reader, graph: str = "") -> Model:
    """The model a program describes. Raises Failed with everything found wrong; with symbols also NeedsValue."""
    try:
        with deep(program.module.file.span):
            return _elaborated(program, library, reader, graph)
    except NeedsValue as need:
        if reader.symbolic:
            raise
        undecided(need)
    except DimLimit as error:
        fail("E0309", str(error), program.module.file.span)


def _elaborated(program: Program, library: Library, reader: Reader, graph: str) -> Model:
    context = context_of(library, program, symbolic=reader.symbolic, steps=reader.steps)
    config = requirements(context, program, reader)
    say_shared(context, (item for item, _ in program.items(tree.Weights)), Env(program.module, config))
    block = _graph_of(program, graph)
    made = _run_graph(context, program, block, config, reader)
    if context.diagnostics:
        raise Failed(*context.diagnostics, *_dropped(context))
    env = Env(program.module, config)
    defaults = _defaults(library, program, block, config, reader)
    generation, warnings = _generation(context, program, block, env, made)
    return Model(
        program.name,
        program.doc,
        made,
        defaults,
        generation,
        {} if reader.symbolic else _reading(context, program, block, env, tree.Reads),
        {} if reader.symbolic else _reading(context, program, block, env, tree.Shows),
        {} if reader.symbolic else {k: data_of(v) for k, v in config.items()},
        context.sharing.needed,
        warnings,
    )


def _dropped(context: Context) -> list[Diagnostic]:
    if not context.dropped:
        return []
    return [Diagnostic("E0100", f"{context.dropped} more errors are not shown")]


def requirements(context: Context, program: Program, reader: Reader) -> dict[str, Any]:
    """The config's values, held against what the spec requires of them."""
    config = read_config(context, program, reader)
    given = {path: value.span for path, value in program.assigned.items()}
    for item, _ in program.items(tree.Require):
        try:
            with context.catching():
                require(context, item, Env(program.module, config), given)
        except NeedsValue:
            config = assume(context, item.condition, config, Env(program.module, config))
    if context.diagnostics:
        raise Failed(*context.diagnostics)
    return config


def _graph_of(program: Program, name: str) -> tree.Block:
    graphs = [i for i in program.module.items.values() if isinstance(i, tree.Block) and i.kind == "graph"]
    if not graphs:
        fail(
            "E0219",
            f"`{program.module.path}` has no graph",
            helps=["a model is one `graph name(inputs) -> (results) { … }`"],
        )
    for block in graphs:
        if not name or block.name == name:
            return block
    near = did_you_mean(name, [g.name for g in graphs])
    hint = near or ", ".join(g.name for g in graphs)
    fail("E0219", f"`{program.module.path}` has no graph called `{name}`", helps=[f"did you mean {hint}?"])


def _run_graph(context: Context, program: Program, block: tree.Block, config: dict[str, Any], reader: Reader) -> Graph:
    env = Env(program.module, config, raw=reader.raw)
    env.dims.update(_facts(context, block, env))
    _inputs(context, block, env)
    if context.diagnostics:
        raise Failed(*context.diagnostics)
    results = Results(())
    with context.catching():
        context.calls.append(f"{block.name}@{block.name_span}")
        results = finish(context, block, run_body(context, block.body, env), env)
    if context.diagnostics:
        raise Failed(*context.diagnostics, *_dropped(context))
    outputs = {n or "output": v.value for n, v in zip(results.names, results.values, strict=True)}
    facts = {e.name: env.dims[e.name] for e in block.where}
    least = {n: m for n, m in program.module.dims.items() if m}
    return context.builder.finish(block.name, outputs, least=least, facts=facts)


def _facts(context: Context, block: tree.Block, env: Env) -> dict[str, Dim]:
    """`where total = past + seq`: lengths that are others in disguise."""
    found: dict[str, Dim] = {}
    for equation in block.where:
        value = first(evaluate(context, equation.value, env))
        if not isinstance(value, Dim):
            fail("E0303", f"`{equation.name}` is a length, not {describe(value)}", equation.span)
        found[equation.name] = value
    return found


def _inputs(context: Context, block: tree.Block, env: Env) -> None:
    for param in block.params:
        with context.catching():
            if not is_tensor(param.type):
                helps = [f"put `{param.name}` into `config`, or give it axes: float[], int[batch, n]"]
                fail("E0303", f"the input `{param.name}` of a graph is a tensor", param.span, helps=helps)
            shown = param.type.span.text if param.type.span else param.type.name
            made = declared(context, param.type, env, f"the input `{param.name}: {shown}`")
            side: Any = (param.type.side or "any") if param.type.name == "keep" else ""
            value = context.builder.input(param.name, Input(made, side, None, param.span))
            env.names[param.name] = Tensor(value, param.span)


def _defaults(
    library: Library, program: Program, block: tree.Block, config: dict[str, Any], reader: Reader
) -> Graph | None:
    """The graph that computes inputs with `= expr` from the others."""
    absent = [p for p in block.params if p.default is not None]
    if not absent:
        return None
    context = context_of(library, program, symbolic=reader.symbolic, steps=reader.steps)
    env = Env(program.module, config, raw=reader.raw)
    env.dims.update(_facts(context, block, env))
    _inputs(context, block, env)
    outputs = {}
    for param in absent:
        with context.catching():
            value = first(evaluate(context, param.default, env))
            span = param.default.span if param.default else None
            made = match_tensor(context, param.type, value, env, span, f"the default of `{param.name}`")
            outputs[param.name] = made.value
    if context.diagnostics:
        raise Failed(*context.diagnostics)
    graph = context.builder.finish(DEFAULTS, outputs)
    if name := in_a_circle(graph):
        span = next((p.default.span for p in absent if p.name == name and p.default), None)
        helps = ["let one of the defaults follow from an input without one"]
        fail("E0210", f"the default of `{name}` is defined by itself", span, "this follows from it", helps=helps)
    inputs = _read_by(graph)
    kept = Builder(inputs, nodes=dict(graph.nodes), made=dict(graph.made))
    kept.input_facts = {k: graph.input_facts[k] for k in kept.inputs}
    return kept.finish(DEFAULTS, outputs)


def _read_by(defaults: Graph) -> dict[str, Value]:
    """The inputs that defaults read, and those off which they only read a length."""

    def symbols(values: Iterable[Value]) -> set[str]:
        return {s for v in values for d in v.type.shape for s in d.symbols()}

    read = {a for n, _ in defaults.nodes for a in n.args} | set(defaults.outputs.values())
    untold = symbols(r for _, results in defaults.nodes for r in results)
    untold -= symbols(v for v in defaults.inputs.values() if v in read)
    lengths = {k for k, v in defaults.inputs.items() if k not in defaults.outputs and symbols([v]) & untold}
    return {k: v for k, v in defaults.inputs.items() if v in read or k in lengths}


def _generation(
    context: Context, program: Program, block: tree.Block, env: Env, made: Graph
) -> tuple[Generation | None, tuple[Diagnostic, ...]]:
    """What the spec says of generating, and warnings about it."""
    for item, _ in program.items(tree.Generate):
        inputs, results = [p.name for p in block.params], [p.name for p in block.results]
        for name, known, word in ((item.growing, inputs, "input"), (item.source, results, "result")):
            if name not in known:
                near = did_you_mean(name, known)
                hint = f"did you mean `{near}`?" if near else f"it has {', '.join(known)}"
                fail("E0221", f"the graph `{block.name}` has no {word} `{name}`", item.span, helps=[hint])
        if context.symbolic:
            generation_settings(context, item, env, Vocabulary())
            return Generation(item.name, item.growing, item.source), ()
        vocabulary = vocabulary_of(made, item.growing, item.source)
        settings, warnings = generation_settings(context, item, env, vocabulary)
        return Generation(item.name, item.growing, item.source, settings), warnings
    return None, ()


def _reading(context: Context, program: Program, block: tree.Block, env: Env, kind: type) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    known = [p.name for p in (block.params if kind is tree.Reads else block.results)]
    for item, module in program.items(tree.Reading):
        entries: list[Any] = [e for e in item.entries if isinstance(e, kind)]
        for entry in entries:
            if entry.name in found:
                continue
            if entry.name not in known:
                near = did_you_mean(entry.name, known)
                hint = f"did you mean `{near}`?" if near else f"there are {', '.join(known)}"
                what = "input" if kind is tree.Reads else "result"
                fail("E0221", f"the graph `{block.name}` has no {what} `{entry.name}`", entry.span, helps=[hint])
            found[entry.name] = {"home": module.path, **_call_data(described(context, entry.value, env), entry.span)}
    return found


def _call_data(data: Any, span: Span | None) -> dict[str, Any]:
    if not isinstance(data, dict):
        fail("E0203", "say how: `image(…)`, `text(…)`, `choice(…)`, `numbers()`", span)
    return data


def _configure(context: Context, module: Module, given: Any, span: Span | None) -> dict[str, Any]:
    """The config of a used spec: values from a record or a part of the config file, else its defaults."""
    program = program_of(module, context.library)
    reader = Reader(symbolic=False)
    if isinstance(given, Record):
        flat: dict[str, Assigned] = {}
        _flatten_values("", given, span, flat)
        values = read_config(context, assign(program, {}), Reader(fixed={k: a.value for k, a in flat.items()}))
        unknown = [k for k in flat if k not in {f.name for f in program.fields()}]
        if unknown:
            title = f"the config of `{module.path}` has no `{unknown[0]}`"
            raise Failed(Diagnostic("E0201", title, Label(span) if span else None))
        return values
    if isinstance(given, RawConfig):
        reader = Reader(raw=given.data, published=context.library.published)
    return read_config(context, program, reader)


def _flatten_values(path: str, record: Record, span: Span | None, into: dict[str, Assigned]) -> None:
    for name, value in record.fields.items():
        into[f"{path}{name}"] = Assigned(value, span)
