"""Apply requirements to symbols: `a % b == 0` makes `a / b` exact, `a == b` unifies them."""

from dataclasses import replace

from specc.diagnostics.diagnostic import Failed
from specc.frontend.context import Context, Env
from specc.frontend.expressions import evaluate_value
from specc.frontend.spec_values import (
    BuiltinFunction,
    CombinedMask,
    DefinitionFunction,
    MaskLike,
    NeedsValue,
    Record,
    SpecValue,
)
from specc.ir.dim import Dim, DimFunction
from specc.syntax import ast


def _assume_divisible(
    config: dict[str, SpecValue], whole: Dim, divisor: Dim
) -> dict[str, SpecValue]:
    """Return the config with `whole` replaced by a multiple of `divisor`."""
    # for `side % window == 0` with `side` defined as `image / patch`, `image` becomes the
    # product of all three
    parted, by = _split_quotient(whole) or (whole, Dim.of(1))
    # `d % d == 0` has no effect: `d` would be defined by itself
    if not parted.name or parted.name in (by * divisor).symbols():
        return config
    quotient = Dim.symbol(f"{whole} / {divisor}", parted.origin)
    return _substitute_in_config(config, {parted.name: by * divisor * quotient})


def _assume_equal(config: dict[str, SpecValue], left: Dim, right: Dim) -> dict[str, SpecValue]:
    """Return the config with a symbol on one side replaced by the other side."""
    for one, other in ((left, right), (right, left)):
        # a symbol that occurs in the other side cannot be replaced by it
        if one.name and one.name not in other.symbols():
            return _substitute_in_config(config, {one.name: other})
    return config


def apply_requirement(
    context: Context, condition: ast.Expr, config: dict[str, SpecValue], env: Env
) -> dict[str, SpecValue]:
    """Return the config with symbols replaced according to a requirement."""
    match condition:
        case ast.Binary(op="&"):
            # each part may use the parts before it
            for part in _split_conjunction(condition):
                inner = Env(module=env.module, config=config)
                config = apply_requirement(context, part, config, inner)
        case ast.Binary(op="|", left=a, right=b):
            # `not shared | vocab == target_vocab`: if `shared` is true, the rest must hold
            for ruled_out, left_over in ((a, b), (b, a)):
                if _evaluate_quietly(context, ruled_out, env) is False:
                    return apply_requirement(context, left_over, config, env)
        case ast.Compare(
            ops=("==",), operands=(ast.Binary(op="%", left=a, right=b), ast.NumberLiteral(text="0"))
        ):
            # `d % heads == 0`: `d` becomes `heads * (d / heads)`, divisible by `heads`
            whole, divisor = (_evaluate_dim(context, a, env), _evaluate_dim(context, b, env))
            if whole and divisor:
                return _assume_divisible(config, whole, divisor)
        case ast.Compare(ops=("==",), operands=(a, b)):
            # `a == b` of two symbols: one replaces the other everywhere
            left, right = _evaluate_dim(context, a, env), _evaluate_dim(context, b, env)
            if left and right:
                return _assume_equal(config, left, right)
    return config


def _split_quotient(length: Dim) -> tuple[Dim, Dim] | None:
    """Return `p` and `q` if a length is exactly `p / q`."""
    match length.terms:
        case (((((DimFunction("/", args), 1),)), 1),):
            return args
    return None


def _split_conjunction(condition: ast.Binary) -> list[ast.Expr]:
    """Return the parts of `a & b & c`; there may be thousands."""
    parts: list[ast.Expr] = []
    left: ast.Expr = condition
    while isinstance(left, ast.Binary) and left.op == "&":
        parts.append(left.right)
        left = left.left
    return [left, *reversed(parts)]


def _evaluate_dim(context: Context, expr: ast.Expr, env: Env) -> Dim | None:
    value = _evaluate_quietly(context, expr, env)
    return value if isinstance(value, Dim) else None


def _evaluate_quietly(context: Context, expr: ast.Expr, env: Env) -> SpecValue:
    try:
        return evaluate_value(context, expr, env)
    # a condition that cannot be evaluated yet has no effect; it is checked again later
    except (Failed, NeedsValue):
        return None


def _substitute_in_config(
    config: dict[str, SpecValue], values: dict[str, Dim]
) -> dict[str, SpecValue]:
    return {k: _substitute_in_value(v, values) for k, v in config.items()}


def _substitute_in_value(value: SpecValue, values: dict[str, Dim]) -> SpecValue:
    match value:
        case Dim() as dim:
            return dim.substitute(values)
        case Record(fields=fields):
            return replace(
                value, fields={k: _substitute_in_value(v, values) for k, v in fields.items()}
            )
        case tuple(items):
            return tuple(_substitute_in_value(i, values) for i in items)
        # arguments bound to a function: `window(width)` with a config value
        case DefinitionFunction(given=given) | BuiltinFunction(given=given) if given:
            return replace(
                value, given={k: _substitute_in_value(v, values) for k, v in given.items()}
            )
        case CombinedMask(op, parts):
            made = (_substitute_in_value(part, values) for part in parts)
            return CombinedMask(op, tuple(m for m in made if isinstance(m, MaskLike)))
        case _:
            return value
