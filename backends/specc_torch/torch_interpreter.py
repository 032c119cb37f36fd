"""Run a graph in PyTorch: the rule table, the forward context and the walk over nodes.

A rule is called as `rule(op, place, *operands)` and is differentiable wherever the op
is; an absent operand is None. Numbers with a fraction have one type in the whole
module, the one its parameters have.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from specc.ir.dim import Dim
from specc.ir.evaluation import check_index_range, evaluate_length, iterate_live_nodes
from specc.ir.graph import Graph, Value
from specc.ir.op import OpRuleTable

TorchRule: TypeAlias = Callable[..., "Tensor | tuple[Tensor, ...]"]

evaluate: OpRuleTable[TorchRule] = OpRuleTable("torch")

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
    """Where one forward pass happens: how long each symbol is, the type of its
    fractions, the device, and whether the module is in training mode.
    """

    lengths: Mapping[str, int]
    floats: torch.dtype
    device: torch.device
    training: bool = False

    def stored(self, dtype: str) -> torch.dtype:
        """How values of an IR element type are held."""
        return TORCH_DTYPES.get(dtype, self.floats)

    def length(self, dim: Dim) -> int:
        """A length as a number. Fails with E0912 where these inputs give it no value."""
        return evaluate_length(dim, self.lengths)

    def rows(self, count: int) -> Tensor:
        """`0, 1, …, count - 1`."""
        return torch.arange(count, dtype=torch.int64, device=self.device)

    def scalar(self, value: float, dtype: torch.dtype) -> Tensor:
        """A number, filled where it is: one that is copied to a GPU waits for all work there."""
        return torch.full((), value, dtype=dtype, device=self.device)


def check_tensor_indices(ids: Tensor, below: int, what: str) -> None:
    """Raise E0913 unless all ids are below `below`; ids without values pass."""
    if not ids.numel() or ids.is_meta:
        return
    least, maximum = (int(n) for n in torch.aminmax(ids))
    check_index_range(least, maximum, below, what)


def run_graph_nodes(
    graph: Graph, given: Mapping[Value, Tensor], place: ForwardContext, wanted: Iterable[Value]
) -> dict[Value, Tensor]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`."""
    wanted = list(wanted)
    known = dict(given)
    # Under autograd the tape stores what it needs itself.
    for node, results in iterate_live_nodes(graph, wanted, known):
        operands = [known[a] if a else None for a in node.args]
        evaluated = evaluate[node.op](node.op, place, *operands)
        tensors = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        known |= {r: tensor for r, tensor in zip(results, tensors, strict=True) if r}
    return {v: known[v] for v in wanted}
