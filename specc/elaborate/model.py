"""A whole spec to a model: config read, requirements held, the graph built, what stands
around it noted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

from specc.elaborate.beside import generation_of, readings_of, streaming_of
from specc.elaborate.blame import blamed
from specc.elaborate.blocks import finish
from specc.elaborate.budget import Steps, deep
from specc.elaborate.calls import call, held
from specc.elaborate.config import Reader, read_config
from specc.elaborate.context import Context, Env, Library, Module, undecided
from specc.elaborate.data import data_of
from specc.elaborate.expressions import evaluate
from specc.elaborate.facts import assume
from specc.elaborate.foreseen import Foreseen
from specc.elaborate.length_equations import check_lengths_known, read_equations
from specc.elaborate.modules import Program, assign, program_of
from specc.elaborate.names import say_shared
from specc.elaborate.needs import NeedsValue
from specc.elaborate.noted import reading
from specc.elaborate.parts import used_specs, within
from specc.elaborate.statements import require, run_body
from specc.elaborate.typing import Place, declared, is_tensor, match_tensor
from specc.elaborate.values import (
    POISON,
    Evaluated,
    Known,
    RawConfig,
    Record,
    Results,
    Settings,
    Tensor,
    first,
)
from specc.ir.defaults import in_a_circle
from specc.ir.dim import DimLimit
from specc.ir.graph import Builder, Graph, Input, Value
from specc.ir.model import DEFAULTS, Model
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, fail
from specc.text.source import Span
from specc.text.suggest import suggest

SIDES: Mapping[str, Literal["left", "right", "any"]] = {
    "": "any",
    "left": "left",
    "right": "right",
}
"""On which side rows may be left out, by the word behind `keep[…]`."""


def context_of(
    library: Library,
    program: Program | None = None,
    *,
    reader: Reader | None = None,
) -> Context:
    """A fresh context; with symbols, what `program` calls `dims` stays one at run time."""
    reader = reader or Reader()
    lengths: frozenset[str] = frozenset()
    if program is not None:
        # a config value may bear the name of a length, and then is what is meant
        lengths = frozenset(program.module.dims) - program.paths().keys()
    return Context(
        library=library,
        evaluator=_Knot(library),
        symbolic=reader.symbolic,
        steps=reader.steps,
        lengths=lengths,
        longest=reader.longest,
    )


def elaborate(
    program: Program, library: Library, reader: Reader, graph: str = ""
) -> Model:
    """The model a program describes. Raises Failed with everything found wrong; with
    symbols also NeedsValue.
    """
    try:
        with deep(program.module.file.span), reading(symbolic=reader.symbolic):
            return _elaborated(program, library, reader, graph)
    except NeedsValue as need:
        if reader.symbolic:
            raise
        undecided(need)
    except DimLimit as error:
        fail("E0309", str(error), program.module.file.span)


def _elaborated(
    program: Program, library: Library, reader: Reader, graph: str
) -> Model:
    context = context_of(library, program, reader=reader)
    config = requirements(context, program, reader)
    say_shared(
        context,
        (item for item, _ in program.items(tree.Weights)),
        Env(module=program.module, config=config),
    )
    for used, _, env in used_specs(program, config):
        rules = (item for item, _ in used.items(tree.Weights))
        say_shared(context, rules, env, lent=True)
    block = _graph_of(program, graph)
    built = _run_graph(context, program, block, config, reader)
    if context.diagnostics:
        raise Failed(*context.diagnostics, *_dropped(context))
    env = Env(module=program.module, config=config)
    defaults = _defaults(library, program, block, config, reader)
    generation, warnings = generation_of(context, program, block, env, built)
    model = Model(
        name=program.name,
        doc=program.doc,
        graph=built,
        defaults=defaults,
        generation=generation,
        streaming=streaming_of(program, block, generation),
        shares=context.sharing.needed,
        warnings=warnings,
    )
    if reader.symbolic:  # a manifest is written of numbers alone
        return model
    return replace(
        model,
        reading=readings_of(context, program, block, env, tree.Reads),
        showing=readings_of(context, program, block, env, tree.Shows),
        config={k: data_of(v) for k, v in config.items()},
    )


def _dropped(context: Context) -> list[Diagnostic]:
    if not context.dropped:
        return []
    return [Diagnostic("E0100", f"{context.dropped} more errors are not shown")]


def requirements(
    context: Context, program: Program, reader: Reader
) -> dict[str, Known]:
    """The config's values, held against what the spec requires of them."""
    config = _values(context, program, reader)
    given = {path: value.span for path, value in program.assigned.items()}
    # What an instance requires may hang on what the spec does that it extends.
    for item, module in sorted(
        program.items(tree.Require), key=lambda pair: -program.chain.index(pair[1])
    ):
        env = Env(module=module, config=config)
        try:
            with context.catching():
                require(context, item, env, given)
        # it hangs on symbols: then it is taken as a fact about them
        except NeedsValue:
            _take(config, assume(context, item.condition, config, env))
    if context.diagnostics:
        # What else is wrong of values that the spec forbids is no fault of its own.
        forbidden = [d for d in context.diagnostics if d.code == "E0404"]
        raise Failed(*(forbidden or context.diagnostics))
    return config


def _values(context: Context, program: Program, reader: Reader) -> dict[str, Known]:
    """The config's values, behind those of the specs it uses, which hold their own
    requirements.
    """
    parts: dict[str, Known] = {}
    faults: list[Diagnostic] = []
    for part in program.parts:
        try:
            with blamed(part.use):
                inner, how = within(part, program, reader)
                values = requirements(context, inner, how)
                used = Settings(inner.module, how.raw)
                parts[part.name] = Record(values, how.path, used)
        except Failed as failed:
            faults += failed.diagnostics
            parts[part.name] = POISON
    if faults:
        raise Failed(*faults)
    return read_config(context, program, reader, parts)


def _take(config: dict[str, Known], found: Mapping[str, Known]) -> None:
    """Put values in place: functions among them see the config through the same dict."""
    for name, value in found.items():
        held = config[name]
        if isinstance(held, Record) and held.of and isinstance(value, Record):
            assert isinstance(held.fields, dict)  # as `_values` made it
            _take(held.fields, value.fields)
        else:
            config[name] = value


def _graph_of(program: Program, name: str) -> tree.Block:
    graphs = [
        i
        for i in program.module.items.values()
        if isinstance(i, tree.Block) and i.kind == "graph"
    ]
    if not graphs:
        fail(
            "E0219",
            f"`{program.module.path}` has no graph",
            helps=["a model is one `graph name(x: float[n]) -> (y: float[n]) { … }`"],
        )
    # the first, unless one is asked for by name
    for block in graphs:
        if not name or block.name == name:
            return block
    names = [g.name for g in graphs]
    title = f"`{program.module.path}` has no graph called `{name}`"
    fail("E0219", title, helps=suggest(name, names, f"it has {', '.join(names)}"))


def _run_graph(
    context: Context,
    program: Program,
    block: tree.Block,
    config: dict[str, Known],
    reader: Reader,
) -> Graph:
    env = Env(module=program.module, config=config, raw=reader.raw)
    env.dims.update(read_equations(context, block, env))
    _inputs(context, block, env)
    if context.diagnostics:
        raise Failed(*context.diagnostics)
    results = Results(())
    with context.catching():
        context.evaluator.expect(context.steps, block, program.module, config)
        context.calls.append(f"{block.name}@{block.name_span}")
        results = finish(context, block, run_body(context, block.body, env), env)
    if context.diagnostics:
        raise Failed(*context.diagnostics, *_dropped(context))
    outputs = {
        n or "output": v.value
        for n, v in zip(results.names, results.values, strict=True)
    }
    facts = {e.name: env.dims[e.name] for e in block.where}
    least = {n: m for n, m in program.module.dims.items() if m}
    graph = context.builder.finish(block.name, outputs, least=least, facts=facts)
    check_lengths_known(graph, program.module.dims, block.span)
    return graph


def _inputs(context: Context, block: tree.Block, env: Env) -> None:
    for param in block.params:
        with context.catching():
            if not is_tensor(param.type):
                helps = [
                    f"put `{param.name}` into `config`, or give it axes: float[], int[batch, n]"
                ]
                fail(
                    "E0303",
                    f"the input `{param.name}` of a graph is a tensor",
                    param.span,
                    helps=helps,
                )
            shown = param.type.span.text if param.type.span else param.type.name
            origin = f"the input `{param.name}: {shown}`"
            declared_type = declared(context, param.type, env, origin)
            side = SIDES[param.type.side] if param.type.name == "keep" else ""
            value = context.builder.input(
                param.name, Input(declared_type, side, None, param.span)
            )
            env.names[param.name] = Tensor(value, param.span)


def _defaults(
    library: Library,
    program: Program,
    block: tree.Block,
    config: dict[str, Known],
    reader: Reader,
) -> Graph | None:
    """The graph that computes inputs with `= expr` from the others."""
    absent = [p for p in block.params if p.default is not None]
    if not absent:
        return None
    context = context_of(library, program, reader=reader)
    env = Env(module=program.module, config=config, raw=reader.raw)
    env.dims.update(read_equations(context, block, env))
    _inputs(context, block, env)
    outputs = {}
    for param in absent:
        with context.catching():
            assert param.default is not None  # or it were none of `absent`
            value = first(evaluate(context, param.default, env))
            place = Place(f"the default of `{param.name}`", param.default.span)
            tensor = match_tensor(context, param.type, value, env, place)
            outputs[param.name] = tensor.value
    if context.diagnostics:
        raise Failed(*context.diagnostics)
    graph = context.builder.finish(DEFAULTS, outputs)
    if name := in_a_circle(graph):
        span = next(
            (p.default.span for p in absent if p.name == name and p.default), None
        )
        helps = ["let one of the defaults follow from an input without one"]
        fail(
            "E0210",
            f"the default of `{name}` is defined by itself",
            span,
            "this follows from it",
            helps=helps,
        )
    inputs = _read_by(graph)
    # again with the inputs that matter: the graph of defaults asks for no others
    kept = Builder(inputs=inputs, nodes=dict(graph.nodes), made=dict(graph.made))
    kept.input_facts = {k: graph.input_facts[k] for k in kept.inputs}
    return kept.finish(DEFAULTS, outputs)


def _read_by(defaults: Graph) -> dict[str, Value]:
    """The inputs that defaults read, and those off which they only read a length."""

    def symbols(values: Iterable[Value]) -> set[str]:
        return {s for v in values for d in v.type.shape for s in d.symbols()}

    read = {a for n, _ in defaults.nodes for a in n.args} | set(
        defaults.outputs.values()
    )
    untold = symbols(r for _, results in defaults.nodes for r in results)
    untold -= symbols(v for v in defaults.inputs.values() if v in read)
    lengths = {
        k
        for k, v in defaults.inputs.items()
        if k not in defaults.outputs and symbols([v]) & untold
    }
    return {k: v for k, v in defaults.inputs.items() if v in read or k in lengths}


def _configure(
    context: Context, module: Module, given: Evaluated, span: Span | None
) -> dict[str, Known]:
    """The config of a used spec: values from a record or a part of the config file,
    else its defaults.
    """
    program = program_of(module, context.library)
    if isinstance(given, Record):
        flat: dict[str, Known] = {}
        _flatten_values("", given, flat)
        reader = Reader(fixed=flat, longest=context.longest)
        values = _values(context, assign(program, {}), reader)
        known = {f.name for f in program.fields()}
        if unknown := [k for k in flat if k not in known]:
            title = f"the config of `{module.path}` has no `{unknown[0]}`"
            fail("E0201", title, span)
        return values
    reader = Reader(longest=context.longest)
    if isinstance(given, RawConfig):
        reader.raw, reader.published = given.data, context.library.published
    return _values(context, program, reader)


class _Knot:
    """The evaluator there is: here, above all modules of elaboration, their circle is
    closed.
    """

    evaluate = staticmethod(evaluate)
    call = staticmethod(call)
    held = staticmethod(held)
    configure = staticmethod(_configure)

    def __init__(self, library: Library) -> None:
        self._foreseen = Foreseen(library)

    def expect(
        self,
        steps: Steps,
        item: tree.Block | tree.Definition,
        module: Module,
        config: Mapping[str, Known],
        span: Span | None = None,
    ) -> None:
        """E0223 for an item that is sure to take more steps than are left."""
        self._foreseen.expect(steps, item, module, config, span)


def _flatten_values(path: str, record: Record, into: dict[str, Known]) -> None:
    for name, value in record.fields.items():
        into[f"{path}{name}"] = value
