"""Evaluate the `generate`, `stream` and `reading` sections into values for the manifest."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specc.decode.setting_validation import (
    VocabularySizes,
    find_codebook_setting_error,
    find_spec_setting_errors,
)
from specc.diagnostics.diagnostic import Diagnostic, Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.expressions import require_integer
from specc.frontend.name_lookup import NAMED_CONSTANTS, resolve_name
from specc.frontend.spec_modules import Program
from specc.frontend.spec_values import (
    ERROR_VALUE,
    AttentionFunction,
    BlockFunction,
    BuiltinFunction,
    EvalResult,
    MaskExpression,
    Record,
    Rope,
    RuntimeScalar,
    StringChoice,
    UnresolvedValueError,
    get_first_result,
)
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.ir.model_definition import GenerateSection, StreamSection, count_codebooks
from specc.syntax import ast
from specc.syntax.ast import walk_tree


def value_to_json(value: EvalResult, span: Span | None = None) -> object:
    """Convert a compile-time value to a JSON-compatible value. Strings, floats and bools are
    unchanged. Raise UnresolvedValueError at `span` if the value is a symbol.
    """
    match get_first_result(value):
        case Dim() | RuntimeScalar() as number:
            return require_integer(number, "the value", span)
        case StringChoice(choice):
            return choice
        case tuple(items):
            return [value_to_json(item) for item in items]
        case Record(fields):
            return {name: value_to_json(field) for name, field in fields.items()}
        case Rope(theta, kind, parameters):
            return {"theta": theta, "kind": kind, **dict(parameters)}
        case BuiltinFunction(name=name):
            return name
        # return spec syntax such as `window(128)`, because the name alone lacks the arguments
        case BlockFunction() | AttentionFunction() as function:
            return function.span.text if function.span else function.name
        case MaskExpression() as mask:
            return _format_combined_mask(mask)
        case scalar:
            return scalar


def _format_combined_mask(mask: MaskExpression) -> str:
    """Format a combined mask in spec syntax, as in `(causal & visible)`."""
    parts = [str(value_to_json(part)) for part in mask.operands]
    return f"not {parts[0]}" if mask.op == "not" else f"({f' {mask.op} '.join(parts)})"


def expression_to_json(expr: ast.Expr, env: LexicalScope) -> object:
    """Convert an expression of `reading` or `generate` to JSON-compatible values. A call becomes a
    mapping with the name, inputs and options of the call.

    An undefined name becomes a string, as in `resize=bilinear`. Numbers in `reading` and `generate`
    are not dimensions, so a quotient of integers may be a float, as in `scale=1 / 255`.
    """
    match expr:
        case ast.Call():
            return _call_to_data(expr, lambda inner: expression_to_json(inner, env))
        case ast.ListLiteral():
            return [expression_to_json(item, env) for item in expr.items]
        case ast.Name():
            return _name_to_data(expr, env)
        case ast.BinaryOp(op="/"):
            left = expression_to_json(expr.left, env)
            right = expression_to_json(expr.right, env)
            if isinstance(left, int | float) and isinstance(right, int | float) and right:
                is_integer = isinstance(left, int) and left % right == 0
                return left // right if is_integer else left / right
    return value_to_json(env.evaluate(expr), expr.span)


def _call_to_data(
    call: ast.Call, convert_expression: Callable[[ast.Expr], object]
) -> dict[str, object]:
    """Convert a call to a mapping: `beam(num_beams=4)` to `{"kind": "beam", "num_beams": 4}`."""
    data: dict[str, object] = {"kind": call.function.path}
    if call.args:
        data["args"] = [convert_expression(arg) for arg in call.args]
    return data | {option.name: convert_expression(option.value) for option in call.options}


def _name_to_data(name: ast.Name, env: LexicalScope) -> object:
    """Convert a defined name to its value, and an undefined name to a string."""
    value: EvalResult = env.names.get(name.path, env.config.get(name.path, ERROR_VALUE))
    if value is ERROR_VALUE and name.path in NAMED_CONSTANTS:
        value = resolve_name(name, env)
    # `config.labels` becomes its value, and an undefined name becomes a string
    if value is ERROR_VALUE and "." in name.path:
        value = resolve_name(name, env, missing_ok=True)
    return name.path if value is ERROR_VALUE else value_to_json(value, name.span)


def get_vocabulary_sizes(graph: Graph, input_name: str, output_name: str) -> VocabularySizes:
    """Return the vocabulary sizes of the generated input and of the logits."""
    id_bound, logits = graph.input_facts[input_name].upper_bound, graph.outputs[output_name]
    return VocabularySizes(
        id_bound.number if id_bound else None, logits.shape[-1].number if logits.shape else None
    )


def evaluate_generation_settings(
    item: ast.GenerateSection,
    env: LexicalScope,
    vocabulary: VocabularySizes,
    codebooks: int | None = None,
) -> tuple[dict[str, object], tuple[Diagnostic, ...]]:
    """Return the settings of a `generate` section, and the warnings about them. Raise all errors
    E0731, E0732 and E0733 at once. `codebooks` is the number of codebooks, or None if it is
    unknown.
    """
    settings: dict[str, object] = {}
    spans: dict[str, Span | None] = {}
    for setting in item.settings:
        value = setting.value
        spans |= _locate_setting(setting)
        if isinstance(value, ast.Call):
            settings[setting.name] = _call_to_data(
                value, lambda expr: _evaluate_known_data(expr, env)
            )
        else:
            settings[setting.name] = _evaluate_known_data(value, env)
    if errors := find_spec_setting_errors(settings, spans, item.span):
        raise SpeccError(*errors)
    if codebooks is not None and (error := find_codebook_setting_error(settings, codebooks, spans)):
        raise SpeccError(error)
    out_of_range = {
        name: diagnostic
        for name, value in settings.items()
        if (diagnostic := vocabulary.find_token_id_error(name, value, spans[name]))
    }
    stop = out_of_range.pop("stop", None)
    if out_of_range:
        raise SpeccError(*out_of_range.values())
    return settings, (replace(stop, code="W0755", severity="warning"),) if stop else ()


def _locate_setting(setting: ast.GenerateSetting) -> dict[str, Span | None]:
    """Return the spans of a setting's name and options, keyed like `find_spec_setting_errors`."""
    name, value = setting.name, setting.value
    spans = {f"{name} name": setting.span, name: value.span or setting.span}
    if isinstance(value, ast.Call):
        spans[f"{name} name"] = value.function.span or value.span
        for option in value.options:
            spans[f"{name}.{option.name}"] = option.value.span or option.span
            spans[f"{name}.{option.name} name"] = option.name_span or option.span
    return spans


def _evaluate_known_data(expr: ast.Expr, env: LexicalScope) -> object:
    """Convert an expression to JSON-compatible values, or to None if its value has symbols."""
    try:
        return expression_to_json(expr, env)
    except UnresolvedValueError:
        if not env.context.symbols.is_symbolic:
            raise
        return None


def find_generate_section(program: Program, block: ast.Block) -> ast.GenerateSection | None:
    """Return the `generate` section of the spec if it applies to the graph `block`, or None."""
    for item, _ in program.iterate_items(ast.GenerateSection):
        graphs = list_graph_blocks(program)
        # in a spec with several task heads, it is possible that only one graph is generative
        is_other = not _is_generated_by(block, item) and any(
            _is_generated_by(graph, item) for graph in graphs
        )
        return None if is_other else item
    return None


def has_generate_section(program: Program, graph: str) -> bool:
    """Return True if the `generate` section applies to `graph`, where "" means the first graph."""
    blocks = [block for block in list_graph_blocks(program) if graph in ("", block.name)]
    return any(find_generate_section(program, block) for block in blocks[:1])


def evaluate_generate_section(
    program: Program, block: ast.Block, env: LexicalScope, main_graph: Graph
) -> tuple[GenerateSection | None, tuple[Diagnostic, ...]]:
    """Return the `generate` section of the spec for the graph of `block`, and warnings."""
    item = find_generate_section(program, block)
    if item is None:
        return None, ()
    _check_names(block, item)
    # symbolic elaboration checks only names and values without symbols
    if env.context.symbols.is_symbolic:
        evaluate_generation_settings(item, env, VocabularySizes())
        return GenerateSection(item.name, item.input_name, item.output_name), ()
    vocabulary = get_vocabulary_sizes(main_graph, item.input_name, item.output_name)
    codebooks = count_codebooks(main_graph.inputs[item.input_name].type)
    settings, warnings = evaluate_generation_settings(item, env, vocabulary, codebooks)
    return GenerateSection(item.name, item.input_name, item.output_name, settings), warnings


def evaluate_stream_section(
    program: Program, block: ast.Block, generation: GenerateSection | None
) -> StreamSection | None:
    """Evaluate the `stream` section for the graph of `block`, or return None if there is none.
    Raise E0221 if a name exists in no graph, and E0975 if a graph has two time axes.
    """
    items = _list_stream_items(program, block)
    for item in items:
        _check_names(block, item)
        _check_time_axis(block, item)
    if not items:
        return None
    _check_single_stream(block, items, generation)
    return StreamSection(items[0].input_name, tuple(dict.fromkeys(i.output_name for i in items)))


def _list_stream_items(program: Program, block: ast.Block) -> list[ast.StreamSection]:
    """Return the `stream` sections, except those whose names exist only in other graphs."""
    graphs = list_graph_blocks(program)
    return [
        item
        for item, _ in program.iterate_items(ast.StreamSection)
        if _has_stream_names(block, item) or not any(_has_stream_names(g, item) for g in graphs)
    ]


def _check_single_stream(
    block: ast.Block, items: Sequence[ast.StreamSection], generation: GenerateSection | None
) -> None:
    """Raise E0975 if a graph has several time axes for generation or streaming."""
    time_input = generation.sequence_input if generation else items[0].input_name
    for item in items:
        if not generation and item.input_name == time_input:
            continue
        reason = (
            f"`generate` extends `{time_input}`"
            if generation
            else f"the graph is streamed along `{time_input}`"
        )
        raise_error(
            "E0975",
            f"the graph `{block.name}` cannot be streamed along `{item.input_name}`: {reason}",
            item.span,
            "second time axis",
            helps=["move it to another graph of the spec"],
        )


def _check_time_axis(block: ast.Block, item: ast.StreamSection) -> None:
    """Raise E0702 if the streamed input has no time axis after the batch axis."""
    for param in block.params:
        if param.name == item.input_name and len(param.type.dims or ()) < 2:
            raise_error(
                "E0702",
                f"`{param.name}` cannot be streamed: it has no time axis after the batch",
                item.span,
                helps=["declare it as [batch, length], with the length in `dims`"],
            )


def _has_stream_names(block: ast.Block, item: ast.StreamSection) -> bool:
    """Return True if a graph has the input and the result of a `stream` section."""
    inputs, results = [p.name for p in block.params], [r.name for r in block.results]
    return item.input_name in inputs and item.output_name in results


def list_graph_blocks(program: Program) -> list[ast.Block]:
    """Return all graphs of a spec, in file order."""
    blocks = [i for i in program.module.items.values() if isinstance(i, ast.Block)]
    return [block for block in blocks if block.kind == "graph"]


def _is_generated_by(block: ast.Block, item: ast.GenerateSection) -> bool:
    """Return True if a graph has the generated input and an output with the same time axis."""
    dims = next((p.type.dims or () for p in block.params if p.name == item.input_name), ())
    result = next((r for r in block.results if r.name == item.output_name), None)
    if result is None or len(dims) < 2:
        return False
    time_axis = dims[1]
    result_lengths = {n.path for n in walk_tree(result.type) if isinstance(n, ast.Name)}
    return isinstance(time_axis, ast.Name) and time_axis.path in result_lengths


def _check_names(block: ast.Block, item: ast.GenerateSection | ast.StreamSection) -> None:
    """Raise E0221 if the graph lacks the input or an output of a section."""
    for name, declarations, role in (
        (item.input_name, block.params, "input"),
        (item.output_name, block.results, "result"),
    ):
        _check_name(
            block, role, name, [declaration.name for declaration in declarations], item.span
        )


def _check_name(
    block: ast.Block, role: str, name: str, names: Sequence[str], span: Span | None
) -> None:
    """Raise E0221 if `name` is not in `names`, the names of the inputs or results of a graph."""
    if name not in names:
        helps = suggest_similar_name(name, names, f"expected one of {', '.join(names)}")
        title = f"the graph `{block.name}` has no {role} `{name}`"
        raise_error("E0221", title, span, helps=helps)


def evaluate_preprocessing_section(
    program: Program,
    block: ast.Block,
    env: LexicalScope,
    entry_type: type[ast.InputPreprocessing] | type[ast.OutputPostprocessing],
) -> Mapping[str, object]:
    """Convert the entries of `reading` for inputs or outputs to JSON-compatible values for the
    manifest. Entries of a derived spec override entries of its base spec. Raise E0203 unless an
    entry is a call.
    """
    data: dict[str, object] = {}
    kind_name = "result" if entry_type is ast.OutputPostprocessing else "input"

    def list_names(graph: ast.Block) -> list[str]:
        return [
            declaration.name
            for declaration in (graph.results if kind_name == "result" else graph.params)
        ]

    block_names = list_names(block)
    other_names = {name for graph in list_graph_blocks(program) for name in list_names(graph)} - {
        *block_names
    }
    for item, module in program.iterate_items(ast.PreprocessingSection):
        for entry in item.entries:
            # `other_names` are inputs or results of the spec's other graphs
            if not isinstance(entry, entry_type) or entry.name in data or entry.name in other_names:
                continue
            _check_name(block, kind_name, entry.name, block_names, entry.span)
            entry_data = expression_to_json(entry.value, env)
            if not isinstance(entry_data, dict):
                title = "expected `image(…)`, `text(…)`, `choice(…)` or `numbers()`"
                raise_error("E0203", title, entry.span)
            data[entry.name] = {"home": module.path, **entry_data}
    return data
