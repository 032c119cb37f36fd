"""Match parameter names with patterns, group and compare names, and infer the names of their
tensors.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.io.safe_read import escape_text

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
    function runs in linear time, unlike a regular expression with several `.*`.
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
        """Fill `template` by replacing each `{i}` and the n-th `*` with the captured texts."""
        wildcards = iter(self.wildcards)
        return _PLACEHOLDER.sub(
            lambda match: (
                next(wildcards, "*") if match[1] is None else self.variables.get(match[1], match[0])
            ),
            template,
        )


def split_name_at_numbers(name: str) -> tuple[str, ...]:
    """Return the parts of a name between its numbers. A parameter has the same parts in all layers
    of a model.
    """
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
    """Return a text for each number in the names. The text is the number if all names have the same
    number, and otherwise a placeholder. If there is only one name, numbers that are whole
    components also become placeholders.
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
        # `{0..2}.{0..1}` represents six names: if one of the six is missing, list the names
        # separately
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
    """Return the candidate that is most similar to `name`, or None if no candidate is similar.
    Candidates with the numbers of `name` take precedence.
    """
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


@immutable_dataclass
class ParameterNaming:
    """The mapping from parameter names to tensor names: `removed_prefix` is stripped, or
    `added_prefix` is prepended. `submodule_namings` maps the path of each used spec to its naming,
    longest path first.
    """

    removed_prefix: str = ""
    added_prefix: str = ""
    submodule_namings: "tuple[tuple[str, ParameterNaming], ...]" = ()

    def resolve_name(self, name: str, tensors: Set[str], prefix: str = "") -> str:
        """Return the tensor name of the parameter `name`. If `name` is the name in a used
        spec, `prefix` is the path of this spec. `tensors` are the full tensor names in the file.
        """
        for path, inner in self.submodule_namings:
            if name.startswith(path):
                return path + inner.resolve_name(name[len(path) :], tensors, prefix + path)
        if self.removed_prefix and name.startswith(self.removed_prefix):
            stripped = name[len(self.removed_prefix) :]
            is_kept = {prefix + name, prefix + stripped} & tensors == {prefix + name}
            # in some files, only some tensor names have the prefix
            return name if is_kept else stripped
        # In a file, a task head is a sibling of the base model and lacks its prefix, so the prefix
        # is added only if the file has the resulting name.
        prefixed = self.added_prefix + name
        return prefixed if self.added_prefix and prefix + prefixed in tensors else name

    def list_candidate_names(self, tensor: str) -> tuple[str, ...]:
        """Return the parameter names that a tensor name may correspond to."""
        for path, inner in self.submodule_namings:
            if tensor.startswith(path):
                return tuple(path + n for n in inner.list_candidate_names(tensor[len(path) :]))
        if self.removed_prefix:
            return tensor, self.removed_prefix + tensor
        if tensor.startswith(self.added_prefix):
            return tensor, tensor.removeprefix(self.added_prefix)
        return (tensor,)

    def __str__(self) -> str:
        parts: list[str] = []
        if self.removed_prefix:
            parts.append(f"without the prefix `{escape_text(self.removed_prefix)}`")
        if self.added_prefix:
            parts.append(f"with the prefix `{escape_text(self.added_prefix)}`")
        parts += [f"under `{escape_text(p)}` {inner}" for p, inner in self.submodule_namings]
        return ", ".join(parts) or "as declared"


def infer_parameter_naming(
    names: Iterable[str], tensors: Set[str], path: Path, used_spec_paths: Iterable[str] = ()
) -> ParameterNaming:
    """Infer the naming of a checkpoint. The naming below each path in `used_spec_paths` is inferred
    separately, because a used spec may have the names of a separate checkpoint. Raise E0515 if two
    namings match the same number of names.
    """
    remaining_names, remaining_tensors = set(names), set(tensors)
    submodule_namings: list[tuple[str, ParameterNaming]] = []
    for prefix in sorted({f"{p}." for p in used_spec_paths}, key=lambda p: (-len(p), p)):
        names = {name for name in remaining_names if name.startswith(prefix)}
        tensors = {name for name in remaining_tensors if name.startswith(prefix)}
        # If the file has no names below the path, the whole model may be below a common prefix.
        if not names or not tensors:
            continue
        remaining_names, remaining_tensors = remaining_names - names, remaining_tensors - tensors
        suffixes = [{name.removeprefix(prefix) for name in group} for group in (names, tensors)]
        naming = _infer_one_naming(suffixes[0], suffixes[1], path)
        if naming != ParameterNaming():
            submodule_namings.append((prefix, naming))
    naming = _infer_one_naming(remaining_names, remaining_tensors, path)
    return replace(naming, submodule_namings=tuple(submodule_namings))


def _infer_one_naming(names: Set[str], tensors: Set[str], path: Path) -> ParameterNaming:
    """Infer the naming of the parameters `names` of one spec, without its used specs."""
    plain_count = len(names & tensors)
    if plain_count == len(names):
        return ParameterNaming()

    def resolve_names(naming: ParameterNaming) -> frozenset[str]:
        return frozenset(naming.resolve_name(declared, tensors) for declared in names)

    candidates = [
        naming
        for naming in _list_candidates(names, tensors)
        # next to a task head, the base model may have no prefix, so a prefix must match more names
        if not naming.added_prefix
        or sum(naming.added_prefix + n in tensors for n in names - tensors) > plain_count
    ]
    match_counts = {naming: len(resolve_names(naming) & tensors) for naming in candidates}
    best_count = max(match_counts.values(), default=0)
    # ignore a naming that matches only a few names by coincidence
    if best_count <= plain_count or 2 * best_count < len(names):
        return ParameterNaming()
    best_namings = [naming for naming, count in match_counts.items() if count == best_count]
    best_namings.sort(key=lambda n: (n.removed_prefix, n.added_prefix))
    # If several namings resolve to the same tensors, each of these namings is correct.
    if len(set(map(resolve_names, best_namings))) > 1:
        raise_error(
            "E0515",
            f"`{escape_text(path)}` contains the weights under several prefixes",
            notes=[f"{best_count} of {len(names)} names match {n}" for n in best_namings[:6]],
            helps=[
                "select one: add the prefix to the spec's names with `under`, and `ignore` the "
                "others"
            ],
        )
    return best_namings[0]


def _list_candidates(names: Set[str], tensors: Set[str]) -> list[ParameterNaming]:
    """Return the namings with a prefix that match at least one tensor, in order of decreasing
    number of matches.
    """
    counts: Counter[ParameterNaming] = Counter()
    for longer, shorter in ((names, tensors), (tensors, names)):
        for name in longer:
            # try prefixes that end at one of the first four dots
            for dot in islice(re.finditer(r"\.", name), 4):
                prefix = name[: dot.end()]
                naming = ParameterNaming(removed_prefix=prefix)
                if longer is tensors:
                    naming = ParameterNaming(added_prefix=prefix)
                counts[naming] += name[dot.end() :] in shorter
    # sort by name, because the result must not depend on the iteration order of sets
    ordered = sorted(+counts, key=lambda n: (-counts[n], n.removed_prefix, n.added_prefix))
    return ordered[:16]
