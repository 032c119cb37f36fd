"""Check values against declared types: static kinds, and tensor types whose names bind lengths."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label, raise_error
from specc.diagnostics.source import Origin, Span
from specc.diagnostics.suggest import did_you_mean, format_suggestion, suggest_similar_name
from specc.frontend.context import Context, Env
from specc.frontend.foreign_names import resolve_hf_activation
from specc.frontend.parameter_kinds import (
    ANYTHING,
    BOOL,
    FLOAT,
    FUNCTION,
    INTEGER,
    MASK,
    NORMALIZER,
    RECORD,
    ROPE,
    SCORE,
    TEXT,
    ChoiceKind,
    ParameterKind,
    convert_to_kind,
)
from specc.frontend.scalar_arithmetic import convert_to_float
from specc.frontend.spec_values import (
    BuiltinFunction,
    ChoiceValue,
    SpecValue,
    Tensor,
    describe_value,
    format_type,
    take_first_result,
)
from specc.ir.dim import Dim
from specc.ir.dim_bounds import replace_exact_division
from specc.ir.ops.tensor import POINTWISE_FUNCTIONS
from specc.ir.types import Type
from specc.syntax import ast

STATIC_KINDS: dict[str, ParameterKind] = {
    "int": INTEGER,
    "float": FLOAT,
    "bool": BOOL,
    "text": TEXT,
    "mask": MASK,
    "score": SCORE,
    "bias": ANYTHING,
    "normalizer": NORMALIZER,
    "positions": FUNCTION,
    "norm": FUNCTION,
    "activation": FUNCTION,
    "rope": ROPE,
    "record": RECORD,
    "any": ANYTHING,
}
"""Types without brackets."""

TENSOR_DTYPES = {"float": "f32", "int": "i64", "bool": "bool", "keep": "bool"}
"""Types with brackets."""


@dataclass(frozen=True, slots=True)
class ValueContext:
    """What a value is for, as messages call it, and where it stands."""

    what: str
    span: Span | None
    block: str = ""


def is_tensor_type(type: ast.TypeName) -> bool:
    """Whether a declared type is that of a tensor."""
    return type.dims is not None


def is_function_type(type: ast.TypeName) -> bool:
    """Whether a value of this type is something to apply, so that calls are held."""
    return type.name in ("positions", "norm", "activation", "any")


def check_type_name(type: ast.TypeName) -> None:
    """E0213 for a type that does not exist."""
    if type.name in ("list", "pair", "choice") or type.name in STATIC_KINDS:
        return
    known = [*STATIC_KINDS, "list", "pair", "choice", "keep"]
    helps = suggest_similar_name(type.name, known, f"types are {', '.join(known)}")
    raise_error("E0213", f"there is no type `{type.name}`", type.span, helps=helps)


def convert_to_declared_type(
    context: Context, type: ast.TypeName, value: SpecValue, env: Env, place: ValueContext
) -> SpecValue:
    """`value` as the declared static type, or E0203."""
    what, span = place.what, place.span
    if value is None and type.optional:
        return None
    check_type_name(type)
    if type.name == "list":
        return _convert_list(context, type, value, env, place)
    if type.name == "pair":
        return _convert_pair(context, type, value, env, place)
    if type.name == "choice":
        word = convert_to_kind(value, (ChoiceKind(type.names),), what, span)
        assert isinstance(word, str)  # the kind gives the word alone
        return ChoiceValue(word, type.names)
    if type.name == "activation" and isinstance(value, str):
        return resolve_hf_activation(context, value, env, span)
    fitted = convert_to_kind(value, (STATIC_KINDS[type.name],), what, span)
    if type.name == "float" and isinstance(fitted, Dim):
        return convert_to_float(context, fitted, span)  # a length, as one with a fraction
    _check_function_name(type, fitted, place)
    return fitted


def _convert_list(
    context: Context, type: ast.TypeName, value: SpecValue, env: Env, place: ValueContext
) -> SpecValue:
    """Each item as the declared type of items."""
    assert type.of is not None
    if not isinstance(value, tuple):
        raise_error("E0203", f"{place.what} is a list, not {describe_value(value)}", place.span)
    item = ValueContext(f"an item of {place.what}", place.span)
    return tuple(convert_to_declared_type(context, type.of, v, env, item) for v in value)


def _convert_pair(
    context: Context, type: ast.TypeName, value: SpecValue, env: Env, place: ValueContext
) -> SpecValue:
    """`[a, b]`; one value stands for both."""
    assert type.of is not None  # the grammar has it so
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2:
        title = f"{place.what} is one value or a pair of them, not a list of {len(both)}"
        raise_error("E0203", title, place.span)
    item = ValueContext(f"an item of {place.what}", place.span)
    return tuple(convert_to_declared_type(context, type.of, v, env, item) for v in both)


def _check_function_name(type: ast.TypeName, value: SpecValue, place: ValueContext) -> None:
    """E0203 for a word that is no norm where a norm is due, and the like. A block may
    stand for any of these: nobody knows what it does.
    """
    fitting = FUNCTION_NAME_CHECKS.get(type.name)
    if fitting is None or not isinstance(value, BuiltinFunction) or fitting(value.name):
        return
    title = f"{place.what} takes {EXPECTED_FUNCTIONS[type.name]}, and `{value.name}` is none"
    helps = [f"{FUNCTION_HINTS[type.name]}, or a block of your own"]
    raise_error("E0203", title, place.span, helps=helps)


NORM_NAMES = ("layer_norm", "rms_norm", "identity")
ACTIVATION_NAMES = (*POINTWISE_FUNCTIONS, "identity", "softmax")
FUNCTION_NAME_CHECKS: dict[str, Callable[[str], bool]] = {
    "norm": NORM_NAMES.__contains__,
    "activation": ACTIVATION_NAMES.__contains__,
    "positions": lambda name: name == "sinusoid",
}
"""Which words may stand where one of a kind is meant; blocks may be anything."""
EXPECTED_FUNCTIONS = {"norm": "a norm", "activation": "an activation", "positions": "positions"}
FUNCTION_HINTS = {
    "norm": "write `layer_norm(eps=1e-5)`, `rms_norm(eps=1e-6)` or `identity`",
    "activation": "write relu, gelu, silu, tanh or another function of one number",
    "positions": "write `sinusoid(layout=halves)`, `learned(size=512)` or `none`",
}


def resolve_input_type(context: Context, type: ast.TypeName, env: Env, origin: str) -> Type:
    """The type of a graph input: every length must be known by name."""
    assert type.dims is not None
    # all at once: who forgot `dims` forgot them all
    undeclared = [
        d for d in type.dims if isinstance(d, ast.Name) and not _is_known_length(context, d, env)
    ]
    for name in undeclared:
        env.dims[name.path] = Dim.symbol(name.path)  # said once, for all inputs
    if undeclared:
        raise Failed(*(_explain_undeclared_length(d, env) for d in undeclared))
    shape = []
    for dim in type.dims:
        if isinstance(dim, ast.EllipsisDims):
            raise_error("E0303", "`...` has no meaning on the input of a graph", dim.span)
        made = _evaluate_length(context, dim, env)
        # a length of 0 that comes from the config; at run time 0 may be allowed
        if made == 0:
            source = made.origin.span if made.origin else None
            others = [Label(source, "which comes from here")] if source else []
            raise_error(
                "E0308",
                f"{origin} would be empty: `{_format_type_source(dim)}` is 0",
                dim.span,
                others=others,
            )
        shape.append(made.since(Origin(type.span, origin)))
    return Type(get_declared_dtype(type), tuple(shape))


def _is_known_length(context: Context, dim: ast.Name, env: Env) -> bool:
    try:
        context.evaluator.evaluate(context, dim, env)
    except Failed as failed:
        return not any(d.code == "E0202" for d in failed.diagnostics)
    return True


def _explain_undeclared_length(dim: ast.Name, env: Env) -> Diagnostic:
    """E0202 for a length that nothing declares."""
    near = did_you_mean(
        dim.path, [*env.module.root.dims, *(n for n, v in env.config.items() if isinstance(v, Dim))]
    )
    declare = (
        "a length that the input decides is declared above: `dims "
        f"{', '.join([*env.module.root.dims, dim.path])}`"
    )
    helps = (format_suggestion(near), declare) if near else (declare,)
    primary = Label(dim.span, "unknown length") if dim.span else None
    return Diagnostic("E0202", f"the length `{dim.path}` is not declared", primary, helps=helps)


def get_declared_dtype(type: ast.TypeName) -> str:
    """The element type a declaration asks for."""
    if type.name not in TENSOR_DTYPES:
        helps = suggest_similar_name(
            type.name, TENSOR_DTYPES, f"tensors hold {', '.join(TENSOR_DTYPES)}"
        )
        raise_error("E0213", f"there is no tensor of `{type.name}`", type.span, helps=helps)
    return TENSOR_DTYPES[type.name]


def _evaluate_length(context: Context, expr: ast.Expr, env: Env) -> Dim:
    value = take_first_result(context.evaluator.evaluate(context, expr, env))
    if not isinstance(value, Dim):
        raise_error("E0303", f"a length is a whole number, not {describe_value(value)}", expr.span)
    if value.number is not None and value.number < 0:
        raise_error("E0303", f"a length cannot be {value}", expr.span)
    return value


def match_tensor_type(
    context: Context, type: ast.TypeName, value: SpecValue, env: Env, place: ValueContext
) -> Tensor:
    """Check a tensor against a declared type; names not known yet become the lengths found."""
    if not isinstance(value, Tensor):
        title = f"{place.what} is a tensor, {type.span.text if type.span else ''}"
        raise_error("E0203", title, place.span, f"this is {describe_value(value)}")
    others = [Label(type.span, "declared here")] if type.span else []
    if value.type.dtype != get_declared_dtype(type):
        holds = format_type(value.type).split("[")[0]
        title = f"{place.what} holds {holds} where {type.name} is declared"
        raise_error("E0301", title, place.span, others=others)
    dims = type.dims or ()
    spread = [n for n, d in enumerate(dims) if isinstance(d, ast.EllipsisDims)]
    # so many axes are left for `...` to stand for
    extra = len(value.shape) - len(dims) + len(spread)
    if extra < 0 or (extra and not spread):
        title = f"{place.what} has {len(value.shape)} axes where {len(dims)} are declared"
        raise_error("E0301", title, place.span, f"this is {describe_value(value)}", others=others)
    matching = _TypeMatcher(context, type, value, env, place)
    at = 0
    for dim in dims:
        if isinstance(dim, ast.EllipsisDims):
            matching.rest(value.shape[at : at + extra])
            at += extra
        else:
            matching.length(dim, value.shape[at])
            at += 1
    return value


@dataclass(frozen=True, slots=True)
class _TypeMatcher:
    """A tensor held against its declared type, axis by axis."""

    context: Context
    type: ast.TypeName
    tensor: Tensor
    env: Env
    place: ValueContext

    def rest(self, lengths: Sequence[Dim]) -> None:
        """`...`: the lengths it stands for are the same wherever it stands in a block."""
        known = self.env.names.setdefault("...", tuple(lengths))
        if known != tuple(lengths):
            assert isinstance(known, tuple)  # no name of a spec is spelled so
            title = f"{self.place.what}: `...` stands for ({', '.join(map(str, known))}) here"
            raise_error("E0301", title, self.place.span, describe_value(self.tensor))

    def length(self, expr: ast.Expr, actual: Dim) -> None:
        """One length: a new name becomes the length found, anything else must be it."""
        if isinstance(expr, ast.Name):
            # `_` matches any length and binds nothing
            if expr.path == "_":
                return
            known = self.env.dims.get(expr.path) or _find_length(expr.path, self.env)
            if known is None:
                self._named(expr.path, actual)
                return
            wanted = known
        else:
            wanted = _evaluate_length(self.context, expr, self.env)
        if wanted != actual and not self._promised(wanted, actual):
            self._clash(expr, wanted, actual)

    def _promised(self, wanted: Dim, actual: Dim) -> bool:
        """Whether the two are one because `image / 2` says that 2 divides `image`: so
        the `image // 2` rows of `x[::2]` are as many. What an input tells is not
        settled so, for nobody would see that its half is not whole.
        """
        symbols = wanted.symbols() | actual.symbols()
        if not symbols or self.context.late(symbols):
            return False
        return replace_exact_division(wanted) == replace_exact_division(actual)

    def _named(self, name: str, length: Dim) -> None:
        self.env.dims[name] = length
        # of a used file, this is what its run-time length stands for in this call
        if self.env.lengths is not None and name in self.env.module.root.dims:
            self.env.lengths[name] = length

    def _clash(self, expr: ast.Expr, wanted: Dim, actual: Dim) -> NoReturn:
        span, what = self.type.span, self.place.what
        labels = [Label(span, f"declared as `{_format_type_source(expr)}`")] if span else []
        labels += [
            Label(d.origin.span, f"`{d}` comes from here")
            for d in (wanted, actual)
            if d.origin and d.origin.span
        ]
        at = self.place.span
        raise Failed(
            Diagnostic(
                "E0302",
                f"{what} has a length of {actual} where {_format_expected_length(expr, wanted)}",
                Label(at, f"this is {describe_value(self.tensor)}") if at else None,
                tuple({lab.span: lab for lab in labels}.values()),
                helps=self._captured(expr),
            )
        )

    def _captured(self, expr: ast.Expr) -> tuple[str, ...]:
        """The help where a block's type names a length that `dims` declares."""
        block = self.place.block
        name = expr.path if isinstance(expr, ast.Name) else ""
        declared = name in self.env.module.root.dims and name not in self.env.dims
        # in a block of another file it is what the caller's operands say
        if not block or not declared or self.env.lengths is not None:
            return ()
        return (
            f"`{name}` in `{block}` is the length that `dims` declares: give the "
            f"block's own length a name that `dims` does not have, such as `{name}_`",
        )


def _find_length(name: str, env: Env) -> Dim | None:
    """A length that the name has already, as a variable, in the config or in `dims`."""
    for names in (env.names, env.config):
        value = names.get(name)
        if isinstance(value, Dim):
            return value
    return env.find_runtime_length(name)


def _format_expected_length(expr: ast.Expr, wanted: Dim) -> str:
    text = _format_type_source(expr)
    return f"{wanted} is declared" if text == str(wanted) else f"`{text}` is {wanted}"


def _format_type_source(expr: ast.Expr | ast.EllipsisDims) -> str:
    return expr.span.text if expr.span else str(expr)
