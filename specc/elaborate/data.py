"""Static values as plain data: numbers, texts, lists and dicts, for the manifest and the runner."""

from collections.abc import Iterable
from typing import TypeAlias

from specc.elaborate.context import Context, Env
from specc.elaborate.lookup import FIXED, lookup
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import (
    POISON,
    BlockFunction,
    DefinitionFunction,
    Evaluated,
    Joined,
    MaskLike,
    Picked,
    Record,
    Rope,
    Unknown,
    WordFunction,
    first,
)
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.source import Span


def data_of(value: Evaluated, span: Span | None = None) -> object:
    """A static value as plain data. NeedsValue for a symbol; `span` is where the value stands."""
    match first(value):
        case Dim() as dim:
            if dim.number is None:
                raise NeedsValue(dim.symbols(), span)
            return dim.number
        case Unknown(symbols=symbols):
            raise NeedsValue(symbols, span)
        case Picked(word):
            return word
        case tuple() as items:
            return [data_of(i) for i in items]
        case Record(fields=fields):
            return {k: data_of(v) for k, v in fields.items()}
        case Rope(theta, kind, numbers):
            return {"theta": theta, "kind": kind, **dict(numbers)}
        case WordFunction(name=name):
            return name
        case BlockFunction() | DefinitionFunction() as function:
            # `window(128)` as it was written: its name alone would not tell it
            return function.span.text if function.span else function.name
        case Joined(op, parts):
            return _joined(op, parts)
        case other:
            return other


def _joined(op: str, masks: Iterable[MaskLike]) -> str:
    shown = [str(data_of(mask)) for mask in masks]
    return f"not {shown[0]}" if op == "not" else f"({f' {op} '.join(shown)})"


def described(context: Context, expr: tree.Expr, env: Env) -> object:
    """An expression of `reading` or `generate` as data: a call is its name, inputs and
    options.

    A name that means nothing else is a word: `resize=bilinear`. No length hangs on
    these numbers, so `/` may leave a fraction: `scale=1 / 255`.
    """
    match expr:
        case tree.Call():
            data: dict[str, object] = {"kind": expr.function.path}
            if expr.args:
                data["args"] = [described(context, a, env) for a in expr.args]
            data.update(
                {o.name: described(context, o.value, env) for o in expr.options}
            )
            return data
        case tree.ListOf():
            return [described(context, item, env) for item in expr.items]
        case tree.Name():
            return _named(context, expr, env)
        case tree.Binary(op="/"):
            left = described(context, expr.left, env)
            right = described(context, expr.right, env)
            if isinstance(left, Plain) and isinstance(right, Plain) and right:
                return _quotient(left, right)
    return data_of(context.evaluator.evaluate(context, expr, env), expr.span)


Plain: TypeAlias = int | float


def _quotient(left: Plain, right: Plain) -> Plain:
    """Whole where both are whole and nothing remains."""
    if isinstance(left, int) and left % right == 0:
        return left // right
    return left / right


def _named(context: Context, name: tree.Name, env: Env) -> object:
    """A name as data: what it stands for where a value is so called, else the word."""
    value: Evaluated = env.names.get(name.path, env.config.get(name.path, POISON))
    if value is POISON and name.path in FIXED:
        value = lookup(context, name, env)
    # `config.labels` is a value, a plain word that nothing is called by is itself
    if value is POISON and "." in name.path:
        value = lookup(context, name, env, quiet=True)
    return name.path if value is POISON else data_of(value, name.span)
