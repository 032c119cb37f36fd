"""Declared types: static kinds of parameters and config fields, and tensor types whose
names bind lengths.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from specc.elaborate.activations import activation
from specc.elaborate.context import Context, Env
from specc.elaborate.kinds import (
    ANYTHING,
    APPLIED,
    BOOL,
    FLOAT,
    MASK,
    NORMALIZER,
    RECORD,
    ROPE,
    SCORE,
    TEXT,
    WHOLE,
    Kind,
    OneOf,
    fit,
)
from specc.elaborate.numbers import as_float
from specc.elaborate.values import (
    Known,
    Picked,
    Tensor,
    WordFunction,
    describe,
    first,
    show_type,
)
from specc.ir.dim import Dim
from specc.ir.least import rounded
from specc.ir.ops.tensor import POINTWISE
from specc.ir.types import Type
from specc.lang import tree
from specc.text.diagnostic import Diagnostic, Failed, Label, fail
from specc.text.source import Origin, Span
from specc.text.suggest import did_you_mean, suggest, suggestion

STATIC: dict[str, Kind] = {
    "int": WHOLE,
    "float": FLOAT,
    "bool": BOOL,
    "text": TEXT,
    "mask": MASK,
    "score": SCORE,
    "bias": ANYTHING,
    "normalizer": NORMALIZER,
    "positions": APPLIED,
    "norm": APPLIED,
    "activation": APPLIED,
    "rope": ROPE,
    "record": RECORD,
    "any": ANYTHING,
}
"""Types without brackets."""

TENSORS = {"float": "f32", "int": "i64", "bool": "bool", "keep": "bool"}
"""Types with brackets."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a value is for, as messages call it, and where it stands."""

    what: str
    span: Span | None
    block: str = ""


def is_tensor(type: tree.TypeName) -> bool:
    """Whether a declared type is that of a tensor."""
    return type.dims is not None


def applied(type: tree.TypeName) -> bool:
    """Whether a value of this type is something to apply, so that calls are held."""
    return type.name in ("positions", "norm", "activation", "any")


def check_static_name(type: tree.TypeName) -> None:
    """E0213 for a type that does not exist."""
    if type.name in ("list", "pair", "choice") or type.name in STATIC:
        return
    known = [*STATIC, "list", "pair", "choice", "keep"]
    helps = suggest(type.name, known, f"types are {', '.join(known)}")
    fail("E0213", f"there is no type `{type.name}`", type.span, helps=helps)


def fit_static(
    context: Context, type: tree.TypeName, value: Known, env: Env, place: Place
) -> Known:
    """`value` as the declared static type, or E0203."""
    what, span = place.what, place.span
    if value is None and type.optional:
        return None
    check_static_name(type)
    if type.name == "list":
        return _list(context, type, value, env, place)
    if type.name == "pair":
        return _pair(context, type, value, env, place)
    if type.name == "choice":
        word = fit(value, (OneOf(type.names),), what, span)
        assert isinstance(word, str)  # the kind gives the word alone
        return Picked(word, type.names)
    if type.name == "activation" and isinstance(value, str):
        return activation(context, value, env, span)
    fitted = fit(value, (STATIC[type.name],), what, span)
    if type.name == "float" and isinstance(fitted, Dim):
        return as_float(context, fitted, span)  # a length, as one with a fraction
    _check_word(type, fitted, place)
    return fitted


def _list(
    context: Context, type: tree.TypeName, value: Known, env: Env, place: Place
) -> Known:
    """Each item as the declared type of items."""
    assert type.of is not None
    if not isinstance(value, tuple):
        fail("E0203", f"{place.what} is a list, not {describe(value)}", place.span)
    item = Place(f"an item of {place.what}", place.span)
    return tuple(fit_static(context, type.of, v, env, item) for v in value)


def _pair(
    context: Context, type: tree.TypeName, value: Known, env: Env, place: Place
) -> Known:
    """`[a, b]`; one value stands for both."""
    assert type.of is not None  # the grammar has it so
    both = value if isinstance(value, tuple) else (value, value)
    if len(both) != 2:
        title = (
            f"{place.what} is one value or a pair of them, not a list of {len(both)}"
        )
        fail("E0203", title, place.span)
    item = Place(f"an item of {place.what}", place.span)
    return tuple(fit_static(context, type.of, v, env, item) for v in both)


def _check_word(type: tree.TypeName, value: Known, place: Place) -> None:
    """E0203 for a word that is no norm where a norm is due, and the like. A block may
    stand for any of these: nobody knows what it does.
    """
    fitting = FITTING.get(type.name)
    if fitting is None or not isinstance(value, WordFunction) or fitting(value.name):
        return
    title = f"{place.what} takes {WANTED[type.name]}, and `{value.name}` is none"
    helps = [f"{HINTS[type.name]}, or a block of your own"]
    fail("E0203", title, place.span, helps=helps)


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
    "norm": "write `layer_norm(eps=1e-5)`, `rms_norm(eps=1e-6)` or `identity`",
    "activation": "write relu, gelu, silu, tanh or another function of one number",
    "positions": "write `sinusoid(layout=halves)`, `learned(size=512)` or `none`",
}


def declared(context: Context, type: tree.TypeName, env: Env, origin: str) -> Type:
    """The type of a graph input: every length must be known by name."""
    assert type.dims is not None
    # all at once: who forgot `dims` forgot them all
    undeclared = [
        d for d in type.dims if isinstance(d, tree.Name) and not _named(context, d, env)
    ]
    for name in undeclared:
        env.dims[name.path] = Dim.symbol(name.path)  # said once, for all inputs
    if undeclared:
        raise Failed(*(_undeclared(d, env) for d in undeclared))
    shape = []
    for dim in type.dims:
        if isinstance(dim, tree.Rest):
            fail("E0303", "`...` has no meaning on the input of a graph", dim.span)
        made = _dim(context, dim, env)
        # a length of 0 that comes from the config; at run time 0 may be allowed
        if made == 0:
            source = made.origin.span if made.origin else None
            others = [Label(source, "which comes from here")] if source else []
            fail(
                "E0308",
                f"{origin} would be empty: `{_text(dim)}` is 0",
                dim.span,
                others=others,
            )
        shape.append(made.since(Origin(type.span, origin)))
    return Type(dtype_of(type), tuple(shape))


def _named(context: Context, dim: tree.Name, env: Env) -> bool:
    try:
        context.evaluator.evaluate(context, dim, env)
    except Failed as failed:
        return not any(d.code == "E0202" for d in failed.diagnostics)
    return True


def _undeclared(dim: tree.Name, env: Env) -> Diagnostic:
    """E0202 for a length that nothing declares."""
    near = did_you_mean(
        dim.path,
        [
            *env.module.root.dims,
            *(n for n, v in env.config.items() if isinstance(v, Dim)),
        ],
    )
    declare = (
        "a length that the input decides is declared above: `dims "
        f"{', '.join([*env.module.root.dims, dim.path])}`"
    )
    helps = (suggestion(near), declare) if near else (declare,)
    primary = Label(dim.span, "unknown length") if dim.span else None
    return Diagnostic(
        "E0202", f"the length `{dim.path}` is not declared", primary, helps=helps
    )


def dtype_of(type: tree.TypeName) -> str:
    """The element type a declaration asks for."""
    if type.name not in TENSORS:
        helps = suggest(type.name, TENSORS, f"tensors hold {', '.join(TENSORS)}")
        fail("E0213", f"there is no tensor of `{type.name}`", type.span, helps=helps)
    return TENSORS[type.name]


def _dim(context: Context, expr: tree.Expr, env: Env) -> Dim:
    value = first(context.evaluator.evaluate(context, expr, env))
    if not isinstance(value, Dim):
        fail("E0303", f"a length is a whole number, not {describe(value)}", expr.span)
    if value.number is not None and value.number < 0:
        fail("E0303", f"a length cannot be {value}", expr.span)
    return value


def match_tensor(
    context: Context, type: tree.TypeName, value: Known, env: Env, place: Place
) -> Tensor:
    """Check a tensor against a declared type; names not known yet become the lengths found."""
    if not isinstance(value, Tensor):
        title = f"{place.what} is a tensor, {type.span.text if type.span else ''}"
        fail("E0203", title, place.span, f"this is {describe(value)}")
    others = [Label(type.span, "declared here")] if type.span else []
    if value.type.dtype != dtype_of(type):
        holds = show_type(value.type).split("[")[0]
        title = f"{place.what} holds {holds} where {type.name} is declared"
        fail("E0301", title, place.span, others=others)
    dims = type.dims or ()
    spread = [n for n, d in enumerate(dims) if isinstance(d, tree.Rest)]
    # so many axes are left for `...` to stand for
    extra = len(value.shape) - len(dims) + len(spread)
    if extra < 0 or (extra and not spread):
        title = (
            f"{place.what} has {len(value.shape)} axes where {len(dims)} are declared"
        )
        fail("E0301", title, place.span, f"this is {describe(value)}", others=others)
    matching = _Matching(context, type, value, env, place)
    at = 0
    for dim in dims:
        if isinstance(dim, tree.Rest):
            matching.rest(value.shape[at : at + extra])
            at += extra
        else:
            matching.length(dim, value.shape[at])
            at += 1
    return value


@dataclass(frozen=True, slots=True)
class _Matching:
    """A tensor held against its declared type, axis by axis."""

    context: Context
    type: tree.TypeName
    tensor: Tensor
    env: Env
    place: Place

    def rest(self, lengths: Sequence[Dim]) -> None:
        """`...`: the lengths it stands for are the same wherever it stands in a block."""
        known = self.env.names.setdefault("...", tuple(lengths))
        if known != tuple(lengths):
            assert isinstance(known, tuple)  # no name of a spec is spelled so
            title = f"{self.place.what}: `...` stands for ({', '.join(map(str, known))}) here"
            fail("E0301", title, self.place.span, describe(self.tensor))

    def length(self, expr: tree.Expr, actual: Dim) -> None:
        """One length: a new name becomes the length found, anything else must be it."""
        if isinstance(expr, tree.Name):
            # `_` matches any length and binds nothing
            if expr.path == "_":
                return
            known = self.env.dims.get(expr.path) or _known(expr.path, self.env)
            if known is None:
                self._named(expr.path, actual)
                return
            wanted = known
        else:
            wanted = _dim(self.context, expr, self.env)
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
        return rounded(wanted) == rounded(actual)

    def _named(self, name: str, length: Dim) -> None:
        self.env.dims[name] = length
        # of a used file, this is what its run-time length stands for in this call
        if self.env.lengths is not None and name in self.env.module.root.dims:
            self.env.lengths[name] = length

    def _clash(self, expr: tree.Expr, wanted: Dim, actual: Dim) -> NoReturn:
        span, what = self.type.span, self.place.what
        labels = [Label(span, f"declared as `{_text(expr)}`")] if span else []
        labels += [
            Label(d.origin.span, f"`{d}` comes from here")
            for d in (wanted, actual)
            if d.origin and d.origin.span
        ]
        at = self.place.span
        raise Failed(
            Diagnostic(
                "E0302",
                f"{what} has a length of {actual} where {_wanted(expr, wanted)}",
                Label(at, f"this is {describe(self.tensor)}") if at else None,
                tuple({lab.span: lab for lab in labels}.values()),
                helps=self._captured(expr),
            )
        )

    def _captured(self, expr: tree.Expr) -> tuple[str, ...]:
        """The help where a block's type names a length that `dims` declares."""
        block = self.place.block
        name = expr.path if isinstance(expr, tree.Name) else ""
        declared = name in self.env.module.root.dims and name not in self.env.dims
        # in a block of another file it is what the caller's operands say
        if not block or not declared or self.env.lengths is not None:
            return ()
        return (
            f"`{name}` in `{block}` is the length that `dims` declares: give the "
            f"block's own length a name that `dims` does not have, such as `{name}_`",
        )


def _known(name: str, env: Env) -> Dim | None:
    """A length that the name has already, as a variable, in the config or in `dims`."""
    for names in (env.names, env.config):
        value = names.get(name)
        if isinstance(value, Dim):
            return value
    return env.run_time(name)


def _wanted(expr: tree.Expr, wanted: Dim) -> str:
    text = _text(expr)
    return f"{wanted} is declared" if text == str(wanted) else f"`{text}` is {wanted}"


def _text(expr: tree.Expr | tree.Rest) -> str:
    return expr.span.text if expr.span else str(expr)
