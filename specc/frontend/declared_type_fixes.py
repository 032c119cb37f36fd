"""Suggested fixes for values that do not match a declared tensor type."""

from collections.abc import Mapping

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_values import (
    BlockFunction,
    BuiltinFunction,
    CombinedMask,
    DefinitionFunction,
    SpecValue,
    Tensor,
)
from specc.ir.dim import Dim
from specc.ir.types import KIND_BY_DTYPE, Type
from specc.syntax import ast

FOREIGN_TENSOR_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("long", "integer", "ids", "i64", "i32"), "write `int`"),
    **dict.fromkeys(("double", "half", "tensor", "f32", "f16", "real"), "write `float`"),
    **dict.fromkeys(("mask", "boolean"), "write `keep` for a padding mask, otherwise `bool`"),
}
"""The help messages for element types of other libraries, by lowercase name."""

FOREIGN_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "string"), "write `text`"),
    **dict.fromkeys(("integer", "long"), "write `int`"),
    **dict.fromkeys(("double", "number", "real"), "write `float`"),
    "optional": "write `?` after the type: `int?`",
    **dict.fromkeys(("dict", "struct", "object"), "write `record { name: type = value }`"),
    **dict.fromkeys(("tuple", "sequence", "array"), "write `list[int]` or `pair[int]`"),
    "enum": "write `choice(a | b)`",
}
"""The help messages for type names of other languages, by lowercase name."""


def make_undeclared_dim_error(dim: ast.Name, env: LexicalScope) -> Diagnostic:
    """Return E0202 for an undeclared dimension in a declared type."""
    declared_names = env.module.root.dims
    length_names = [*declared_names, *(n for n, v in env.config.items() if isinstance(v, Dim))]
    helps = (
        *suggest_similar_name(dim.path, length_names),
        f"declare dynamic lengths in `dims`: `dims {', '.join([*declared_names, dim.path])}`",
    )
    primary = Label.from_span(dim.span, "unknown length")
    title = f"the dimension `{dim.path}` is not declared"
    return Diagnostic("E0202", title, primary, helps=helps)


def suggest_tensor_expression(value: SpecValue, type: ast.TypeExpr) -> list[str]:
    """Suggest a tensor of the declared type to replace a value that is not a tensor."""
    match value:
        case DefinitionFunction() | CombinedMask():
            return ["definitions such as masks are arguments of attention, not tensors"]
        case BlockFunction(name=name) | BuiltinFunction(name=name):
            return [f"call the function: `{name}(…)`"]
        case (Tensor(), *_):
            return ["`stack(xs, axis=0)` stacks the tensors of a list, and `xs[0]` selects one"]
        case str() if value.isidentifier():
            return [f"write a name without quotes: `{value}`"]
    texts = [dim.span.text if dim.span else "_" for dim in type.dims or ()]
    if "_" in texts or "..." in texts:
        return ["write an operation that returns a tensor of this type"]
    shape = ", ".join(texts)
    if isinstance(value, bool | float | Dim):
        constant = _format_constant_tensor(value, type.name, shape)
        return [f"for a tensor with this value in every element, write `{constant}`"]
    constant = _format_constant_tensor(0.0, type.name, shape)
    return [f"write an operation that returns a tensor of this type, such as `{constant}`"]


def _format_constant_tensor(value: bool | float | Dim, type_name: str, shape: str) -> str:
    """Return an expression for a tensor in which every element is `value`."""
    if type_name in ("bool", "keep"):
        return f"ones(shape=[{shape}]) {'>' if value else '<'} 0.0"
    number = value if isinstance(value, Dim) else float(value)
    if type_name == "int":
        number = number if isinstance(number, Dim) else int(number)
        return f"cast(zeros(shape=[{shape}]), to=int){f' + {number}' if number else ''}"
    if not number:
        return f"zeros(shape=[{shape}])"
    is_name = isinstance(number, Dim) and number.number is None
    text = f"float({number})" if is_name else f"{float(str(number))}"
    return f"zeros(shape=[{shape}]) + {text}"


def suggest_dtype_conversion(actual: Type, declared_name: str, span: Span | None) -> list[str]:
    """Suggest a conversion of a tensor to the declared element type."""
    name = span.text if span and span.text.isidentifier() else "x"
    match declared_name:
        case "float" | "int":
            return [f"convert it with `cast({name}, to={declared_name})`"]
        case "bool" | "keep":
            zero = "0.0" if KIND_BY_DTYPE[actual.dtype] == "f" else "0"
            return [f"compare it, for example `{name} != {zero}`"]
    return []
