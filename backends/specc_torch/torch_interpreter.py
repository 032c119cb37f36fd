"""Run a graph in PyTorch: the rule table, the forward context and the walk over nodes.

A rule is called as `rule(op, place, *operands)` and is differentiable wherever the op
is; an absent operand is None. Numbers with a fraction have one type in the whole
module, the one its parameters have.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from specc.diagnostics.diagnostic import raise_error
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph, Node, Value, collect_needed_nodes
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
        try:
            return dim.at(self.lengths)
        except DimError as error:
            known = ", ".join(
                f"{k} = {self.lengths[k]}" for k in sorted(dim.symbols()) if k in self.lengths
            )
            raise_error(
                "E0912",
                f"these inputs leave a length without a value: {error}",
                notes=[f"here {known}"] if known else [],
                helps=["give inputs whose lengths the model can divide"],
            )

    def rows(self, count: int) -> Tensor:
        """`0, 1, …, count - 1`."""
        return torch.arange(count, dtype=torch.int64, device=self.device)


def check_tensor_indices(ids: Tensor, below: int, what: str) -> None:
    """Fails with E0913 unless every id is an index of a table of `below` rows. Ids
    without values pass.
    """
    if not ids.numel() or ids.is_meta:
        return
    least, greatest = (int(n) for n in torch.aminmax(ids))
    if least < 0 or greatest >= below:
        raise_error(
            "E0913",
            f"{what} has rows 0 to {below - 1}, row "
            f"{least if least < 0 else greatest} is asked for",
            helps=[
                "check the ids that are given, and that they were made with this model's vocabulary"
            ],
        )


def run_graph_nodes(
    graph: Graph, given: Mapping[Value, Tensor], place: ForwardContext, wanted: Iterable[Value]
) -> dict[Value, Tensor]:
    """What `wanted` are when the inputs and parameters of `graph` are `given`."""
    wanted = list(wanted)
    live = collect_needed_nodes(wanted)
    nodes = [(node, results) for node, results in graph.nodes if node in live]
    # What is wanted is read once more, at the end.
    left = Counter(a for node, _ in nodes for a in node.args if a)
    left.update(wanted)
    known = dict(given)
    for node, results in nodes:
        operands = [known[a] if a else None for a in node.args]
        evaluated = evaluate[node.op](node.op, place, *operands)
        tensors = evaluated if isinstance(evaluated, tuple) else (evaluated,)
        for result, tensor in zip(results, tensors, strict=True):
            if left[result]:
                known[result] = tensor
        _free_operands(node, left, known)
    return {v: known[v] for v in wanted}


def _free_operands(node: Node, left: Counter[Value], known: dict[Value, Tensor]) -> None:
    """Forget the operands that no later node reads: a long graph needs no more memory
    than its widest place. Under autograd the tape keeps what it needs by itself.
    """
    # A node may read one value twice: `x * x` counts for two.
    read_here = Counter(a for a in node.args if a)
    left.subtract(read_here)
    for operand in read_here:
        if not left[operand]:
            known.pop(operand, None)
