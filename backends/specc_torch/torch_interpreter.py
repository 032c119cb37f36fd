"""Run a graph in PyTorch, with a rule for each op and a context for each forward pass.

A rule is called as `rule(op, context, *operands)`. If an op is differentiable, its rule is also
differentiable. An absent operand is None. All floats have the dtype of the module's parameters.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value
from specc.ir.graph_interpreter import evaluate_dim, evaluate_live_nodes
from specc.ir.op import OpRuleTable

TorchRule: TypeAlias = Callable[..., "Tensor | tuple[Tensor, ...]"]

evaluate: OpRuleTable[TorchRule] = OpRuleTable("torch")
"""The evaluation rule of each op."""

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i4": torch.int8,
}


@dataclass(frozen=True)
class ForwardContext:
    """The context of one forward pass. It has the size of each symbolic dimension, the dtype of
    floats, the device, and the training mode of the module.
    """

    lengths: Mapping[str, int]
    float_dtype: torch.dtype
    device: torch.device
    is_training: bool = False

    def get_torch_dtype(self, dtype: str) -> torch.dtype:
        """Return the PyTorch dtype for an IR element type."""
        return TORCH_DTYPES.get(dtype, self.float_dtype)

    def evaluate_dim(self, dim: Dim) -> int:
        """Return the size of a dimension. Raise E0912 if the inputs do not determine the size."""
        return evaluate_dim(dim, self.lengths)

    def arange(self, count: int) -> Tensor:
        """Return the i64 vector `0, 1, …, count - 1`."""
        return torch.arange(count, dtype=torch.int64, device=self.device)

    def make_scalar(self, value: float, dtype: torch.dtype) -> Tensor:
        """Return a scalar tensor. The scalar is filled on the device, because a copy from the host
        would synchronize the GPU.
        """
        return torch.full((), value, dtype=dtype, device=self.device)


def run_graph_nodes(
    graph: Graph,
    known_values: Mapping[Value, Tensor],
    context: ForwardContext,
    requested_values: Iterable[Value],
) -> dict[Value, Tensor]:
    """Return the tensors of `requested_values`, computed from `known_values` (inputs and
    parameters).
    """
    return evaluate_live_nodes(
        graph,
        known_values,
        requested_values,
        lambda node, operands: evaluate[node.op](node.op, context, *operands),
    )
