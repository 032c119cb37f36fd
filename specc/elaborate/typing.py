"""Declared types: static kinds of parameters and config fields, and tensor types whose names bind lengths."""

from collections.abc import Callable
from typing import Any, Literal

from specc.elaborate.context import Context, Env
from specc.elaborate.kinds import Applied, Kind, Mask, Score, fit
from specc.elaborate.values import POISON, Function, Picked, Record, Rope, Tensor, describe, first, show_type
from specc.ir.dim import Dim
from specc.ir.ops.tensor import POINTWISE
from specc.ir.types import Type
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Origin, Span
from specc.text.suggest import did_you_mean

STATIC: dict[str, Kind] = {
    "int": Dim,
    "float": float,
    "bool": bool,
    "text": str,
    "mask": Mask,
    "score": Score,
    "bias": Any,
    "positions": Applied,
    "norm": Applied,
    "activation": Applied,
    "rope": Rope,
    "record": Record,
    "any": Any,
}
"""Types without brackets."""

TENSORS = {"float": "f32", "int": "i64", "bool": "bool", "keep": "bool"}
"""Types with brackets."""


def is_tensor(type: tree.TypeName) -> bool:
    """Whether a declared type is that of a tensor."""
    return type.dims is not None


def applied(type: tree.TypeName) -> bool:
    """Whether a value of this type is something to apply, so that calls are held."""
    return type.name in ("positions", "norm", "activation", "any")


def check_static_name(type: tree.TypeName) -> None:
    """E0213 for a type that does not exist."""
    if type.name in ("list", "choice") or type.name in STATIC:
        return
    near = did_you_mean(type.name, [*STATIC, "list", "choice", "keep"])
    helps = [f"did you mean `{near}`?" if near else f"types are {', '.join([*STATIC, 'list', 'choice', 'keep'])}"]
    fail("E0213", f"there is no type `{type.name}`", type.span, helps=helps)


def fit_static(context: Context, value: Any, type: tree.TypeName, what: str, span: Span | None, env: Env) -> Any:
    """`value` as the declared static type, or E0203."""
    value = first(value)
    if value is None and type.optional:
        return None
    check_static_name(type)
    if type.name == "list":
        assert type.of is not None
        if not isinstance(value, tuple):
            fail("E0203", f"{what} is a list, not {describe(value)}", span)
        return tuple(fit_static(context, v, type.of, f"an item of {what}", span, env) for v in value)
    if type.name == "choice":
        word = fit(value, Literal[type.names], what, span)
        return Picked(word, type.names)
    if type.name == "activation" and isinstance(value, str):
        return activation(context, value, env, span)
    made = fit(value, STATIC[type.name], what, span)
    if type.name in FITTING and isinstance(made, Function) and made.kind == "op" and not FITTING[type.name](made.name):
        helps = [f"{HINTS[type.name]}, or a block of your own"]
        fail("E0203", f"{what} takes {WANTED[type.name]}, and `{made.name}` is none", span, helps=helps)
    return made


NORMS = ("layer_norm", "rms_norm", "identity")
CURVES = (*POINTWISE, "identity", "softmax")
FITTING: dict[str, Callable[[str], bool]] = {
    "norm": NORMS.__contains__,
    "activation": CURVES.__contains__,
    "positions": lambda name: name == "sinusoid",
}
"""Which words may stand where one of a kind is meant; blocks may be anything."""
WANTED = {"norm": "a norm", "activation": "an activation", "positions": "positions"}
HINTS = {
    "norm": "write layer_norm(eps=1e-5), rms_norm(eps=1e-6) or identity",
    "activation": "write relu, gelu, silu, tanh or another function of one number",
    "positions": "write sinusoid(layout=halves), learned(size=512) or none",
}


ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
    "relu_squared": "relu2",
    "linear": "identity",
}
"""Other names of activations in published config files."""


def activation(context: Context, name: str, env: Env, span: Span | None) -> Any:
    """An activation by its name in a config file. Unknown ones are refused, never guessed."""
    spec_name = tree.Name(ACTIVATIONS.get(name, name), span=span)
    found = context.evaluate(context, spec_name, env)
    return fit(found, Applied, f'the activation "{name}"', span)


def declared(context: Context, type: tree.TypeName, env: Env, origin: str) -> Type:
    """The type of a graph input: every length must be known by name."""
    assert type.dims is not None
    undeclared = [d for d in type.dims if isinstance(d, tree.Name) and not _named(context, d, env)]
    for name in undeclared:
        env.dims[name.path] = Dim.symbol(name.path)  # said once, for all inputs
    if undeclared:
        raise Failed(*(_undeclared(d, env) for d in undeclared))
    shape = []
    for dim in type.dims:
        if isinstance(dim, tree.Rest):
            fail("E0303", "`...` has no meaning on the input of a graph", dim.span)
        made = _dim(context, dim, env)
        if made == 0:
            source = made.origin.span if made.origin else None
            others = [Label(source, "which comes from here")] if source else []
            fail("E0308", f"{origin} would be empty: `{_text(dim)}` is 0", dim.span, others=others)
        shape.append(made.since(Origin(type.span, origin)))
    return Type(dtype_of(type), tuple(shape))


def _named(context: Context, dim: tree.Name, env: Env) -> bool:
    try:
        context.evaluate(context, dim, env)
    except Failed as failed:
        return not any(d.code == "E0202" for d in failed.diagnostics)
    return True


def _undeclared(dim: tree.Name, env: Env) -> Diagnostic:
    """E0202 for a length that nothing declares."""
    near = did_you_mean(dim.path, [*env.module.dims, *(n for n, v in env.config.items() if isinstance(v, Dim))])
    declare = f"a length that the input decides is declared above: `dims {', '.join([*env.module.dims, dim.path])}`"
    helps = (f"did you mean `{near}`?", declare) if near else (declare,)
    primary = Label(dim.span, "unknown length") if dim.span else None
    return Diagnostic("E0202", f"the length `{dim.path}` is not declared", primary, helps=helps)


def dtype_of(type: tree.TypeName) -> str:
    """The element type a declaration asks for."""
    if type.name not in TENSORS:
        near = did_you_mean(type.name, TENSORS)
        helps = [f"did you mean `{near}`?" if near else f"tensors hold {', '.join(TENSORS)}"]
        fail("E0213", f"there is no tensor of `{type.name}`", type.span, helps=helps)
    return TENSORS[type.name]


def _dim(context: Context, expr: Any, env: Env) -> Dim:
    value = first(context.evaluate(context, expr, env))
    if not isinstance(value, Dim):
        fail("E0303", f"a length is a whole number, not {describe(value)}", expr.span)
    if value.number is not None and value.number < 0:
        fail("E0303", f"a length cannot be {value}", expr.span)
    return value


def match_tensor(context: Context, type: tree.TypeName, value: Any, env: Env, span: Span | None, what: str) -> Tensor:
    """Check a tensor against a declared type; names not known yet become the lengths found."""
    if not isinstance(value, Tensor):
        label = f"this is {describe(value)}"
        fail("E0203", f"{what} is a tensor, {type.span.text if type.span else ''}", span, label)
    if value.type.dtype != dtype_of(type):
        title = f"{what} holds {show_type(value.type).split('[')[0]} where {type.name} is declared"
        others = [Label(type.span, "declared here")] if type.span else []
        fail("E0301", title, span, others=others)
    dims = list(type.dims or ())
    spread = [n for n, d in enumerate(dims) if isinstance(d, tree.Rest)]
    extra = len(value.shape) - len(dims) + len(spread)
    if extra < 0 or (extra and not spread):
        title = f"{what} has {len(value.shape)} axes where {len(dims)} are declared"
        others = [Label(type.span, "declared here")] if type.span else []
        fail("E0301", title, span, f"this is {describe(value)}", others=others)
    actual = list(value.shape)
    for n, dim in enumerate(dims):
        if isinstance(dim, tree.Rest):
            _rest(tuple(actual[n : n + extra]), env, value, span, what)
            continue
        at = n if not spread or n < spread[0] else n + extra - 1
        _match_dim(context, dim, actual[at], env, value, type, span, what)
    return value


def _rest(found: tuple[Dim, ...], env: Env, value: Tensor, span: Span | None, what: str) -> None:
    known = env.names.setdefault("...", found)
    if known != found:
        fail("E0301", f"{what}: `...` stands for ({', '.join(map(str, known))}) here", span, describe(value))


def _match_dim(
    context: Context,
    expr: Any,
    actual: Dim,
    env: Env,
    value: Tensor,
    type: tree.TypeName,
    span: Span | None,
    what: str,
) -> None:
    if isinstance(expr, tree.Name):
        if expr.path == "_":
            return
        known = env.dims.get(expr.path) or _known(expr.path, env)
        if known is None:
            env.dims[expr.path] = actual
            if env.lengths is not None and expr.path in env.module.dims:
                env.lengths[expr.path] = actual
            return
        if known is POISON:
            return
        wanted = known
    else:
        wanted = _dim(context, expr, env)
    if wanted == actual:
        return
    labels = [Label(type.span, f"declared as `{_text(expr)}`")] if type.span else []
    labels += [Label(d.origin.span, f"`{d}` comes from here") for d in (wanted, actual) if d.origin and d.origin.span]
    raise Failed(
        Diagnostic(
            "E0302",
            f"{what} has a length of {actual} where {_wanted(expr, wanted)}",
            Label(span, f"this is {describe(value)}") if span else None,
            tuple({lab.span: lab for lab in labels}.values()),
        )
    )


def _known(name: str, env: Env) -> Any:
    for names in (env.names, env.config):
        if name in names and isinstance(names[name], Dim):
            return names[name]
    return env.run_time(name)


def _wanted(expr: Any, wanted: Dim) -> str:
    text = _text(expr)
    return f"{wanted} is declared" if text == str(wanted) else f"`{text}` is {wanted}"


def _text(expr: Any) -> str:
    return expr.span.text if expr.span else str(expr)
