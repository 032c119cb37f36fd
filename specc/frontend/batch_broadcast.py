"""Operands of blocks whose batch axis is 1, broadcast to the batch of the others."""

from collections.abc import Sequence
from typing import TypeAlias

from specc.frontend import node_builder
from specc.frontend.context import Context, Env
from specc.frontend.spec_values import SpecValue, Tensor
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

Given: TypeAlias = tuple[ast.BlockParameter, SpecValue, ast.Expr]
"""A parameter, the value that it is given, and the expression of that value."""


def broadcast_batch(context: Context, given: Sequence[Given], env: Env) -> list[Given]:
    """Repeat operands of length 1 along their first axis where the type names that axis
    as another operand's first axis, or as a run-time length of `dims`, and that is longer.
    """
    lengths: dict[str, Dim] = {}
    for param, value, _ in given:
        name = _batch_name(param, value, env)
        if name and isinstance(value, Tensor):
            known = env.find_runtime_length(name) or value.shape[0]
            if known != 1:
                lengths.setdefault(name, known)
    return [
        (
            param,
            _repeated(context, value, lengths.get(_batch_name(param, value, env)), expr, env),
            expr,
        )
        for param, value, expr in given
    ]


def _batch_name(param: ast.BlockParameter, value: SpecValue, env: Env) -> str:
    """The name of the first axis in a declared type; empty where a config value fixes it."""
    dims = param.type.dims
    if not dims or not isinstance(dims[0], ast.Name) or not isinstance(value, Tensor):
        return ""
    name = dims[0].path
    fixed = name == "_" or name in env.names or name in env.config
    return "" if fixed or len(value.shape) < 2 else name


def _repeated(
    context: Context, value: SpecValue, length: Dim | None, expr: ast.Expr, env: Env
) -> SpecValue:
    if length is None or not isinstance(value, Tensor) or value.shape[0] != 1:
        return value
    op = ops.Expand(0, length)
    return node_builder.add_node_with_one_result(
        context, op, value, span=expr.span, scope=env.scope
    )
