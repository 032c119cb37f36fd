"""What a word that nobody knows was probably meant to be.

A far-fetched guess confuses more than none, so a name is offered only if it is close:
few edits, the same letters in another order, or the word is a part of it. Otherwise the
valid names are listed.
"""

from collections.abc import Iterable

SHOWN = 12
"""Names in a list before it is cut."""


def distance(a: str, b: str, most: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbors from `a` to `b`;
    `most + 1` if more.
    """
    # each character more or less is an edit
    if abs(len(a) - len(b)) > most:
        return most + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, last, row = row, before, [i, *[0] * len(b)]
        for j, y in enumerate(b, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            # a swap of neighbors counts one: `lenght`
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], last[j - 2] + 1)
        # rows never get smaller again
        if min(row) > most:
            return most + 1
    return row[-1]


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant: at most `max(1, len / 3)` edits away, or made
    of the same letters.
    """
    plain = folded(word)
    best: tuple[int, str] | None = None
    for name in names:
        other = folded(name)
        most = max(1, max(len(plain), len(other)) // 3)
        edits = distance(plain, other, most)
        # `kv_heads` for `heads_kv` is far by edits, and meant all the same
        if edits > most and plain and sorted(plain) == sorted(other):
            edits = most
        if (
            edits <= most
            and edits < max(len(plain), len(other))
            and (best is None or (edits, name) < best)
        ):
            best = edits, name
    return best[1] if best else None


def suggestion(name: str) -> str:
    """The one sentence that offers a name."""
    return f"did you mean `{name}`?"


def suggest(word: str, names: Iterable[str], otherwise: str) -> list[str]:
    """Help for a word that nobody knows: the name it was probably meant to be, or
    `otherwise` where none is close.
    """
    near = did_you_mean(word, names)
    return [suggestion(near) if near else otherwise]


def folded(word: str) -> str:
    """A word without case and separators, which people get wrong first."""
    return word.lower().replace("_", "").replace("-", "").replace(" ", "")


def listing(names: Iterable[str]) -> str:
    """Names in a row, `a, b, c and 4 more`."""
    known = sorted(names)
    if len(known) <= SHOWN:
        return ", ".join(known)
    return f"{', '.join(known[:SHOWN])} and {len(known) - SHOWN} more"
