"""Match, group and compare parameter names with patterns."""

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
    """A pattern of parameter names such as `h.{i}.attn.*`: `{i}` matches a number, `*` any text."""

    text: str

    def matches(self, name: str) -> bool:
        """Return True if the pattern matches the whole of `name`."""
        if "{" not in self.text:
            return _matches_in_order(self.text.split("*"), name)
        return self._expression.fullmatch(name) is not None

    def get_captures(self, name: str) -> "NameCaptures | None":
        """Return the text that each placeholder matches, or None if the pattern does not match."""
        match = self._expression.fullmatch(name)
        if not match:
            return None
        groups = match.groupdict()
        wildcards = tuple(
            v for k, v in sorted(groups.items(), key=lambda kv: len(kv[0])) if k.startswith("_star")
        )
        return NameCaptures(
            {k.removeprefix("v_"): v for k, v in groups.items() if k.startswith("v_")}, wildcards
        )

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        parts: list[str] = []
        position, wildcards, bound_names = 0, 0, set[str]()
        for placeholder in _PLACEHOLDER.finditer(self.text):
            parts.append(re.escape(self.text[position : placeholder.start()]))
            position = placeholder.end()
            if placeholder[1] is None:
                wildcards += 1
                parts.append(f"(?P<_star{'x' * wildcards}>.*)")
            elif placeholder[1] in bound_names:  # all occurrences of `{i}` match the same number
                parts.append(f"(?P=v_{placeholder[1]})")
            else:
                bound_names.add(placeholder[1])
                parts.append(f"(?P<v_{placeholder[1]}>[0-9]+)")
        return re.compile("".join(parts) + re.escape(self.text[position:]), re.DOTALL)


def _matches_in_order(parts: Sequence[str], name: str) -> bool:
    """Return True if `name` consists of `parts` in order, with any text between two parts. The
    function takes linear time, unlike a regular expression with several `.*`.
    """
    first, *others = parts
    if not others:
        return name == first
    if not name.startswith(first):
        return False
    position = len(first)
    for part in others[:-1]:
        position = name.find(part, position) + len(part)
        if position < len(part):
            return False
    return name.endswith(others[-1]) and len(name) - position >= len(others[-1])


@dataclass(frozen=True)
class NameCaptures:
    """The texts that `{i}` (`variables`) and each `*` (`wildcards`) of a pattern match."""

    variables: dict[str, str]
    wildcards: tuple[str, ...]

    def fill_template(self, template: str) -> str:
        """Fill `template`: replace each `{i}` and the n-th `*` with the captured texts."""
        wildcards = iter(self.wildcards)
        return _PLACEHOLDER.sub(
            lambda match: (
                next(wildcards, "*") if match[1] is None else self.variables.get(match[1], match[0])
            ),
            template,
        )


def split_name_at_numbers(name: str) -> tuple[str, ...]:
    """Return the parts of a name between its numbers. All layers of a model have the same parts."""
    return tuple(_LAYER_NUMBER.split(name))


def replace_numbers_with_placeholders(name: str) -> str:
    """Replace numbers in a name with placeholders: `h.3.attn.bias` becomes `h.{i}.attn.bias`."""
    literals = split_name_at_numbers(name)
    return literals[0] + "".join(
        f"{{{_PLACEHOLDER_LETTERS[k % len(_PLACEHOLDER_LETTERS)]}}}{rest}"
        for k, rest in enumerate(literals[1:])
    )


def infer_name_patterns(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return one pattern for the parameter names and one for the tensor names of `pairs`, such as
    `h.{i}.w` and `l.{i}.v` for `h.3.w` and `l.3.v`. The parameter names may differ only in numbers.

    A number that is equal in all pairs is not replaced. A number in a single pair is replaced only
    if it is a whole name component. If the parameters' numbers do not determine the tensors'
    numbers, return the first pair.
    """
    literals, source_literals = map(split_name_at_numbers, pairs[0])
    columns = [*zip(*(find_numbers_in_name(name) for name, _ in pairs), strict=True)]
    if any(split_name_at_numbers(tensor) != source_literals for _, tensor in pairs):
        return pairs[0]
    source_columns = [*zip(*(find_numbers_in_name(tensor) for _, tensor in pairs), strict=True)]
    texts = _replace_layer_numbers(literals, columns)
    texts_by_column = dict(zip(reversed(columns), reversed(texts), strict=True))
    # if several columns are equal, prefer the number at the same position in the name
    places = zip(columns, source_columns, texts, strict=False)
    texts_by_column |= {column: text for column, source, text in places if column == source}
    if any(len(set(c)) > 1 and c not in texts_by_column for c in source_columns):
        return pairs[0]
    sources = [texts_by_column.get(column, column[0]) for column in source_columns]
    return _interleave_parts(literals, texts), _interleave_parts(source_literals, sources)


def _replace_layer_numbers(
    literals: Sequence[str], columns: Sequence[tuple[str, ...]]
) -> list[str]:
    """Return a text for each number in the names: a placeholder if the number differs between
    names, or if there is only one name and the number is a whole component, otherwise the number
    itself.
    """
    letters = iter(_PLACEHOLDER_LETTERS)
    texts: list[str] = []
    for n, column in enumerate(columns):
        is_component = literals[n][-1:] in ("", ".") and literals[n + 1][:1] == "."
        is_layer = is_component if len(column) == 1 else len(set(column)) > 1
        texts.append(f"{{{next(letters, f'n{n}')}}}" if is_layer else column[0])
    return texts


def group_parameter_names(names: Iterable[str]) -> list[str]:
    """Merge names that differ only in numbers, e.g. into `h.{0..11}.attn.bias`, in order."""
    numbers_by_skeleton: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in names:
        numbers_by_skeleton.setdefault(split_name_at_numbers(name), []).append(
            find_numbers_in_name(name)
        )
    groups: list[str] = []
    for literals, rows in numbers_by_skeleton.items():
        columns = [sorted(set(c), key=int) for c in zip(*rows, strict=True)]
        # `{0..2}.{0..1}` stands for six names, so the names are listed separately if one of the six
        # is missing
        if math.prod(map(len, columns)) == len(set(rows)):
            groups.append(_interleave_parts(literals, [_format_range(c) for c in columns]))
        else:
            groups += [_interleave_parts(literals, row) for row in rows]
    return groups


def format_name_groups(names: Sequence[str], max_names: int = 6) -> str:
    """Format at most `max_names` names as a list, followed by the number of omitted names."""
    groups = group_parameter_names(names)
    remainder = f" and {len(groups) - max_names} more" if len(groups) > max_names else ""
    return ", ".join(groups[:max_names]) + remainder


def find_nearest_name(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate most similar to `name`, preferably with equal numbers, or None."""
    names = list(candidates)
    matching_names = [
        c for c in names if find_numbers_in_name(c) == find_numbers_in_name(name)
    ] or names
    return next(
        iter(difflib.get_close_matches(name, matching_names[:_MAX_CANDIDATES], 1, cutoff=0.7)), None
    )


def find_numbers_in_name(name: str) -> tuple[str, ...]:
    """Return the numbers in a parameter name."""
    return tuple(_LAYER_NUMBER.findall(name))


def _format_range(values: Sequence[str]) -> str:
    """Format a list of numbers as a range: `["0", "1", "2"]` becomes `{0..2}`."""
    if len(values) == 1:
        return values[0]
    first = int(values[0])
    if list(map(int, values)) == list(range(first, first + len(values))):
        return f"{{{values[0]}..{values[-1]}}}"
    text = ",".join(values) if len(values) <= 8 else ",".join((*values[:6], "…", values[-1]))
    return f"{{{text}}}"


def _interleave_parts(literals: Sequence[str], values: Iterable[str]) -> str:
    """Join `literals`, with one item of `values` between two adjacent literals."""
    return literals[0] + "".join(v + rest for v, rest in zip(values, literals[1:], strict=True))
