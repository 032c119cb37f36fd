"""What the config of an adapter says of its products: which modules they change, and by
how much.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The numbers of an adapter's config: rank `r` and `alpha`, for all modules but
    those that the tables name; `root`: divided by the root of the rank (rsLoRA).
    `turned`: weights of linear maps are stored [in, out].
    """

    r: int
    alpha: float
    root: bool = False
    turned: bool = False
    ranks: Mapping[str, int]
    alphas: Mapping[str, float]

    def rank(self, module: str) -> int:
        """The rank of a module's product."""
        return int(_special(self.ranks, module, self.r))

    def scale(self, module: str) -> float:
        """What a module's product is multiplied with (Kalajdzievski, 2023, for `root`)."""
        rank = self.rank(module)
        alpha = _special(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.root else rank)


@dataclass(frozen=True, kw_only=True)
class Targets:
    """The modules that an adapter's config names, by ends of their names, but for those
    that it leaves out; with `layers` only those of layers of these numbers.

    A file that holds products for others is not what the config tells of: who made it
    left them aside.
    """

    named: Sequence[str] | None
    whole: Sequence[str] = ()
    """Modules that were trained as they are, so that their tensors are all there."""
    without: Sequence[str] = ()
    layers: Sequence[int] | None = None

    def has(self, module: str) -> bool:
        """Whether the config has a product for the module."""
        if _ends(module, self.without):
            return False
        if self.named is not None and not _ends(module, self.named):
            return False
        numbers = [int(part) for part in module.split(".") if part.isdecimal()]
        return self.layers is None or (bool(numbers) and numbers[-1] in self.layers)

    def is_whole(self, name: str) -> bool:
        """Whether a tensor belongs to a module that was trained as it is."""
        return any(f".{module}." in f".{name}" for module in self.whole)


def _ends(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.endswith(f".{name}") for name in names)


def _special(table: Mapping[str, float], module: str, usual: float) -> float:
    """The entry of the first key that ends a module's name, else the usual number."""
    for key, value in table.items():
        if module == key or module.endswith(f".{key}"):
            return value
    return usual
