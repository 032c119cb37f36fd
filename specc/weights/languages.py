"""Checkpoints of many languages, whose adapters are files of whole tensors."""

import re
from collections.abc import Collection, Iterable

NUMBERED = re.compile(r"\.\d+\.")


def left_out(names: Iterable[str], changed: Collection[str]) -> list[str]:
    """What a checkpoint has for a layer, and an adapter that has it for another has not;
    or the bias of a weight that it has: half of one language and half of another.
    """
    kinds = {_kind(name) for name in changed}
    return [n for n in names if _kind(n) in kinds and n not in changed]


def _kind(name: str) -> str:
    """A weight's module, whichever layer it is of."""
    return NUMBERED.sub(".*.", name).rpartition(".")[0]
