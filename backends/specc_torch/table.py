"""The table that says what every op is in PyTorch, and the few things all its rules
share.

A rule is called as `rule(op, place, *operands)` and is differentiable wherever the op
is; an absent operand is None. Numbers with a fraction have one type in the whole
module, the one its parameters have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from specc.ir.dim import Dim, DimError
from specc.ir.rules import Rules
from specc.text.diagnostic import fail

Evaluate: TypeAlias = Callable[..., "Tensor | tuple[Tensor, ...]"]

evaluate: Rules[Evaluate] = Rules("torch")

STORED: Mapping[str, torch.dtype] = {
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i4": torch.int8,
}


@dataclass(frozen=True)
class Place:
    """Where one forward pass happens: how long each symbol is, the type of its
    fractions, the device.
    """

    lengths: Mapping[str, int]
    floats: torch.dtype
    device: torch.device

    def stored(self, dtype: str) -> torch.dtype:
        """How values of an IR element type are held."""
        return STORED.get(dtype, self.floats)

    def length(self, dim: Dim) -> int:
        """A length as a number. Fails with E0912 where these inputs give it no value."""
        try:
            return dim.at(self.lengths)
        except DimError as error:
            known = ", ".join(
                f"{k} = {self.lengths[k]}"
                for k in sorted(dim.symbols())
                if k in self.lengths
            )
            fail(
                "E0912",
                f"these inputs leave a length without a value: {error}",
                notes=[f"here {known}"] if known else [],
                helps=["give inputs whose lengths the model can divide"],
            )

    def rows(self, count: int) -> Tensor:
        """`0, 1, …, count - 1`."""
        return torch.arange(count, dtype=torch.int64, device=self.device)


def check_numbers(ids: Tensor, below: int, what: str) -> None:
    """Fails with E0913 unless every id is a row number of a table of `below` rows. Ids
    without values pass.
    """
    if not ids.numel() or ids.is_meta:
        return
    least, greatest = (int(n) for n in torch.aminmax(ids))
    if least < 0 or greatest >= below:
        fail(
            "E0913",
            f"{what} has rows 0 to {below - 1}, row "
            f"{least if least < 0 else greatest} is asked for",
            helps=[
                "check the ids that are given, and that they were made with this model's vocabulary"
            ],
        )
