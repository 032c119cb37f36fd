"""Checkpoints of many languages, whose adapters are files of whole tensors."""

import re
from collections.abc import Collection, Iterable

NUMBERED = re.compile(r"\.\d+\.")
OWN = re.compile(r"lm_head\.|.*\.adapter_layer\.")
"""What every language has of its own: its words, and the layers that lead to them."""


def left_out(names: Iterable[str], changed: Collection[str]) -> list[str]:
    """What a checkpoint has for a layer, and an adapter that has it for another has not;
    or the bias of a weight that it has, or words: half of one language and half of
    another.
    """
    kinds = {_kind(name) for name in changed}
    return [
        name
        for name in names
        if name not in changed and (_kind(name) in kinds or OWN.match(name))
    ]


def _kind(name: str) -> str:
    """A weight's module, whichever layer it is of."""
    return NUMBERED.sub(".*.", name).rpartition(".")[0]
