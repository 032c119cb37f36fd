"""Check values against declared types, and bind the dimension names in declared tensor types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Origin, Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.hf_config import resolve_hf_activation
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.parameter_kinds import (
    ANY_KIND,
    BOOL_KIND,
    FLOAT_KIND,
    FUNCTION_KIND,
    INTEGER_KIND,
    MASK_KIND,
    NORMALIZER_KIND,
    RECORD_KIND,
    ROPE_KIND,
    SCORE_KIND,
    TEXT_KIND,
    ChoiceParameterKind,
    ParameterKind,
    convert_to_parameter_kind,
)
from specc.frontend.runtime_scalars import convert_to_float
from specc.frontend.shape_and_type_errors import (
    FOREIGN_TENSOR_TYPES,
    FOREIGN_TYPES,
    make_undeclared_dim_error,
    suggest_dtype_conversion,
    suggest_length_correction,
    suggest_tensor_expression,
)
from specc.frontend.spec_values import (
    BuiltinFunction,
    SpecValue,
    StringChoice,
    Tensor,
    describe_value,
    format_type,
)
from specc.ir.dim import DIM_FUNCTIONS, Atom, Dim
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS
from specc.ir.types import Type
from specc.syntax import ast

STATIC_KINDS: dict[str, ParameterKind] = {
    "int": INTEGER_KIND,
    "float": FLOAT_KIND,
    "bool": BOOL_KIND,
    "text": TEXT_KIND,
    "mask": MASK_KIND,
    "score": SCORE_KIND,
    "bias": ANY_KIND,
    "normalizer": NORMALIZER_KIND,
    "positions": FUNCTION_KIND,
    "norm": FUNCTION_KIND,
    "activation": FUNCTION_KIND,
    "rope": ROPE_KIND,
    "record": RECORD_KIND,
    "any": ANY_KIND,
}
"""The parameter kinds of the declared types without dimensions."""

TENSOR_DTYPES = {"float": "f32", "int": "i64", "bool": "bool", "keep": "bool"}
"""The element types of the declared tensor types."""


@dataclass(frozen=True, slots=True)
class ErrorContext:
    """A value's description and location, and the block that receives it, for use in messages."""

    description: str
    span: Span | None
    block: str = ""


def is_tensor_type(type: ast.TypeExpr) -> bool:
    """Return True if a declared type is a tensor type."""
    return type.dims is not None


def is_function_type(type: ast.TypeExpr) -> bool:
    """Return True if a declared type is a function type, so that a call binds only options."""
    return type.name in ("positions", "norm", "activation", "any")


def check_type_name(type: ast.TypeExpr) -> None:
    """Raise E0213 if the name of a declared type is unknown."""
    if type.name in ("list", "pair", "choice") or type.name in STATIC_KINDS:
        return
    type_names = [*STATIC_KINDS, "list", "pair", "choice", "keep"]
    default = FOREIGN_TYPES.get(type.name.lower(), f"expected one of {', '.join(type_names)}")
    helps = suggest_similar_name(type.name, type_names, default)
    raise_error("E0213", f"unknown type `{type.name}`", type.span, helps=helps)


def convert_to_declared_type(
    type: ast.TypeExpr, value: SpecValue, env: LexicalScope, error_context: ErrorContext
) -> SpecValue:
    """Convert `value` to the declared compile-time type, or raise E0203."""
    description, span = error_context.description, error_context.span
    if value is None and type.optional:
        return None
    check_type_name(type)
    if type.element_type is not None:
        return _convert_items(type, type.element_type, value, env, error_context)
    if type.name == "choice":
        choice = convert_to_parameter_kind(
            value, (ChoiceParameterKind(type.names),), description, span
        )
        assert isinstance(choice, str)  # the conversion to a choice value returns only strings
        return StringChoice(choice, type.names)
    if type.name == "activation" and isinstance(value, str):
        return resolve_hf_activation(value, env, span)
    converted = convert_to_parameter_kind(value, (STATIC_KINDS[type.name],), description, span)
    if type.name == "float" and isinstance(converted, Dim):
        return convert_to_float(
            NodeBuilder(env.context, span), converted
        )  # an integer is a valid float
    _check_function_name(type, converted, error_context)
    return converted


def _convert_items(
    type: ast.TypeExpr,
    element: ast.TypeExpr,
    value: SpecValue,
    env: LexicalScope,
    error_context: ErrorContext,
) -> SpecValue:
    """Convert each item of a list or pair. A single value becomes both items of a pair."""
    items = value if isinstance(value, tuple) else (value, value)
    expected, helps = "", []
    if type.name == "pair" and len(items) != 2:
        expected = f"one value or a pair, got a list of {len(items)}"
    if type.name == "list" and not isinstance(value, tuple):
        expected = f"a list, got {describe_value(value)}"
        helps = ["write a single item in brackets: `[…]`"]
    if expected:
        title = f"{error_context.description} must be {expected}"
        raise_error("E0203", title, error_context.span, helps=helps)
    item_context = ErrorContext(f"an item of {error_context.description}", error_context.span)
    return tuple(convert_to_declared_type(element, v, env, item_context) for v in items)


def _check_function_name(type: ast.TypeExpr, value: SpecValue, error_context: ErrorContext) -> None:
    """Raise E0203 for a built-in function of the wrong type, such as `gelu` as a norm."""
    if type.name not in FUNCTION_TYPES or not isinstance(value, BuiltinFunction):
        return
    names, expected, hint = FUNCTION_TYPES[type.name]
    if value.name not in names:
        title = f"{error_context.description} must be {expected}, got `{value.name}`"
        raise_error("E0203", title, error_context.span, helps=[f"{hint}, or a block of the spec"])


FUNCTION_TYPES: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    "norm": (
        ("layer_norm", "rms_norm", "identity"),
        "a norm",
        "write `layer_norm(eps=1e-5)`, `rms_norm(eps=1e-6)` or `identity`",
    ),
    "activation": (
        (*POINTWISE_FUNCTIONS, "identity", "softmax"),
        "an activation",
        "write relu, gelu, silu, tanh or another elementwise function",
    ),
    "positions": (
        ("sinusoid",),
        "a position encoding",
        "write `sinusoid(layout=halves)`, `learned(size=512)` or `none`",
    ),
}
"""For each function type, the built-in functions of this type, and the description and help text
shown by E0203. A block is accepted for every function type.
"""


def resolve_input_type(type: ast.TypeExpr, env: LexicalScope, origin: str) -> Type:
    """Return the type of a graph input. Raise E0202 for undeclared dimensions."""
    assert type.dims is not None
    # raise one error for all undeclared dimensions, because they usually have one cause: a missing
    # `dims` line
    undeclared_dims = [
        d for d in type.dims if isinstance(d, ast.Name) and not _is_known_length(d, env)
    ]
    if undeclared_dims:
        # report an undeclared dimension only once, even if several inputs use it
        env.dims.update({name.path: Dim.symbol(name.path) for name in undeclared_dims})
        raise SpeccError(*(make_undeclared_dim_error(d, env) for d in undeclared_dims))
    shape = (_evaluate_input_length(dim, env, origin) for dim in type.dims)
    return Type(
        get_declared_dtype(type), tuple(d.with_origin(Origin(type.span, origin)) for d in shape)
    )


def _evaluate_input_length(dim: ast.Expr | ast.EllipsisDims, env: LexicalScope, origin: str) -> Dim:
    """Evaluate a dimension of a graph input. Raise E0303 for `...`, and E0308 for size 0."""
    if isinstance(dim, ast.EllipsisDims):
        title = "`...` cannot be used in the type of a graph input"
        help_ = "write every dimension as a name from `dims` or a size"
        raise_error("E0303", title, dim.span, helps=[help_])
    length = _evaluate_length(dim, env)
    # a config value must not make an axis empty, but an axis may be empty at run time
    if length == 0:
        title = f"{origin} would be empty: `{_format_type_source(dim)}` is 0"
        span = length.origin.span if length.origin else None
        labels = Label.tuple_from_span(span, "defined here")
        raise_error("E0308", title, dim.span, related_labels=labels)
    return length


def _is_known_length(dim: ast.Name, env: LexicalScope) -> bool:
    """Return True if the name of a dimension is defined in `env`."""
    try:
        env.evaluate(dim)
    except SpeccError as failed:
        return not any(d.code == "E0202" for d in failed.diagnostics)
    return True


def get_declared_dtype(type: ast.TypeExpr) -> str:
    """Return the element type of a declared tensor type. Raise E0213 for any other type."""
    if type.name not in TENSOR_DTYPES:
        expected = f"expected one of {', '.join(TENSOR_DTYPES)}"
        default = FOREIGN_TENSOR_TYPES.get(type.name.lower(), expected)
        helps = suggest_similar_name(type.name, TENSOR_DTYPES, default)
        raise_error("E0213", f"unknown tensor type `{type.name}`", type.span, helps=helps)
    return TENSOR_DTYPES[type.name]


def _evaluate_length(expr: ast.Expr, env: LexicalScope) -> Dim:
    """Evaluate a dimension. Raise E0303 for a negative or non-integer dimension."""
    value = env.evaluate_value(expr)
    if isinstance(value, Dim) and (value.number is None or value.number >= 0):
        return value
    expected = f"not be negative, got {value}"
    if not isinstance(value, Dim):
        expected = f"be an integer, got {describe_value(value)}"
    raise_error("E0303", f"a length must {expected}", expr.span)


def check_tensor_type(
    type: ast.TypeExpr, value: SpecValue, env: LexicalScope, error_context: ErrorContext
) -> Tensor:
    """Check a tensor against a declared type, and bind dimension names that are not yet bound."""
    if not isinstance(value, Tensor):
        declaration = type.span.text if type.span else ""
        title = f"{error_context.description} must be a tensor, {declaration}"
        label, helps = f"this is {describe_value(value)}", suggest_tensor_expression(value, type)
        raise_error("E0203", title, error_context.span, label, helps=helps)
    related_labels = Label.tuple_from_span(type.span, "declared here")
    if value.type.dtype != get_declared_dtype(type):
        actual_dtype = format_type(value.type).split("[")[0]
        declaration = f"{error_context.description} is declared as {type.name}"
        title = f"{declaration}, but the tensor has {actual_dtype}"
        span = error_context.span
        helps = suggest_dtype_conversion(value.type, type.name, span)
        raise_error("E0301", title, span, helps=helps, related_labels=related_labels)
    dims = type.dims or ()
    ellipses = sum(isinstance(d, ast.EllipsisDims) for d in dims)
    # compute the number of axes that `...` represents
    ellipsis_rank = len(value.shape) - len(dims) + ellipses
    if ellipsis_rank < 0 or (ellipsis_rank and not ellipses):
        title = (
            f"{error_context.description} has {len(value.shape)} axes, but {len(dims)} are declared"
        )
        label = f"this is {describe_value(value)}"
        span = error_context.span
        change = "add one, as in `x[:, none]`"
        if ellipsis_rank > 0:
            change = "reduce one, as in `mean(x, axis=1)`"
        helps = [f"declare {len(value.shape)} axes, or {change}"]
        raise_error("E0301", title, span, label, helps=helps, related_labels=related_labels)
    _match_dims(_TypeMatcher(type, value, env, error_context), dims, ellipsis_rank)
    return value


def _match_dims(
    matcher: "_TypeMatcher", dims: Iterable[ast.Expr | ast.EllipsisDims], ellipsis_rank: int
) -> None:
    """Match declared dimensions to axes in order, where `...` stands for `ellipsis_rank` axes."""
    lengths = iter(matcher.tensor.shape)
    for dim in dims:
        if isinstance(dim, ast.EllipsisDims):
            matcher.match_ellipsis(tuple(islice(lengths, ellipsis_rank)))
        else:
            matcher.match_length(dim, next(lengths))


@dataclass(frozen=True, slots=True)
class _TypeMatcher:
    """A comparison of a tensor with its declared type, axis by axis."""

    type: ast.TypeExpr
    tensor: Tensor
    env: LexicalScope
    error_context: ErrorContext

    def match_ellipsis(self, lengths: tuple[Dim, ...]) -> None:
        """Match `...`, which must stand for the same dimensions everywhere in a block."""
        bound_lengths = self.env.names.setdefault("...", lengths)
        if bound_lengths != lengths:
            assert isinstance(bound_lengths, tuple)  # `...` cannot be the name of a value in a spec
            lengths_text = ", ".join(map(str, bound_lengths))
            title = f"{self.error_context.description}: `...` is ({lengths_text}) in this block"
            raise_error("E0301", title, self.error_context.span, describe_value(self.tensor))

    def match_length(self, expr: ast.Expr, actual: Dim) -> None:
        """Match a declared dimension to an axis size: bind a new name, or compare the sizes."""
        if isinstance(expr, ast.Name):
            # `_` matches any size and binds nothing
            if expr.path == "_":
                return
            bound_length = self._find_bound_length(expr.path)
            if bound_length is None:
                self._bind_length(expr.path, actual)
                return
            expected = bound_length
        else:
            expected = _evaluate_length(expr, self.env)
        if expected != actual and not self._is_assumed_equal(expected, actual):
            self._raise_length_clash(expr, expected, actual)

    def _find_bound_length(self, name: str) -> Dim | None:
        """Return the dimension to which a name is bound in the scope, or None if there is none."""
        env = self.env
        values = (names.get(name) for names in (env.dims, env.names, env.config))
        return next((v for v in values if isinstance(v, Dim)), env.find_dynamic_length(name))

    def _bind_length(self, name: str, length: Dim) -> None:
        """Bind a name to a dimension. In a used file, also bind the symbolic dimension `name`."""
        env = self.env
        env.dims[name] = length
        if env.dynamic_lengths is not None and name in env.module.root.dims:
            env.dynamic_lengths[name] = length

    def _is_assumed_equal(self, declared: Dim, actual: Dim) -> bool:
        """Return True if two sizes are equal, assuming that all quotients are exact. For example,
        the `image // 2` positions of `x[::2]` match `image / 2`. Dynamic dimensions are excluded,
        because a remainder would not be detected at run time.
        """
        symbols = declared.symbols() | actual.symbols()
        if not symbols or self.env.context.has_dynamic_symbol(symbols):
            return False
        return convert_to_floor_division(declared) == convert_to_floor_division(actual)

    def _raise_length_clash(self, expr: ast.Expr, declared: Dim, actual: Dim) -> NoReturn:
        span, description = self.type.span, self.error_context.description
        labels = Label.tuple_from_span(span, f"declared as `{_format_type_source(expr)}`")
        for dim in (declared, actual):
            if dim.origin:
                labels += Label.tuple_from_span(dim.origin.span, f"`{dim}` comes from here")
        text = _format_type_source(expr)
        expected = f"{declared} is declared" if text == str(declared) else f"`{text}` is {declared}"
        raise SpeccError(
            Diagnostic(
                "E0302",
                f"{description} has length {actual}, but {expected}",
                Label.from_span(self.error_context.span, f"this is {describe_value(self.tensor)}"),
                tuple({lab.span: lab for lab in labels}.values()),
                helps=self._suggest_length_fixes(expr, actual),
            )
        )

    def _suggest_length_fixes(self, expr: ast.Expr, actual: Dim) -> tuple[str, ...]:
        """Return help messages for an axis that is declared as `expr` but has length `actual`."""
        context = self.error_context
        if not context.block:  # names in `expr` may be undefined in the caller
            return suggest_length_correction(_format_type_source(expr), actual, context.span)
        name = expr.path if isinstance(expr, ast.Name) else ""
        is_captured = name in self.env.module.root.dims and name not in self.env.dims
        # in a block of another file, the arguments determine the dimension
        if not is_captured or self.env.dynamic_lengths is not None:
            return ()
        return (
            f"in `{context.block}`, `{name}` is the length declared in `dims`; for an independent "
            f"length use a name that `dims` does not contain, such as `{name}_`",
        )


def _format_type_source(expr: ast.Expr | ast.EllipsisDims) -> str:
    return expr.span.text if expr.span else str(expr)


def convert_to_floor_division(length: Dim) -> Dim:
    """Replace each exact quotient `a / b` with `a // b`. Both are equal if `a / b` is defined."""

    def replace_atom(atom: Atom) -> Dim:
        if isinstance(atom, str):
            return Dim.symbol(atom)
        fn = "//" if atom.fn == "/" else atom.fn
        return DIM_FUNCTIONS[fn](*(convert_to_floor_division(a) for a in atom.args))

    return length.map_atoms(replace_atom)
