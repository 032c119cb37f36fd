"""Which blocks of a drawing are expanded."""

from collections.abc import Callable

from specc.visualize.block_tree import Block

Opens = Callable[[Block], bool]


def expand_blocks(block: Block, most: int) -> Opens:
    """Opens blocks from the outside in as long as no more than `most` items are drawn."""
    chosen: set[str] = set()
    for depth in range(1, 8):
        trial = {b.path for b in _within(block, depth) if _is_composed(b)}
        shown = len(block.flow.items) + sum(
            len(b.flow.items) for b in block.all() if b.path in trial
        )
        if shown > most:
            break
        chosen = trial
    # residual connections are what an architecture is recognized by
    while more := {
        inner.path
        for outer in block.all()
        if outer is block or outer.path in chosen
        for inner in outer.inner.values()
        if inner.path not in chosen and _has_residual(inner)
    }:
        chosen |= more
    return lambda b: b.path in chosen


def _has_residual(block: Block) -> bool:
    """Return whether a block adds what it reads to what it computes."""
    items = block.flow.items
    reads = {b for a, b in block.flow.edges if items[a].role == "port"}
    return _is_composed(block) and any(items[n].name == "+" for n in reads)


def _is_composed(block: Block) -> bool:
    """Return whether a block consists of several blocks and operations."""
    parts = [i for i in block.flow.items if i.role in ("block", "op")]
    return bool(block.inner) and len(parts) > 1


def _within(block: Block, depth: int) -> list[Block]:
    """The blocks that lie at most so deep inside one."""
    inner = list(block.inner.values())
    if depth <= 1:
        return inner
    return inner + [b for child in inner for b in _within(child, depth - 1)]
