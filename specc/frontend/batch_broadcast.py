"""Broadcast block operands of batch size 1 to the batch size of the other operands."""

from collections.abc import Sequence
from typing import TypeAlias

from specc.frontend import node_builder
from specc.frontend.context import Context, Env
from specc.frontend.spec_values import SpecValue, Tensor
from specc.ir import ops
from specc.ir.dim import Dim
from specc.syntax import ast

Given: TypeAlias = tuple[ast.BlockParameter, SpecValue, ast.Expr]
"""A parameter, its value, and the expression of that value."""


def broadcast_batch(context: Context, given: Sequence[Given], env: Env) -> list[Given]:
    """Expand operands with batch size 1 if the declared type names the batch axis and
    another operand, or a run-time length of `dims`, has a larger size for that name.
    """
    lengths: dict[str, Dim] = {}
    for param, value, _ in given:
        name = _get_batch_name(param, value, env)
        if name and isinstance(value, Tensor):
            known = env.find_runtime_length(name) or value.shape[0]
            if known != 1:
                lengths.setdefault(name, known)
    return [
        (
            param,
            _expand_to_length(
                context, value, lengths.get(_get_batch_name(param, value, env)), expr, env
            ),
            expr,
        )
        for param, value, expr in given
    ]


def _get_batch_name(param: ast.BlockParameter, value: SpecValue, env: Env) -> str:
    """Return the declared name of the first axis; empty if a config value fixes it."""
    dims = param.type.dims
    if not dims or not isinstance(dims[0], ast.Name) or not isinstance(value, Tensor):
        return ""
    name = dims[0].path
    fixed = name == "_" or name in env.names or name in env.config
    return "" if fixed or len(value.shape) < 2 else name


def _expand_to_length(
    context: Context, value: SpecValue, length: Dim | None, expr: ast.Expr, env: Env
) -> SpecValue:
    if length is None or not isinstance(value, Tensor) or value.shape[0] != 1:
        return value
    op = ops.Expand(0, length)
    return node_builder.add_node_with_one_result(
        context, op, value, span=expr.span, scope=env.scope
    )
