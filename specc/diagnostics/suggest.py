"""Suggest a similar name for an unknown name ("did you mean …?")."""

from collections.abc import Iterable

MAX_LISTED_NAMES = 12
"""Maximum number of names in a formatted list."""


def compute_edit_distance(a: str, b: str, limit: int) -> int:
    """Return the edit distance of `a` and `b`, or `limit + 1` if it exceeds `limit`. Edits are
    insertions, deletions, substitutions and transpositions of characters.
    """
    # the difference in length is a lower bound on the edit distance
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    previous_row: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous_row, older_row, row = row, previous_row, [i, *[0] * len(b)]
        for j, y in enumerate(b, 1):
            row[j] = min(previous_row[j] + 1, row[j - 1] + 1, previous_row[j - 1] + (x != y))
            # a transposition counts as one edit, as in `lenght`
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                row[j] = min(row[j], older_row[j - 2] + 1)
        # the minimum of each row never decreases, so the distance exceeds the limit
        if min(row) > limit:
            return limit + 1
    return row[-1]


def find_similar_name(word: str, names: Iterable[str]) -> str | None:
    """Return the name in `names` that is most similar to `word`, if it is an anagram or at most
    `max(1, len / 3)` edits away. Return None if no name is similar.
    """
    normalized = normalize_identifier(word)
    best_match: tuple[int, str] | None = None
    for name in names:
        normalized_name = normalize_identifier(name)
        length = max(len(normalized), len(normalized_name))
        limit = max(1, length // 3)
        edits = compute_edit_distance(normalized, normalized_name, limit)
        # compare anagrams separately, because `kv_heads` and `heads_kv` have a large edit distance
        if edits > limit and normalized and sorted(normalized) == sorted(normalized_name):
            edits = limit
        if edits <= limit and edits < length and (best_match is None or (edits, name) < best_match):
            best_match = edits, name
    return best_match[1] if best_match else None


def format_suggestion(name: str) -> str:
    """Format the help message that suggests a name."""
    return f"did you mean `{name}`?"


def suggest_similar_name(word: str, names: Iterable[str], default_help: str = "") -> list[str]:
    """Return the help messages (at most one) for an unknown name. Suggest the most similar known
    name, or return `default_help` if no name is similar. The list is empty if no name is similar
    and `default_help` is empty.
    """
    similar_name = find_similar_name(word, names)
    help_ = format_suggestion(similar_name) if similar_name else default_help
    return [help_] if help_ else []


def normalize_identifier(word: str) -> str:
    """Lowercase a name and remove its separators, for comparison with other names."""
    return word.lower().replace("_", "").replace("-", "").replace(" ", "")


def format_name_list(names: Iterable[str]) -> str:
    """Format up to MAX_LISTED_NAMES names in alphabetical order: `a, b, c and 4 more`."""
    sorted_names = sorted(names)
    if len(sorted_names) <= MAX_LISTED_NAMES:
        return ", ".join(sorted_names)
    hidden_count = len(sorted_names) - MAX_LISTED_NAMES
    return f"{', '.join(sorted_names[:MAX_LISTED_NAMES])} and {hidden_count} more"
