"""Match, group and compare parameter names by patterns."""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

_PLACEHOLDER = re.compile(r"\{(\w+)\}|\*")
_LAYER_NUMBER = re.compile(r"[0-9]{1,18}")  # longer digit sequences are not layer numbers
_PLACEHOLDER_LETTERS = "ijklmn"
_MAX_CANDIDATES = 2000


@dataclass(frozen=True)
class NamePattern:
    """A name pattern such as `h.{i}.attn.*`."""

    text: str

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the whole name."""
        if "{" not in self.text:
            return _matches_in_order(self.text.split("*"), name)
        return self._expression.fullmatch(name) is not None

    def get_captures(self, name: str) -> "NameCaptures | None":
        """Return the captures, or None if the pattern does not match the whole name."""
        found = self._expression.fullmatch(name)
        if not found:
            return None
        runs = found.groupdict()
        wildcards = tuple(
            v for k, v in sorted(runs.items(), key=lambda kv: len(kv[0])) if k.startswith("_star")
        )
        return NameCaptures(
            {k.removeprefix("v_"): v for k, v in runs.items() if k.startswith("v_")}, wildcards
        )

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts: list[str] = []
        at, wildcards, seen = 0, 0, set[str]()
        for hole in _PLACEHOLDER.finditer(self.text):
            parts.append(re.escape(self.text[at : hole.start()]))
            at = hole.end()
            if hole[1] is None:
                wildcards += 1
                parts.append(f"(?P<_star{'x' * wildcards}>.*)")
            elif hole[1] in seen:  # all occurrences of `{i}` match the same number
                parts.append(f"(?P=v_{hole[1]})")
            else:
                seen.add(hole[1])
                parts.append(f"(?P<v_{hole[1]}>[0-9]+)")
        return re.compile("".join(parts) + re.escape(self.text[at:]), re.DOTALL)


def _matches_in_order(parts: Sequence[str], name: str) -> bool:
    """Return True if a name consists of these parts with any text between them. Greedy leftmost
    matching takes linear time.
    """
    first, *others = parts
    if not others:
        return name == first
    if not name.startswith(first):
        return False
    at = len(first)
    for part in others[:-1]:
        at = name.find(part, at) + len(part)
        if at < len(part):
            return False
    return name.endswith(others[-1]) and len(name) - at >= len(others[-1])


@dataclass(frozen=True)
class NameCaptures:
    """The captures of `{i}` and of each `*` of a pattern."""

    variables: dict[str, str]
    wildcards: tuple[str, ...]

    def fill_template(self, template: str) -> str:
        """Fill the template; the n-th `*` is replaced with the n-th `*` capture."""
        wildcards = iter(self.wildcards)
        return _PLACEHOLDER.sub(
            lambda hole: (
                next(wildcards, "*") if hole[1] is None else self.variables.get(hole[1], hole[0])
            ),
            template,
        )


def get_name_skeleton(name: str) -> tuple[str, ...]:
    """Return the parts of a name between its numbers, which are equal for corresponding parameters
    of all layers.
    """
    return tuple(_LAYER_NUMBER.split(name))


def generalize_name(name: str) -> str:
    """Replace numbers of a name with placeholders: `h.3.attn.bias` becomes `h.{i}.attn.bias`."""
    literals = get_name_skeleton(name)
    return literals[0] + "".join(
        f"{{{_PLACEHOLDER_LETTERS[k % len(_PLACEHOLDER_LETTERS)]}}}{rest}"
        for k, rest in enumerate(literals[1:])
    )


def group_names(names: Iterable[str]) -> list[str]:
    """Abbreviate names as `h.{0..11}.attn.bias`, in order of first appearance."""
    families: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        families.setdefault(get_name_skeleton(name), []).append(find_name_numbers(name))
    found: list[str] = []
    for literals, rows in families.items():
        columns = [sorted(set(c), key=int) for c in zip(*rows, strict=True)]
        # `{0..2}.{0..1}` stands for six names; if one is missing, all names are listed
        if math.prod(map(len, columns)) == len(set(rows)):
            found.append(_interleave_parts(literals, [_format_range(c) for c in columns]))
        else:
            found += [_interleave_parts(literals, row) for row in rows]
    return found


def format_names(names: Sequence[str], max_names: int = 6) -> str:
    """Format at most `max_names` names, followed by the number of omitted names."""
    short = group_names(names)
    more = f" and {len(short) - max_names} more" if len(short) > max_names else ""
    return ", ".join(short[:max_names]) + more


def find_nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the most similar name, preferring names with the same numbers, or None if no name is
    similar enough.
    """
    pool = list(candidates)
    same_numbers = [c for c in pool if find_name_numbers(c) == find_name_numbers(name)] or pool
    return next(
        iter(difflib.get_close_matches(name, same_numbers[:_MAX_CANDIDATES], 1, cutoff=0.7)), None
    )


def find_name_numbers(name: str) -> tuple[str, ...]:
    """Return the numbers in a name."""
    return tuple(_LAYER_NUMBER.findall(name))


def _format_range(values: Sequence[str]) -> str:
    """Format `["0", "1", "2"]` as `{0..2}`."""
    if len(values) == 1:
        return values[0]
    first = int(values[0])
    if list(map(int, values)) == list(range(first, first + len(values))):
        return f"{{{values[0]}..{values[-1]}}}"
    shown = ",".join(values) if len(values) <= 8 else ",".join((*values[:6], "…", values[-1]))
    return f"{{{shown}}}"


def _interleave_parts(literals: Sequence[str], values: Iterable[str]) -> str:
    return literals[0] + "".join(v + rest for v, rest in zip(values, literals[1:], strict=True))
