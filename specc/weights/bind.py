"""Matches a model's parameters with a checkpoint, strictly in both directions, from
headers alone.

Every parameter is made from tensors that are there, of a shape and type that fit; every
tensor is used, or ignored by a rule of the spec. Only then is data read, and only to
compare the two copies of tied weights.
"""

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from specc.text.diagnostic import Diagnostic, Failed
from specc.text.source import Span
from specc.weights import faults
from specc.weights.checkpoint import Checkpoint
from specc.weights.formats.dtypes import FLOATS, NUMPY
from specc.weights.fresh import Fresh, drawn_warning, kept_from
from specc.weights.names import Pattern
from specc.weights.prefix import Naming, naming_of
from specc.weights.rearrange import Unfit
from specc.weights.rules import (
    IgnoreRule,
    LoadRule,
    Rules,
    Wanted,
    check_used,
    tied_pairs,
)
from specc.weights.shape import dtype_of, shape_of
from specc.weights.transform import Expr, Tensor, chosen, renamed, tensors_of
from specc.weights.values import Binding, Bound, Seeded


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a parameter is looked for: an expression in declared names, and the rule
    that says so.
    """

    wanted: Wanted
    expr: Expr
    span: Span | None


def bind(
    wanted: Sequence[Wanted],
    rules: Rules,
    checkpoint: Checkpoint,
    fresh: Fresh | None = None,
) -> Binding:
    """The match; `load` rules are passed over where the file holds parameters as the
    spec has them. A new head is drawn as `fresh` says, with a warning.

    Fails with E0501, E0503, E0505, E0508, E0510, E0511 or E0515, all faults at once.
    """
    by_name = {w.name: w for w in wanted}
    assert len(by_name) == len(wanted), "two parameters have one name"
    # What each parameter is made of: first as the spec says, then as the file spells it.
    ties = tied_pairs(by_name, rules)
    loads = () if checkpoint.as_specified else rules.loads
    sources = {w.name: _source(w, loads) for w in wanted}
    check_used(by_name, rules)
    naming = _naming(sources, ties, rules.parts, checkpoint)
    exprs = {name: _as_named(s.expr, naming, checkpoint) for name, s in sources.items()}
    # Which of them the file has, and what of the rest is a head to be drawn.
    bound, missing = _resolve(by_name, exprs, ties, checkpoint)
    reasons = _reasons(fresh, bound, missing, exprs, checkpoint)
    drawn = _drawn(fresh, missing, reasons)
    bound |= {w.name: Bound(w, None, None, w.dtype) for w in drawn}
    names = {w.name for w in drawn}
    lacking = [(w, tensor) for w, tensor in missing if w.name not in names]
    # All faults are told at once, and before a number is read: deciding reads some.
    made = {name: b.expr or exprs[name] for name, b in bound.items()}
    wrong = _misfits(sources, made, checkpoint)
    ignored = _ignored(rules.ignores, naming, checkpoint)
    unused = _unused(exprs, ignored, checkpoint)
    found = faults.report(
        checkpoint, naming, len(by_name), lacking, wrong, unused, reasons=reasons
    )
    if found:
        raise Failed(*found)
    decided, warnings = _decide(bound, exprs, rules, checkpoint)
    if fresh is not None and drawn:
        warnings.append(drawn_warning(fresh, drawn, str(checkpoint.path)))
    return Binding(
        checkpoint=checkpoint,
        bound=decided,
        naming=naming,
        ignored=tuple(sorted(ignored)),
        warnings=tuple(warnings),
        drawn=_generator(fresh, drawn),
    )


def _reasons(
    fresh: Fresh | None,
    bound: Mapping[str, Bound],
    missing: Sequence[tuple[Wanted, str]],
    exprs: Mapping[str, Expr],
    checkpoint: Checkpoint,
) -> dict[str, str] | None:
    """Why missing parameters are no new head; None where nobody could draw one."""
    if fresh is None:
        return None
    there = [b.wanted for b in bound.values() if b.tied_to is None]
    return kept_from(fresh, missing, there, exprs, checkpoint.tensors.keys())


def _drawn(
    fresh: Fresh | None,
    missing: Sequence[tuple[Wanted, str]],
    reasons: Mapping[str, str] | None,
) -> list[Wanted]:
    """The parameters that are drawn, where that was asked for."""
    if fresh is None or fresh.seed is None or reasons is None:
        return []
    return [wanted for wanted, _ in missing if wanted.name not in reasons]


def _generator(fresh: Fresh | None, drawn: Sequence[Wanted]) -> Seeded | None:
    """What draws them."""
    if fresh is None or fresh.seed is None or not drawn:
        return None
    initial = {w.name: fresh.initial[w.name] for w in drawn}
    return Seeded(fresh.seed, {w.name: w for w in drawn}, initial)


def _naming(
    sources: Mapping[str, _Source],
    ties: Mapping[str, str],
    parts: Sequence[str],
    checkpoint: Checkpoint,
) -> Naming:
    """How the file spells the spec's names. A tied parameter may be absent, so its name
    says nothing of that.
    """
    untied = [s for name, s in sources.items() if name not in ties]
    needed = [n for s in untied for n in tensors_of(s.expr)]
    return naming_of(needed, checkpoint.tensors.keys(), checkpoint.path, parts)


def _unused(
    exprs: Mapping[str, Expr], ignored: Set[str], checkpoint: Checkpoint
) -> list[str]:
    """Tensors that nothing reads and no rule ignores. What a tied parameter would read
    counts as read, though its partner's copy is stored. How many batches a norm has
    seen in training stands beside its mean; no model reads it. A tensor without numbers
    says nothing: none of what it is the place for, such as no register tokens.
    """
    used = {n for expr in exprs.values() for n in tensors_of(expr)}
    means = {n for n in used if n.endswith("running_mean")}
    counts = {n.removesuffix("running_mean") + "num_batches_tracked" for n in means}
    empty = {n for n, tensor in checkpoint.tensors.items() if 0 in tensor.shape}
    return [n for n in checkpoint.tensors if n not in used | ignored | counts | empty]


def _as_named(expr: Expr, naming: Naming, checkpoint: Checkpoint) -> Expr:
    """An expression in the names of the file, with the first of its choices that is
    there.
    """
    present = checkpoint.tensors.keys()
    spelled = renamed(expr, lambda n: naming.name(n, present))
    return chosen(spelled, present.__contains__)


def _source(wanted: Wanted, loads: Sequence[LoadRule]) -> _Source:
    """The rule that names the parameter itself, else the first pattern that fits, else
    its own name.
    """
    for rule in loads:
        if rule.name == wanted.name:
            return _Source(wanted, rule.value, rule.span)
    for rule in loads:
        captures = Pattern(rule.name).captures(wanted.name)
        if captures is not None:
            return _Source(wanted, renamed(rule.value, captures.fill), rule.span)
    return _Source(wanted, Tensor(wanted.name), None)


def _resolve(
    wanted: Mapping[str, Wanted],
    exprs: Mapping[str, Expr],
    ties: Mapping[str, str],
    checkpoint: Checkpoint,
) -> tuple[dict[str, Bound], list[tuple[Wanted, str]]]:
    """Parameters with the expressions that make them, and those without, with a tensor
    that is missing.

    Of tied parameters any may be the one the file has; the untied one then takes its
    place.
    """
    present = checkpoint.tensors.keys()

    def lacks(name: str) -> str | None:
        return next((n for n in tensors_of(exprs[name]) if n not in present), None)

    partners: dict[str, list[str]] = {}
    for name, root in ties.items():
        partners.setdefault(root, []).append(name)
    bound: dict[str, Bound] = {}
    missing: list[tuple[Wanted, str]] = []
    for name, w in wanted.items():
        if name in ties:
            bound[name] = Bound(w, None, ties[name], "")
            continue
        holders = (n for n in (name, *partners.get(name, ())) if lacks(n) is None)
        holder = next(holders, None)
        if holder is None:
            missing.append((w, lacks(name) or name))
        else:
            bound[name] = Bound(w, exprs[holder], None, "")
    return bound, missing


def _misfits(
    sources: Mapping[str, _Source], made: Mapping[str, Expr], checkpoint: Checkpoint
) -> list[faults.Misfit]:
    """What is wrong with shapes and types; of what is missing nothing is said here."""
    there = {name: e for name, e in made.items() if _has(checkpoint, e)}
    found = [_misfit(sources[name], e, checkpoint) for name, e in there.items()]
    return [misfit for misfit in found if misfit]


def _misfit(
    source: _Source, expr: Expr, checkpoint: Checkpoint
) -> faults.Misfit | None:
    """What is wrong with shape or type of what makes a parameter."""
    wanted, names = source.wanted, tuple(tensors_of(expr))
    entries = {n: checkpoint.tensors[n] for n in names}
    try:
        shape = shape_of(expr, {n: e.shape for n, e in entries.items()})
        dtype = dtype_of(expr, {n: e.dtype for n, e in entries.items()})
    except Unfit as unfit:
        return faults.Misfit(wanted, names, source.span, why=str(unfit))
    if shape != wanted.shape or family(dtype) != family(wanted.dtype):
        return faults.Misfit(wanted, names, source.span, shape, dtype)
    return None


def family(dtype: str) -> str:
    """Types among which numbers may be converted: floats, whole numbers; any other type
    stands alone.
    """
    if dtype in FLOATS and dtype in NUMPY:
        return "float"
    return "int" if dtype[0] in "iu" else dtype


def _ignored(
    rules: Sequence[IgnoreRule], naming: Naming, checkpoint: Checkpoint
) -> set[str]:
    """The tensors that a rule names, under any of their spellings."""
    patterns = [Pattern(r.pattern) for r in rules]

    def named(name: str) -> bool:
        spellings = naming.spellings(name)
        return any(p.matches(spelling) for p in patterns for spelling in spellings)

    return {name for name in checkpoint.tensors if named(name)}


def _decide(
    bound: Mapping[str, Bound],
    exprs: Mapping[str, Expr],
    rules: Rules,
    checkpoint: Checkpoint,
) -> tuple[dict[str, Bound], list[Diagnostic]]:
    """What is stored for each parameter.

    A tied parameter of which the file has another copy with other values keeps its own,
    with a warning.
    """
    dtypes = {n: e.dtype for n, e in checkpoint.tensors.items()}
    decided = {
        name: b if b.expr is None else replace(b, dtype=dtype_of(b.expr, dtypes))
        for name, b in bound.items()
    }
    warnings: list[Diagnostic] = []
    for name, b in bound.items():
        own = exprs[name]
        # A copy of its own is there, and not the very tensor that the partner took.
        if b.tied_to is None or own == bound[b.tied_to].expr:
            continue
        if not _has(checkpoint, own):
            continue
        alone = Bound(b.wanted, own, None, dtype_of(own, dtypes))
        both = Binding(checkpoint=checkpoint, bound={**decided, name: alone})
        if not _equal(both, name, b.tied_to):
            decided[name] = alone
            said = [r.span for r in rules.ties if Pattern(r.name).matches(name)]
            warnings.append(
                faults.different_copies(b.wanted, b.tied_to, said[0], checkpoint)
            )
    return decided, warnings


def _has(checkpoint: Checkpoint, expr: Expr) -> bool:
    """Whether the file has every tensor of an expression."""
    return all(n in checkpoint.tensors for n in tensors_of(expr))


def _equal(binding: Binding, one: str, other: str) -> bool:
    """Whether two parameters have the same type and numbers."""
    dtype = binding.stored_dtype(one)
    if dtype != binding.stored_dtype(other):
        return False
    return _digest(binding, one, dtype) == _digest(binding, other, dtype)


def _digest(binding: Binding, name: str, dtype: str) -> bytes:
    """What stands for the numbers, which are never all in memory."""
    digest = hashlib.sha256()
    for chunk in binding.chunks(name, dtype):
        digest.update(chunk)
    return digest.digest()
