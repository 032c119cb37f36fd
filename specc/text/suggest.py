"""The nearest of the names there are to one that is not."""

from collections.abc import Iterable


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """The name close enough to be what was meant: few edits for its length, or the same letters."""
    best: tuple[int, str] | None = None
    for name in names:
        if name == word:
            continue
        same = sorted(name.lower()) == sorted(word.lower())
        limit = max(1, min(len(name), len(word)) // 3)
        cost = 0 if same else distance(word.lower(), name.lower(), limit)
        if cost <= limit and (best is None or (cost, name) < best):
            best = cost, name
    return best[1] if best else None


def distance(a: str, b: str, limit: int) -> int:
    """Edits between two words, swaps of neighbors counted once; anything above `limit` is `limit + 1`."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before, row = list(range(len(b) + 1)), list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
    return row[-1]


def listing(names: Iterable[str], most: int = 12) -> str:
    """`a, b, c` and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
