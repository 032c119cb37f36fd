"""The base-model prefix that parameter names have or lack in a file."""

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text


@dataclass(frozen=True, slots=True)
class ParameterNaming:
    """Mapping from declared names to tensor names: strips the prefix `minus` or adds `plus`; below
    the path of a used spec as `parts` maps it, longest path first.
    """

    minus: str = ""
    plus: str = ""
    parts: "tuple[tuple[str, ParameterNaming], ...]" = ()

    def name(self, declared: str, present: Set[str], start: str = "") -> str:
        """Return the tensor name of a declared name; `start` is the common prefix of all names."""
        for path, inner in self.parts:
            if declared.startswith(path):
                return path + inner.name(declared[len(path) :], present, start + path)
        if self.minus and declared.startswith(self.minus):
            return declared[len(self.minus) :]
        # A head is next to the base model in a file, not under its prefix: only names under the
        # prefix are considered there.
        behind = self.plus + declared
        return behind if self.plus and start + behind in present else declared

    def get_spellings(self, tensor: str) -> tuple[str, ...]:
        """Return the names a tensor may have in the spec."""
        for path, inner in self.parts:
            if tensor.startswith(path):
                below = inner.get_spellings(tensor[len(path) :])
                return tuple(path + spelling for spelling in below)
        if self.minus:
            return tensor, self.minus + tensor
        if tensor.startswith(self.plus):
            return tensor, tensor.removeprefix(self.plus)
        return (tensor,)

    def __str__(self) -> str:
        said: list[str] = []
        if self.minus:
            said.append(f"without the prefix `{escape_text(self.minus)}`")
        if self.plus:
            said.append(f"with the prefix `{escape_text(self.plus)}`")
        said += [f"under `{escape_text(p)}` {inner}" for p, inner in self.parts]
        return ", ".join(said) or "as declared"


def infer_naming(
    needed: Iterable[str], present: Set[str], path: Path, parts: Iterable[str] = ()
) -> ParameterNaming:
    """Infer the naming of a checkpoint, and that below each path of `parts`, where a used spec may
    be stored as in its own checkpoint. E0515 if two namings match equally many names.
    """
    left, there = set(needed), set(present)
    found: list[tuple[str, ParameterNaming]] = []
    for start in sorted({f"{p}." for p in parts}, key=lambda p: (-len(p), p)):
        names = {name for name in left if name.startswith(start)}
        tensors = {name for name in there if name.startswith(start)}
        # Names that the file lacks may be under a common prefix.
        if not names or not tensors:
            continue
        left, there = left - names, there - tensors
        cut = len(start)
        inner = _infer_one_naming({n[cut:] for n in names}, {t[cut:] for t in tensors}, path)
        if inner != ParameterNaming():
            found.append((start, inner))
    return replace(_infer_one_naming(left, there, path), parts=tuple(found))


def _infer_one_naming(names: Set[str], present: Set[str], path: Path) -> ParameterNaming:
    """Infer the naming of one spec's parameters."""
    plain = len(names & present)
    if plain == len(names):
        return ParameterNaming()

    def list_names(naming: ParameterNaming) -> frozenset[str]:
        return frozenset(naming.name(declared, present) for declared in names)

    candidates = [
        naming
        for naming in _list_candidates(names, present)
        # the base is under a prefix, not one head next to a base stored as declared
        if not naming.plus or _count_prefixed(naming, names, present) > plain
    ]
    found = {naming: len(list_names(naming) & present) for naming in candidates}
    best = max(found.values(), default=0)
    if best <= plain or 2 * best < len(names):  # a few coincidental matches decide nothing
        return ParameterNaming()
    winners = sorted((n for n in found if found[n] == best), key=_cut_and_put)
    # Two spellings of one prefix find the same tensors; then either will do.
    if len(set(map(list_names, winners))) > 1:
        _fail_several(path, [f"{best} of {len(names)} names match {n}" for n in winners])
    return winners[0]


def _count_prefixed(naming: ParameterNaming, names: Set[str], present: Set[str]) -> int:
    """Count the names that match only with the prefix added."""
    return sum(naming.plus + name in present for name in names - present)


def _cut_and_put(naming: ParameterNaming) -> tuple[str, str]:
    return naming.minus, naming.plus


def _fail_several(path: Path, notes: list[str]) -> NoReturn:
    raise_error(
        "E0515",
        f"`{escape_text(str(path))}` has the weights under several prefixes",
        notes=notes[:6],
        helps=[
            "select one: add the prefix to the spec's names with `under`, and `ignore` the others"
        ],
    )


def _list_candidates(names: Set[str], present: Set[str]) -> list[ParameterNaming]:
    """Return prefixes that match at least one more name, most frequent first."""
    counts: Counter[ParameterNaming] = Counter()
    for name in names:
        for cut in _list_cuts(name):
            if name[cut:] in present:
                counts[ParameterNaming(minus=name[:cut])] += 1
    for tensor in present:
        for cut in _list_cuts(tensor):
            if tensor[cut:] in names:
                counts[ParameterNaming(plus=tensor[:cut])] += 1
    # deterministic order of equally frequent prefixes, independent of set order
    ordered = sorted(counts, key=lambda n: (-counts[n], n.minus, n.plus))
    return ordered[:16]


def _list_cuts(name: str) -> list[int]:
    """Return the indices after the first four dots."""
    cuts: list[int] = []
    at = name.find(".")
    while at >= 0 and len(cuts) < 4:
        cuts.append(at + 1)
        at = name.find(".", at + 1)
    return cuts
