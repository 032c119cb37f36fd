"""Evaluate the `generate`, `stream` and `reading` sections of a spec to plain data for the
manifest.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, TypeAlias

from specc.decode.settings_errors import VocabularySizes, check_spec_settings
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.source import Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.context import Context, Env
from specc.frontend.name_lookup import NAMED_CONSTANTS, resolve_name
from specc.frontend.spec_modules import Program
from specc.frontend.spec_values import (
    POISON,
    BlockFunction,
    BuiltinFunction,
    ChoiceValue,
    CombinedMask,
    DefinitionFunction,
    EvalResult,
    NeedsValue,
    Record,
    Rope,
    RuntimeNumber,
    take_first_result,
)
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model import GenerateSection, StreamSection
from specc.syntax import ast
from specc.syntax.ast import walk_tree


def value_to_data(value: EvalResult, span: Span | None = None) -> object:
    """Convert a compile-time value to plain data. Raise NeedsValue for a symbol, at `span`."""
    one = take_first_result(value)
    convert = VALUE_TO_DATA.get(type(one))
    return convert(one, span) if convert else one


def _number_to_data(value: Dim | RuntimeNumber, span: Span | None) -> int:
    if isinstance(value, RuntimeNumber):
        raise NeedsValue(value.symbols, span)
    if value.number is None:
        raise NeedsValue(value.symbols(), span)
    return value.number


def _mask_to_data(mask: CombinedMask, _: Span | None) -> str:
    shown = [str(value_to_data(part)) for part in mask.parts]
    return f"not {shown[0]}" if mask.op == "not" else f"({f' {mask.op} '.join(shown)})"


def _function_to_data(function: BlockFunction | DefinitionFunction, _: Span | None) -> str:
    # `window(128)` as written: the name alone is not enough
    return function.span.text if function.span else function.name


VALUE_TO_DATA: Mapping[type[object], Callable[..., object]] = {
    Dim: _number_to_data,
    RuntimeNumber: _number_to_data,
    ChoiceValue: lambda x, _: x.word,
    tuple: lambda x, _: [value_to_data(i) for i in x],
    Record: lambda x, _: {k: value_to_data(v) for k, v in x.fields.items()},
    Rope: lambda x, _: {"theta": x.theta, "kind": x.kind, **dict(x.parameters)},
    BuiltinFunction: lambda x, _: x.name,
    BlockFunction: _function_to_data,
    DefinitionFunction: _function_to_data,
    CombinedMask: _mask_to_data,
}
"""How values other than texts, floats and bools become plain data."""


def expression_to_data(context: Context, expr: ast.Expr, env: Env) -> object:
    """Convert an expression of `reading` or `generate` to data: a call becomes its name,
    inputs and options.

    Unknown names are words: `resize=bilinear`. These numbers are not lengths, so `/` may
    give a fraction: `scale=1 / 255`.
    """
    match expr:
        case ast.Call():
            data: dict[str, object] = {"kind": expr.function.path}
            if expr.args:
                data["args"] = [expression_to_data(context, a, env) for a in expr.args]
            data.update({o.name: expression_to_data(context, o.value, env) for o in expr.options})
            return data
        case ast.ListLiteral():
            return [expression_to_data(context, item, env) for item in expr.items]
        case ast.Name():
            return _name_to_data(context, expr, env)
        case ast.Binary(op="/"):
            left = expression_to_data(context, expr.left, env)
            right = expression_to_data(context, expr.right, env)
            if isinstance(left, PlainNumber) and isinstance(right, PlainNumber) and right:
                return _divide_numbers(left, right)
    return value_to_data(context.evaluate(expr, env), expr.span)


PlainNumber: TypeAlias = int | float


def _divide_numbers(left: PlainNumber, right: PlainNumber) -> PlainNumber:
    """Divide; the result of two integers without a remainder is an integer."""
    if isinstance(left, int) and left % right == 0:
        return left // right
    return left / right


def _name_to_data(context: Context, name: ast.Name, env: Env) -> object:
    """Convert a name to data: its value if it has one, else the word itself."""
    value: EvalResult = env.names.get(name.path, env.config.get(name.path, POISON))
    if value is POISON and name.path in NAMED_CONSTANTS:
        value = resolve_name(context, name, env)
    # `config.labels` is a value; an undefined plain word stands for itself
    if value is POISON and "." in name.path:
        value = resolve_name(context, name, env, quiet=True)
    return name.path if value is POISON else value_to_data(value, name.span)


def get_vocabulary_sizes(graph: Graph, growing: str, source: str) -> VocabularySizes:
    """Return the vocabulary sizes of the growing input and of the logits."""
    below, drawn = graph.input_facts[growing].below, graph.outputs[source].type.shape
    return VocabularySizes(
        below.number if below is not None else None, drawn[-1].number if drawn else None
    )


def evaluate_generation_settings(
    context: Context, item: ast.Generate, env: Env, vocabulary: VocabularySizes
) -> tuple[dict[str, object], tuple[Diagnostic, ...]]:
    """Return the settings of a `generate` section, and warnings. Raise all of E0731, E0732
    and E0733 found.
    """
    made: dict[str, object] = {}
    spans: dict[str, Span | None] = {}
    for setting in item.settings:
        spans[f"{setting.name} name"] = setting.span
        spans[setting.name] = setting.value.span or setting.span
        if isinstance(setting.value, ast.Call):
            made[setting.name] = _evaluate_strategy_call(
                context, setting.name, setting.value, env, spans
            )
        else:
            made[setting.name] = _evaluate_known_data(context, setting.value, env)
    faults = check_spec_settings(made, spans, item.span)
    # compared with the vocabulary only if the settings themselves are valid
    beyond = {
        w: d for w in made if not faults and (d := vocabulary.check_token_id(w, made[w], spans[w]))
    }
    warnings = [
        replace(d, code="W0755", severity="warning") for d in [beyond.pop("stop", None)] if d
    ]
    if faults or beyond:
        raise Failed(*faults, *beyond.values())
    return made, tuple(warnings)


def _evaluate_strategy_call(
    context: Context, name: str, call: ast.Call, env: Env, spans: dict[str, Span | None]
) -> dict[str, object]:
    """Convert `beam(num_beams=4)` to `{"kind": "beam", "num_beams": 4}`; the spans of its
    parts go into `spans`.
    """
    spans[f"{name} name"] = call.function.span or call.span
    made: dict[str, object] = {"kind": call.function.path}
    if call.args:
        made["args"] = [_evaluate_known_data(context, a, env) for a in call.args]
    for option in call.options:
        spans[f"{name}.{option.name}"] = option.value.span or option.span
        spans[f"{name}.{option.name} name"] = option.name_span or option.span
        made[option.name] = _evaluate_known_data(context, option.value, env)
    return made


def _evaluate_known_data(context: Context, expr: ast.Expr, env: Env) -> object:
    """Convert an expression to data; None if it depends on config values that are symbols."""
    try:
        return expression_to_data(context, expr, env)
    except NeedsValue:
        if not context.symbols.is_symbolic:
            raise
        return None


def evaluate_generation(
    context: Context, program: Program, block: ast.Block, env: Env, made: Graph
) -> tuple[GenerateSection | None, tuple[Diagnostic, ...]]:
    """Return the generation section of the spec for this graph, and warnings."""
    for item, _ in program.iterate_items(ast.Generate):
        graphs = list_graphs(program)
        # One head of several generates; the others score, classify or embed.
        if not _is_generated_by(block, item) and any(_is_generated_by(g, item) for g in graphs):
            return None, ()
        _check_names(block, item)
        # a symbolic reading only checks names and plain values
        if context.symbols.is_symbolic:
            evaluate_generation_settings(context, item, env, VocabularySizes())
            return GenerateSection(item.name, item.input_name, item.source), ()
        vocabulary = get_vocabulary_sizes(made, item.input_name, item.source)
        settings, warnings = evaluate_generation_settings(context, item, env, vocabulary)
        return GenerateSection(item.name, item.input_name, item.source, settings), warnings
    return None, ()


def evaluate_streaming(
    program: Program, block: ast.Block, generation: GenerateSection | None
) -> StreamSection | None:
    """Return the streaming section of the spec for this graph. Raise E0221 for names that
    no graph has, E0975 if one graph has two time axes.
    """
    said = [
        item
        for item, _ in program.iterate_items(ast.Stream)
        if _belongs_to_graph(program, block, item)
    ]
    for item in said:
        _check_names(block, item)
        _check_time_axis(block, item)
    growing = [item.input_name for item in said]
    # A graph can generate or stream along one input only.
    other = next((i for i in said if generation or i.input_name != growing[0]), None)
    if other is not None:
        _raise_second_time_axis(block, other, growing[0], generation)
    if not said:
        return None
    return StreamSection(growing[0], tuple(dict.fromkeys(item.source for item in said)))


def _belongs_to_graph(program: Program, block: ast.Block, item: ast.Stream) -> bool:
    """Return whether a `stream` item names values of this graph, or of no graph at all."""
    named = [g for g in list_graphs(program) if _has_stream_names(g, item)]
    return not named or _has_stream_names(block, item)


def _raise_second_time_axis(
    block: ast.Block, item: ast.Stream, first: str, generation: GenerateSection | None
) -> NoReturn:
    already = f"it is streamed along `{first}`"
    if generation:
        already = f"`generate` extends `{generation.growing}`"
    raise_error(
        "E0975",
        f"the graph `{block.name}` cannot be streamed along `{item.input_name}`: {already}",
        item.span,
        "a second time here",
        helps=["put it into a second graph: a spec may have several"],
    )


def _check_time_axis(block: ast.Block, item: ast.Stream) -> None:
    """Raise E0702 for an input without a time axis after the batch axis."""
    for param in block.params:
        if param.name == item.input_name and len(param.type.dims or ()) < 2:
            raise_error(
                "E0702",
                f"`{param.name}` cannot be streamed: it has no time axis after the batch",
                item.span,
                helps=["declare it as [batch, length], with the length in `dims`"],
            )


def _has_stream_names(block: ast.Block, item: ast.Stream) -> bool:
    """Return whether a graph has both names."""
    inputs, results = [p.name for p in block.params], [r.name for r in block.results]
    return item.input_name in inputs and item.source in results


def list_graphs(program: Program) -> list[ast.Block]:
    """Return all graphs of a spec, in file order."""
    blocks = [i for i in program.module.items.values() if isinstance(i, ast.Block)]
    return [block for block in blocks if block.kind == "graph"]


def _is_generated_by(block: ast.Block, item: ast.Generate) -> bool:
    """Return whether a graph has the growing input and a result along its time axis."""
    growing = next((p for p in block.params if p.name == item.input_name), None)
    source = next((r for r in block.results if r.name == item.source), None)
    if growing is None or source is None or len(growing.type.dims or ()) < 2:
        return False
    axis = (growing.type.dims or ())[1]
    lengths = {n.path for n in walk_tree(source.type) if isinstance(n, ast.Name)}
    return isinstance(axis, ast.Name) and axis.path in lengths


def _check_names(block: ast.Block, item: ast.Generate | ast.Stream) -> None:
    """Raise E0221 for an input or a result that the graph does not have."""
    for name, sides, word in (
        (item.input_name, block.params, "input"),
        (item.source, block.results, "result"),
    ):
        known = [side.name for side in sides]
        if name not in known:
            helps = suggest_similar_name(name, known, f"it has {', '.join(known)}")
            title = f"the graph `{block.name}` has no {word} `{name}`"
            raise_error("E0221", title, item.span, helps=helps)


def evaluate_readings(
    context: Context,
    program: Program,
    block: ast.Block,
    env: Env,
    kind: type[ast.InputReading] | type[ast.ResultDisplay],
) -> Mapping[str, object]:
    """Return how inputs are read, or results shown, as data for the manifest. Entries of an
    extending spec override those of the extended one.
    """
    data: dict[str, object] = {}
    what = "result" if kind is ast.ResultDisplay else "input"
    known = _list_graph_names(block, what)
    every = {name for graph in list_graphs(program) for name in _list_graph_names(graph, what)}
    for item, module in program.iterate_items(ast.Reading):
        for entry in item.entries:
            if not isinstance(entry, kind) or entry.name in data:
                continue
            if entry.name in every.difference(known):
                continue  # an input of another graph of the spec
            if entry.name not in known:
                helps = suggest_similar_name(
                    entry.name, known, f"expected one of {', '.join(known)}"
                )
                title = f"the graph `{block.name}` has no {what} `{entry.name}`"
                raise_error("E0221", title, entry.span, helps=helps)
            told = _require_call_data(expression_to_data(context, entry.value, env), entry.span)
            data[entry.name] = {"home": module.path, **told}
    return data


def _list_graph_names(graph: ast.Block, what: str) -> list[str]:
    sides = graph.results if what == "result" else graph.params
    return [side.name for side in sides]


def _require_call_data(data: object, span: Span | None) -> dict[str, object]:
    if not isinstance(data, dict):
        raise_error("E0203", "expected `image(…)`, `text(…)`, `choice(…)` or `numbers()`", span)
    return data
