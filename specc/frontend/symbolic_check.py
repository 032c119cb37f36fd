"""Check a spec with symbolic config values: every length a symbol, every choice tried."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Failed, Label
from specc.diagnostics.render import format_repr
from specc.diagnostics.source import Span
from specc.frontend.config_values import ConfigReader, get_first_trial_value, is_derived_field
from specc.frontend.context import Library, raise_undecided_structure
from specc.frontend.spec_modules import Program
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.spec_values import ChoiceValue, NeedsValue, Record, SpecValue
from specc.frontend.step_budget import StepBudget
from specc.frontend.used_specs import apply_trial_specs
from specc.ir.dim import Dim
from specc.ir.model import ModelDefinition
from specc.syntax import ast

MAX_TRIALS = 48


@dataclass(frozen=True)
class SymbolicTrial:
    """One symbolic reading: what was tried and the model it gave."""

    trial_values: dict[str, str]
    model: ModelDefinition

    def __repr__(self) -> str:
        tried = ", ".join(f"{name}={value}" for name, value in self.trial_values.items())
        return format_repr(f"trial {tried or 'of all symbols'}")


def check_spec_symbolically(
    program: Program, library: Library, graph: str = "", *, has_config_file: bool = False
) -> list[SymbolicTrial]:
    """Elaborate with symbols. Raise Failed; an error that occurs only in some trial
    names the values of that trial.

    A number that follows from others by its default (`side = image / patch`) is at first
    a symbol as well, so that what holds for any other value is seen. Where the spec needs
    it to be what it follows as, it is that.

    `has_config_file`: a config file has other numbers than the defaults. Lengths that are given
    need not fit defaults then; whether they fit the file is seen with numbers.
    """
    if program.is_builtin:
        asked = (program.get_identity(), graph, has_config_file)
        return [
            *_check_builtin_model(_BuiltinCheckKey(asked, program, library, graph, has_config_file))
        ]
    return _run_check(program, library, graph, has_config_file=has_config_file)


@dataclass(frozen=True, slots=True)
class _BuiltinCheckKey:
    """The check of a built-in spec. `asked` is everything its result depends on."""

    identity: Hashable
    program: Program = field(compare=False)
    library: Library = field(compare=False)
    graph: str = field(compare=False)
    has_config_file: bool = field(compare=False)


@lru_cache(maxsize=512)
def _check_builtin_model(question: _BuiltinCheckKey) -> list[SymbolicTrial]:
    """Check a built-in spec symbolically. Cached: its files do not change."""
    program, library = question.program, question.library
    return _run_check(program, library, question.graph, has_config_file=question.has_config_file)


def _run_check(
    program: Program, library: Library, graph: str, *, has_config_file: bool
) -> list[SymbolicTrial]:
    try:
        return _check_free_then_derived(program, library, graph)
    except Failed as failed:
        # a given size may fit the values of a file, but not the defaults
        if has_config_file and program.assignments and _is_size_error(failed):
            with suppress(Failed):
                return _check_free_then_derived(replace(program, assignments={}), library, graph)
        return _check_without_overrides(program, library, graph, failed)


def _check_without_overrides(
    program: Program, library: Library, graph: str, failed: Failed
) -> list[SymbolicTrial]:
    """Check without given values that equal their default, computed from other fields: `side = 8`
    of 32 / 4. Re-raise the original error if this fails, or the value differs.
    """
    fields = program.list_fields_by_path()
    given = {
        p: a for p, a in program.assignments.items() if p in fields and is_derived_field(fields[p])
    }
    if not given or not _is_shape_error(failed):
        raise failed from None
    others = {p: a for p, a in program.assignments.items() if p not in given}
    without = replace(program, assignments=others)
    try:
        trials = _check_free_then_derived(without, library, graph)
    except Failed:
        raise failed from None
    if _has_same_values(library, program, without, given):
        return trials
    path, value = next(iter(given.items()))
    default = fields[path].default
    if value.span is None or default is None or default.span is None:
        raise failed from None
    _raise_override_error(failed.diagnostics[0], path, value.span, default.span.text)


def _raise_override_error(found: Diagnostic, path: str, span: Span, default: str) -> NoReturn:
    """Raise the error `found` at the value given for a derived field."""
    primary, says = found.primary, f"left out, `{path}` is {default}"
    raise Failed(
        replace(
            found,
            title=f"`{path}` does not match the fields it is computed from: {found.title}",
            primary=Label(span, says),
            others=(*((primary,) if primary else ()), *found.others),
            helps=(f"leave `{path}` out, or change the fields it is computed from",),
        )
    ) from None


def _has_same_values(library: Library, one: Program, other: Program, paths: Iterable[str]) -> bool:
    """Return whether two programs have the same numbers at some paths, with the values and
    defaults of both.
    """
    try:
        both = [
            evaluate_and_check_config(create_context(library), program, ConfigReader())
            for program in (one, other)
        ]
    except (Failed, NeedsValue):
        return False
    return all(_get_value(both[0], path) == _get_value(both[1], path) for path in paths)


def _get_value(values: Mapping[str, SpecValue], path: str) -> SpecValue:
    name, _, rest = path.partition(".")
    value = values.get(name)
    return _get_value(value.fields, rest) if rest and isinstance(value, Record) else value


def _check_free_then_derived(program: Program, library: Library, graph: str) -> list[SymbolicTrial]:
    """Run the trials with all integers as symbols or, if these fail, with derived integers as
    expressions.
    """
    try:
        return _run_trials(program, library, graph, derives_integers=False)
    except Failed as free:
        says = _list_derived_fields(program)
        if not says or not _is_shape_error(free):
            raise
    trials = _run_trials(program, library, graph, derives_integers=True)
    return [replace(trials[0], trial_values=says | trials[0].trial_values), *trials[1:]]


def _list_derived_fields(program: Program) -> dict[str, str]:
    """Return the derived fields with their expressions."""
    return {
        path: entry.default.span.text
        for path, entry in program.list_fields_by_path().items()
        if is_derived_field(entry)
        and path not in program.assignments
        and entry.default is not None
        and entry.default.span is not None
    }


def _is_shape_error(failed: Failed) -> bool:
    """Return whether all errors are lengths that differ."""
    return all(d.code.startswith("E03") for d in failed.diagnostics)


def _is_size_error(failed: Failed) -> bool:
    """Return whether all errors are lengths that differ, or requirements of the spec
    requires.
    """
    return all(_is_requirement_error(d) or _is_shape_error(Failed(d)) for d in failed.diagnostics)


def _run_trials(
    program: Program, library: Library, graph: str, *, derives_integers: bool
) -> list[SymbolicTrial]:
    """Run the trials of `check_spec_symbolically`. With `derives_integers`, derived integers
    are expressions, else symbols.
    """
    fixed: dict[str, SpecValue] = {}
    settling = _TrialRunner(program, library, graph, StepBudget(), derives_integers)
    try:
        model = settling.elaborate_fixing_fields(fixed)
    except Failed as failed:
        raise Failed(*_add_trial_sizes(failed, fixed)) from None
    trials = [SymbolicTrial({k: _format_trial_value(v) for k, v in fixed.items()}, model)]
    faults: list[Diagnostic] = []
    # sizes of the first reading are not tried again
    others = [(p, v) for p, v in _iterate_alternatives(program, fixed) if fixed.get(p) != v]
    fields = program.list_fields_by_path()
    for path, value in others[:MAX_TRIALS]:
        # the value that the first reading had anyway, with the same model
        if path not in fixed and value == _get_first_choice(fields[path]):
            trials.append(SymbolicTrial({path: _format_trial_value(value)}, model))
            continue
        try:
            made = settling.elaborate_fixing_fields(_drop_below(path, fixed) | {path: value})
            trials.append(SymbolicTrial({path: _format_trial_value(value)}, made))
        except Failed as failed:
            seen = _add_trial_sizes(failed, {path: value})
            faults += [d for d in seen if not _is_requirement_error(d)]
    if faults:
        raise Failed(*faults[:20])
    return trials


def _drop_below(path: str, fixed: Mapping[str, SpecValue]) -> dict[str, SpecValue]:
    """Return the fixed values except those below a path: the trial of one of several
    used specs is not valid for another.
    """
    inside = f"{path}."
    return {p: v for p, v in fixed.items() if not p.startswith(inside)}


def _add_trial_sizes(failed: Failed, sizes: Mapping[str, SpecValue]) -> list[Diagnostic]:
    """Add a note with the trial sizes to the errors of a trial; the spec does not show them."""
    if not sizes:
        return list(failed.diagnostics)
    values = ", ".join(f"{path} = {_format_trial_value(value)}" for path, value in sizes.items())
    return [replace(d, notes=(*d.notes, f"with {values}")) for d in failed.diagnostics]


def _is_requirement_error(diagnostic: Diagnostic) -> bool:
    """Return whether the spec itself rules out the trial."""
    return diagnostic.code == "E0404"


@dataclass(frozen=True, slots=True)
class _TrialRunner:
    """State shared by the readings of one check."""

    program: Program
    library: Library
    graph: str
    steps: StepBudget
    derives_integers: bool

    def _elaborate(self, fixed: Mapping[str, SpecValue]) -> ModelDefinition:
        reader = ConfigReader(
            is_symbolic=True,
            derives_integers=self.derives_integers,
            trial_values=fixed,
            steps=self.steps,
        )
        program = apply_trial_specs(self.program, fixed)
        return elaborate_model(program, self.library, reader, self.graph)

    def elaborate_fixing_fields(self, fixed: dict[str, SpecValue]) -> ModelDefinition:
        """Elaborate, fixing fields that turn out to decide structure at sizes the spec
        allows.
        """
        fields = apply_trial_specs(self.program, fixed).list_fields_by_path()
        free: dict[str, ast.Field] = {}
        sizes: Iterator[dict[str, SpecValue]] = iter(())
        forbidden: Failed | None = None
        while True:
            try:
                return self._elaborate(fixed)
            except NeedsValue as need:
                # Return the config values of the symbols: `d / heads` depends on two of them.
                behind = [p for s in need.symbols for p in _list_symbol_fields(s)]
                found = {p: fields[p] for p in behind if p in fields and p not in fixed}
                # a length that only an input determines: no trial decides it
                if not found:
                    raise_undecided_structure(need)
                free |= found
                sizes = _iterate_trial_sizes(free)
                fixed.update(next(sizes))
            except Failed as failed:
                # An error of the spec occurs at any size; only for violated `require`s are other
                # sizes tried.
                if not all(map(_is_requirement_error, failed.diagnostics)):
                    raise failed from None
                # if every size is rejected, show the first error: its numbers are the simplest
                forbidden = forbidden or failed
                other = next(sizes, None)
                if other is None:
                    raise forbidden from None
                fixed.update(other)


FIELD_PATH = re.compile(r"[A-Za-z_][\w.]*")


def _list_symbol_fields(symbol: str) -> list[str]:
    """Return the config fields of a symbol: itself, or those in a quotient or another
    computed number.
    """
    return FIELD_PATH.findall(symbol)


TRIAL_SIZES = (4, 8, 16, 3, 6, 12, 32, 64, 24, 48, 96, 128, 256)
"""Sizes to try if a `require` excludes the default ones."""


def _iterate_trial_sizes(fields: Mapping[str, ast.Field]) -> Iterator[dict[str, SpecValue]]:
    """Values for fields that decide structure: small ones, then the defaults, then
    others, alone and together.

    Sizes that the spec's own `require` forbids are passed over for the next.
    """
    usual: dict[str, SpecValue] = {p: _get_usual_number(entry) for p, entry in fields.items()}
    yield dict(usual)
    defaults = {path: _get_default_number(entry) for path, entry in fields.items()}
    yield usual | {path: d for path, d in defaults.items() if d is not None}
    whole = [path for path, entry in fields.items() if entry.type.name == "int"]
    sizes: list[SpecValue] = [Dim.of(size) for size in (1, *TRIAL_SIZES)]
    for path in whole:
        yield from (usual | {path: size} for size in sizes)
    if len(whole) > 1:  # `require a == b` holds for none of those
        yield from (usual | dict.fromkeys(whole, size) for size in sizes)


def _get_default_number(entry: ast.Field) -> Dim | float | None:
    if not isinstance(entry.default, ast.NumberLiteral):
        return None
    text = entry.default.text
    return Dim.of(int(text)) if text.isdigit() else float(text)


def _get_usual_number(entry: ast.Field) -> Dim | float:
    if entry.type.name == "float":
        return 0.5
    value = _get_default_number(entry)
    return value if isinstance(value, Dim) and value.number in (0, 1, 2) else Dim.of(2)


def _iterate_alternatives(
    program: Program, fixed: dict[str, SpecValue]
) -> Iterator[tuple[str, SpecValue]]:
    """Yield other values to try, one at a time."""
    for path, entry in program.list_fields_by_path().items():
        # Values for one of several used specs do not apply to the others.
        given = any(p == path or p.startswith(f"{path}.") for p in program.assignments)
        if given:
            continue
        match entry.type.name:
            case "bool":
                yield path, True
                yield path, False
            case "choice":
                yield from ((path, ChoiceValue(w, entry.type.names)) for w in entry.type.names)
            case "int" if path in fixed:
                yield path, Dim.of(1)
                yield path, Dim.of(2)


def _get_first_choice(entry: ast.Field) -> SpecValue:
    """What the first reading takes a truth or a choice for, where that is one word: to
    try it would be the same reading again. None where that is not seen.
    """
    if entry.default is None:
        return None if entry.type.optional else get_first_trial_value(entry.type)
    if not isinstance(entry.default, ast.Name):
        return None
    word = entry.default.path
    if entry.type.name == "bool":
        return {"true": True, "false": False}.get(word)
    return ChoiceValue(word, entry.type.names) if word in entry.type.names else None


def _format_trial_value(value: SpecValue) -> str:
    match value:
        case ChoiceValue(word):
            return word
        case bool(b):
            return str(b).lower()
        case other:
            return str(other)
