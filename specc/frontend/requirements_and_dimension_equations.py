"""Check requirements (E0404), and use requirements and `where` equations to replace symbolic
dimensions. Raise E0311 for dimensions that no input determines.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError, raise_error
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.name_lookup import resolve_name
from specc.frontend.spec_values import (
    AttentionFunction,
    BuiltinFunction,
    EvalResult,
    MaskExpression,
    MaskLike,
    Record,
    SpecValue,
    UnresolvedValueError,
    describe_value,
)
from specc.ir.dim import Dim, DimError, DimFunction, DimLimitError
from specc.ir.graph import Graph, Node, Value
from specc.ir.input_shapes_and_defaults import find_symbolic_dim_sources
from specc.ir.ir_verifier import list_nonnegative_dims
from specc.ir.ops.loop import iterate_all_nodes
from specc.syntax import ast
from specc.syntax.ast import walk_tree


def _assume_divisibility(
    config: dict[str, SpecValue], dividend: Dim, divisor: Dim
) -> dict[str, SpecValue]:
    """Replace the symbol `dividend` in a config with a symbolic multiple of `divisor`."""
    # for `side = image / patch`, the condition `side % window == 0` replaces the symbol `image`
    symbol, factor = _split_quotient(dividend) or (dividend, Dim.from_value(1))
    # ignore `d % d == 0`, because it would replace `d` with an expression that contains `d`
    if not symbol.name or symbol.name in (factor * divisor).symbols():
        return config
    quotient = Dim.symbol(str(DimFunction("/", (dividend, divisor))), symbol.origin)
    return _substitute_in_values(config, {symbol.name: factor * divisor * quotient})


def _assume_equality(config: dict[str, SpecValue], left: Dim, right: Dim) -> dict[str, SpecValue]:
    """Replace the symbol on one side of an equality in a config with the other side."""
    for symbol, other in ((left, right), (right, left)):
        # a symbol cannot be replaced with an expression that contains the same symbol
        if symbol.name and symbol.name not in other.symbols():
            return _substitute_in_values(config, {symbol.name: other})
    return config


Assumption: TypeAlias = Callable[[dict[str, SpecValue], Dim, Dim], dict[str, SpecValue]]


def substitute_requirement_equalities(
    condition: ast.Expr, config: dict[str, SpecValue], env: LexicalScope
) -> dict[str, SpecValue]:
    """Return the config under the assumption that `condition` holds. Each equality `a == b` or
    divisibility `a % b == 0` in the condition replaces symbols in the config values.
    """
    match condition:
        case ast.BinaryOp(op="&"):
            # each operand of a conjunction may depend on the preceding operands
            for part in _split_conjunction(condition):
                inner = LexicalScope(context=env.context, module=env.module, config=config)
                config = substitute_requirement_equalities(part, config, inner)
        case ast.BinaryOp(op="|", left=a, right=b):
            # if `shared` is true, the condition `not shared | vocab == target_vocab` requires equal
            # sizes
            for condition, other in ((a, b), (b, a)):
                if _try_evaluate(condition, env) is False:
                    return substitute_requirement_equalities(other, config, env)
        case ast.Compare(ops=("==",), operands=(a, b)):
            return _apply_equality(a, b, config, env)
    return config


def _apply_equality(
    a: ast.Expr, b: ast.Expr, config: dict[str, SpecValue], env: LexicalScope
) -> dict[str, SpecValue]:
    """Replace symbols in a config so that the equality `a == b` holds."""
    # for `a == b` of two symbols, one symbol replaces the other everywhere
    assume: Assumption = _assume_equality
    match a, b:
        case ast.BinaryOp(op="%", left=dividend, right=divisor), ast.NumberLiteral(text="0"):
            # for `d % heads == 0`, `d` becomes `heads * (d / heads)`, which is divisible by `heads`
            a, b, assume = dividend, divisor, _assume_divisibility
    left, right = _try_evaluate(a, env), _try_evaluate(b, env)
    if left and right and isinstance(left, Dim) and isinstance(right, Dim):
        return assume(config, left, right)
    return config


def _split_quotient(length: Dim) -> tuple[Dim, Dim] | None:
    """Return (p, q) if a dimension is an exact quotient `p / q`, otherwise None."""
    match length.terms:
        case (((((DimFunction("/", args), 1),)), 1),):
            return args
    return None


def _split_conjunction(condition: ast.BinaryOp) -> list[ast.Expr]:
    """Return the operands of a conjunction `a & b & c`, of which there may be thousands."""
    parts: list[ast.Expr] = []
    left: ast.Expr = condition
    while isinstance(left, ast.BinaryOp) and left.op == "&":
        parts.append(left.right)
        left = left.left
    return [left, *reversed(parts)]


def _try_evaluate(expr: ast.Expr, env: LexicalScope) -> SpecValue:
    """Return the value of an expression, or None if the evaluation fails."""
    try:
        return env.evaluate_value(expr)
    # a condition that cannot be evaluated yet replaces no symbols, and is checked later
    except (SpeccError, UnresolvedValueError):
        return None


def _substitute_in_values(
    values_by_name: Mapping[str, SpecValue], values: dict[str, Dim]
) -> dict[str, SpecValue]:
    """Replace symbolic dimensions in named values with `values`."""
    return {k: _substitute_in_value(v, values) for k, v in values_by_name.items()}


def _substitute_in_value(value: SpecValue, values: dict[str, Dim]) -> SpecValue:
    match value:
        case Dim() as dim:
            return dim.substitute(values)
        case Record(fields=fields):
            return replace(value, fields=_substitute_in_values(fields, values))
        case tuple(items):
            return tuple(_substitute_in_value(i, values) for i in items)
        # a bound argument may refer to a config value, such as `width` in `window(width)`
        case (
            AttentionFunction(bound_arguments=arguments)
            | BuiltinFunction(bound_arguments=arguments)
        ) if arguments:
            return replace(value, bound_arguments=_substitute_in_values(arguments, values))
        case MaskExpression() as mask:
            return _substitute_in_mask(mask, values)
        case _:
            return value


def _substitute_in_mask(mask: MaskExpression, values: dict[str, Dim]) -> MaskExpression:
    substituted = (_substitute_in_value(part, values) for part in mask.operands)
    return MaskExpression(mask.op, tuple(m for m in substituted if isinstance(m, MaskLike)))


def evaluate_dim_equations(block: ast.Block, env: LexicalScope) -> dict[str, Dim]:
    """Return the values of the dimensions defined by a block's `where` equations."""
    lengths: dict[str, Dim] = {}
    for equation in block.where:
        value = env.evaluate_value(equation.value)
        if not isinstance(value, Dim):
            raise_error(
                "E0303",
                f"`{equation.name}` must be a length, got {describe_value(value)}",
                equation.span,
            )
        lengths[equation.name] = value
    return _expand_equations(block.where, lengths)


def _expand_equations(
    equations: Sequence[ast.Equation], lengths: Mapping[str, Dim]
) -> dict[str, Dim]:
    """Substitute each dimension that an equation defines into all other equations. Raise E0210 if
    equations are circular, and E0309 or E0310 if the value of an equation is undefined.
    """
    expanded = dict(lengths)
    for _ in equations:
        expanded = {e.name: _substitute_length(expanded[e.name], expanded, e) for e in equations}
    for equation in equations:
        if expanded[equation.name].symbols() & expanded.keys():
            raise_error(
                "E0210",
                f"the length `{equation.name}` is defined in terms of itself",
                equation.span,
                "this depends on it",
                helps=["use lengths that are not defined by an equation"],
            )
    return expanded


def _substitute_length(length: Dim, values: Mapping[str, Dim], equation: ast.Equation) -> Dim:
    """Replace symbols in `length` with `values`. Raise E0309 or E0310 for an undefined result."""
    try:
        return length.substitute(values)
    except DimError as error:
        code = "E0309" if isinstance(error, DimLimitError) else "E0310"
        raise_error(code, f"`{equation.name}`: {error}", equation.span)


def reject_undetermined_dims(graph: Graph, dims: Collection[str], span: Span | None) -> None:
    """Raise E0311 if an operation needs a dimension of `dims` that no input determines."""
    types = {name: value.type for name, value in graph.inputs.items()}
    known_symbols = find_symbolic_dim_sources(types, graph.length_equations).keys()
    unknown_symbols = {*dims} - known_symbols
    if not unknown_symbols:
        return
    axes = {d for t in types.values() for d in t.shape}
    for node, results in iterate_all_nodes(graph):
        for length in _list_required_dims(node, results):
            missing_symbols = sorted(length.symbols() & unknown_symbols)
            if missing_symbols and length not in axes:
                _raise_unknown_length(graph, node, length, missing_symbols[0], span)


def _list_required_dims(node: Node, results: Iterable[Value]) -> list[Dim]:
    """Return the dimensions whose sizes must be known to execute a node."""
    result_lengths = (d for r in results for d in r.type.shape)
    return [*result_lengths, *list_nonnegative_dims(node), *node.op.iterate_attribute_dims()]


def _raise_unknown_length(
    graph: Graph, node: Node, length: Dim, symbol: str, span: Span | None
) -> None:
    """Raise E0311 for a node that needs `length`. No input determines its symbol `symbol`."""
    origin = graph.node_origins.get(node)
    containing_axes = _list_axes_with_symbol(graph, symbol)
    notes = [f"`{symbol}` cannot be computed from the axis `{d}`" for d in containing_axes]
    raise_error(
        "E0311",
        f"no input determines the length `{symbol}`",
        origin.spans[0] if origin and origin.spans else span,
        f"this needs `{length}`",
        notes=notes,
        helps=[
            f"declare an input with an axis `{symbol}`, make it a config value, or define it: "
            f"`where {symbol} = …`"
        ],
    )


def _list_axes_with_symbol(graph: Graph, symbol: str) -> list[str]:
    """Return the sizes of input axes that contain a symbol, as sorted strings."""
    axes = {d for v in graph.inputs.values() for d in v.type.shape}
    return sorted(str(d) for d in axes if symbol in d.symbols())


def check_requirement(
    statement: ast.RequireStatement, env: LexicalScope, assignment_spans: Mapping[str, Span | None]
) -> None:
    """Raise E0404 with the message of the spec if a requirement is violated. `assignment_spans` are
    the spans at which config values were set.
    """
    is_satisfied = env.evaluate_value(statement.condition)
    condition = statement.condition
    if not isinstance(is_satisfied, bool):
        title = f"`require`: expected a condition, got {describe_value(is_satisfied)}"
        raise_error("E0203", title, condition.span)
    if is_satisfied:
        return
    names = sorted(collect_variable_names(condition), key=lambda name: name.path)
    values = {n.path: resolve_name(n, env, missing_ok=True) for n in names}
    value_texts = [f"{n} = {v}" for n, v in values.items() if isinstance(v, Dim | float | str)]
    primary, related_labels = _make_requirement_labels(condition, values, assignment_spans)
    title = statement.because or "a requirement of this spec is not met"
    notes = (", ".join(value_texts),) if value_texts else ()
    raise SpeccError(Diagnostic("E0404", title, primary, tuple(related_labels), notes))


def _make_requirement_labels(
    condition: ast.Expr,
    values: Mapping[str, EvalResult],
    assignment_spans: Mapping[str, Span | None],
) -> tuple[Label | None, list[Label]]:
    """Return the primary label and the related labels for a violated requirement.

    The primary label is at the condition, unless the condition is in another file, such as a
    built-in spec, and the user has set a value.
    """
    labels = [*_label_values(values, assignment_spans)]
    if condition.span is None:  # syntax trees that were not parsed from source code have no spans
        return None, labels
    condition_label = Label(condition.span, "this is false")
    other_file_label = next(
        (label for label in labels if label.span.source is not condition.span.source), None
    )
    if other_file_label is None:
        return condition_label, labels
    return other_file_label, [
        condition_label,
        *(label for label in labels if label is not other_file_label),
    ]


def _label_values(
    values: Mapping[str, EvalResult], assignment_spans: Mapping[str, Span | None]
) -> Iterator[Label]:
    """Yield a label for each config value, located where the value was set."""
    for name, value in values.items():
        origin = value.origin.span if isinstance(value, Dim) and value.origin else None
        if span := assignment_spans.get(name) or origin:
            yield Label(span, f"{name} is {format_config_value(value)}")


def format_config_value(value: EvalResult) -> str:
    """Format a config value for messages."""
    return str(value) if isinstance(value, Dim | float | str) else describe_value(value)


def collect_variable_names(expr: ast.Expr) -> list[ast.Name]:
    """Return every value name in an expression, except the names of called functions."""
    # compare by identity, because in `f(f)` only the second `f` is a value
    called = {id(n.function) for n in walk_tree(expr) if isinstance(n, ast.Call)}
    return [n for n in walk_tree(expr) if isinstance(n, ast.Name) and id(n) not in called]
