"""What a requirement tells about symbols: `a % b == 0` makes `a / b` a symbol, `a == b` makes them one."""

from typing import Any

from specc.elaborate.context import Context, Env
from specc.elaborate.expressions import plain
from specc.elaborate.needs import NeedsValue
from specc.elaborate.values import Record
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import Failed


def assume(context: Context, condition: Any, config: dict[str, Any], env: Env) -> dict[str, Any]:
    """The config with symbols replaced by what the condition says of them."""
    match condition:
        case tree.Binary(op="&"):
            for part in _joined(condition):
                config = assume(context, part, config, Env(env.module, config))
        case tree.Compare(ops=("==",), operands=(tree.Binary(op="%", left=a, right=b), tree.Num(text="0"))):
            whole, part = _dim(context, a, env), _dim(context, b, env)
            if whole and part and whole.name and whole.name not in part.symbols():
                quotient = Dim.symbol(f"{whole} / {part}", whole.origin)
                return _replaced(config, {whole.name: part * quotient})
        case tree.Compare(ops=("==",), operands=(a, b)):
            left_dim, right_dim = _dim(context, a, env), _dim(context, b, env)
            for one, other in ((left_dim, right_dim), (right_dim, left_dim)):
                if one and other and one.name and one.name not in other.symbols():
                    return _replaced(config, {one.name: other})
    return config


def _joined(condition: tree.Binary) -> list[Any]:
    """The parts of `a & b & c`, of which there may be thousands."""
    parts: list[Any] = []
    left: Any = condition
    while isinstance(left, tree.Binary) and left.op == "&":
        parts.append(left.right)
        left = left.left
    return [left, *reversed(parts)]


def _dim(context: Context, expr: Any, env: Env) -> Dim | None:
    try:
        value = plain(context, expr, env)
    except (Failed, NeedsValue):
        return None
    return value if isinstance(value, Dim) else None


def _replaced(config: dict[str, Any], values: dict[str, Dim]) -> dict[str, Any]:
    return {k: _in(v, values) for k, v in config.items()}


def _in(value: Any, values: dict[str, Dim]) -> Any:
    match value:
        case Dim() as dim:
            return dim.substitute(values)
        case Record(fields=fields, path=path):
            return Record({k: _in(v, values) for k, v in fields.items()}, path)
        case tuple(items):
            return tuple(_in(i, values) for i in items)
        case _:
            return value
