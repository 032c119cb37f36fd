"""Static values as plain data: numbers, texts, lists and dicts, for the manifest and the runner."""

from typing import Any

from specc.elaborate.context import Context, Env
from specc.elaborate.lookup import lookup
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import POISON, Function, Joined, Picked, Record, Rope, Unknown, first
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.source import Span


def data_of(value: Any, span: Span | None = None) -> Any:
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
        case tuple(items):
            return [data_of(i) for i in items]
        case Record(fields=fields):
            return {k: data_of(v) for k, v in fields.items()}
        case Rope(theta, kind, numbers):
            return {"theta": theta, "kind": kind, **dict(numbers)}
        case Function(name=name, span=span, kind=kind):
            return span.text if span and kind != "op" else name
        case Joined(op, parts):
            shown = [str(data_of(p)) for p in parts]
            return f"not {shown[0]}" if op == "not" else f"({f' {op} '.join(shown)})"
        case other:
            return other


def described(context: Context, expr: Any, env: Env) -> Any:
    """An expression of `reading` or `generate` as data: a call is its name, inputs and options.

    A name that means nothing else is a word: `resize=bilinear`. No length hangs on these numbers, so `/` may
    leave a fraction: `scale=1 / 255`.
    """
    if isinstance(expr, tree.Call):
        made: dict[str, Any] = {"kind": expr.function.path}
        if expr.args:
            made["args"] = [described(context, a, env) for a in expr.args]
        made.update({o.name: described(context, o.value, env) for o in expr.options})
        return made
    if isinstance(expr, tree.ListOf):
        return [described(context, item, env) for item in expr.items]
    if isinstance(expr, tree.Name):
        found = env.names.get(expr.path, env.config.get(expr.path, POISON))
        if found is POISON and expr.path in ("true", "false", "none", "inf", "pi"):
            found = lookup(context, expr, env)
        if found is POISON and "." in expr.path:
            found = lookup(context, expr, env, quiet=True)
        return expr.path if found is POISON else data_of(found, expr.span)
    if isinstance(expr, tree.Binary) and expr.op == "/":
        left, right = described(context, expr.left, env), described(context, expr.right, env)
        if isinstance(left, int | float) and isinstance(right, int | float) and right:
            return left // right if left % right == 0 and isinstance(left, int) else left / right
    return data_of(context.evaluate(context, expr, env), expr.span)
