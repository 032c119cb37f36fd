"""Check a spec by elaborating it with symbolic sizes, once for each choice value."""

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Span, SpeccError
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.render import format_repr
from specc.frontend.config_values import (
    ConfigReadOptions,
    get_default_choice,
    get_default_number,
    get_placeholder_number,
    is_computed_int_field,
)
from specc.frontend.elaboration_context import raise_dynamic_graph_structure_error
from specc.frontend.elaboration_limits_and_errors import StepBudget
from specc.frontend.spec_modules import Program
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.spec_values import (
    Record,
    SpecValue,
    StringChoice,
    UnresolvedValueError,
    format_value,
)
from specc.frontend.used_specs import select_alternatives_to_check
from specc.ir.dim import Dim
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast

MAX_TRIALS = 48


@immutable_dataclass()
class SymbolicElaboration:
    """The result of elaborating a spec symbolically: the trial values and the model."""

    trial_values: dict[str, str]
    model: ModelDefinition

    def __repr__(self) -> str:
        values_text = ", ".join(f"{name}={value}" for name, value in self.trial_values.items())
        return format_repr(f"trial {values_text or 'of all symbols'}")


def check_spec_symbolically(
    program: Program, graph: str = "", *, has_config_file: bool = False
) -> list[SymbolicElaboration]:
    """Elaborate a spec with symbolic config values. Raise SpeccError with all errors. An error that
    occurs only in some trials has a note with the trial values.

    At first, integers with a computed default (`side = image / patch`) are independent symbols, so
    that errors that occur only with other values are found. If shape errors occur, these computed
    integers are replaced with their expressions.

    If `has_config_file` is True, sizes that the user sets may differ from the defaults, because
    `compile` checks them against the config file.
    """
    if program.is_builtin:
        identity = (program.get_cache_key(), graph, has_config_file)
        key = _BuiltinCheckKey(identity, program, graph, has_config_file)
        return [*_check_builtin_model(key)]
    return _run_check(program, graph, has_config_file=has_config_file)


@immutable_dataclass
class _BuiltinCheckKey:
    """The arguments of a check of a built-in spec, hashed and compared only by `identity`."""

    identity: Hashable
    program: Program = field(compare=False)
    graph: str = field(compare=False)
    has_config_file: bool = field(compare=False)


@lru_cache(maxsize=512)
def _check_builtin_model(key: _BuiltinCheckKey) -> list[SymbolicElaboration]:
    """Check a built-in spec symbolically, and cache the result."""
    return _run_check(key.program, key.graph, has_config_file=key.has_config_file)


def _run_check(program: Program, graph: str, *, has_config_file: bool) -> list[SymbolicElaboration]:
    try:
        return _check_free_then_derived(program, graph)
    except SpeccError as failed:
        # the assigned size may be consistent only with the config file, so check again with default
        # sizes
        is_size_error = all(
            _is_requirement_error(d) or d.code.startswith("E03") for d in failed.diagnostics
        )
        if has_config_file and program.assignments and is_size_error:
            with suppress(SpeccError):
                return _check_free_then_derived(replace(program, assignments={}), graph)
        return _check_without_overrides(program, graph, failed)


def _check_without_overrides(
    program: Program, graph: str, error: SpeccError
) -> list[SymbolicElaboration]:
    """Repeat the check without those assigned values that equal the computed defaults of their
    fields. For example, the value `side = 8` equals the default `image / patch` = 32 / 4. Raise the
    error `error` again if the repeated check fails or an assigned value differs from the default.
    """
    default_texts = _map_derived_fields(program)
    overrides = {p: a for p, a in program.assignments.items() if p in default_texts}
    if not overrides or not _is_shape_error(error):
        raise error from None
    remaining_assignments = {p: a for p, a in program.assignments.items() if p not in overrides}
    reduced_program = replace(program, assignments=remaining_assignments)
    try:
        trials = _check_free_then_derived(reduced_program, graph)
    except SpeccError:
        raise error from None
    if _has_same_values(program, reduced_program, overrides):
        return trials
    path, value = next(iter(overrides.items()))
    if value.span is None:
        raise error from None
    _raise_override_error(error.diagnostics[0], path, value.span, default_texts[path])


def _raise_override_error(diagnostic: Diagnostic, path: str, span: Span, default: str) -> NoReturn:
    """Raise the error `diagnostic` at the value that is assigned to a derived field."""
    primary, label = diagnostic.primary, f"by default, `{path}` is {default}"
    raise SpeccError(
        replace(
            diagnostic,
            title=f"`{path}` does not match the fields it is computed from: {diagnostic.title}",
            primary=Label(span, label),
            related_labels=(*((primary,) if primary else ()), *diagnostic.related_labels),
            helps=(f"remove `{path}`, or change the fields it is computed from",),
        )
    ) from None


def _has_same_values(program: Program, other: Program, paths: Iterable[str]) -> bool:
    """Return True if the configs of two programs have equal values at the config paths `paths`."""
    try:
        values, other_values = (
            evaluate_and_check_config(create_context(p), p, ConfigReadOptions())
            for p in (program, other)
        )
    except (SpeccError, UnresolvedValueError):
        return False
    return all(_get_value(values, path) == _get_value(other_values, path) for path in paths)


def _get_value(values: Mapping[str, SpecValue], path: str) -> SpecValue:
    """Return the config value at a dotted path."""
    name, _, rest = path.partition(".")
    value = values.get(name)
    return _get_value(value.fields, rest) if rest and isinstance(value, Record) else value


def _check_free_then_derived(program: Program, graph: str) -> list[SymbolicElaboration]:
    """Run trials with all integers as symbols. After shape errors, repeat with derived integers."""
    try:
        return _run_trials(program, graph, derive_integers=False)
    except SpeccError as failed:
        derived_fields = {
            path: text
            for path, text in _map_derived_fields(program).items()
            if path not in program.assignments
        }
        if not derived_fields or not _is_shape_error(failed):
            raise
    trials = _run_trials(program, graph, derive_integers=True)
    return [replace(trials[0], trial_values=derived_fields | trials[0].trial_values), *trials[1:]]


def _map_derived_fields(program: Program) -> dict[str, str]:
    """Return the source text of each derived field's expression, by config path."""
    return {
        path: entry.default.span.text
        for path, entry in program.map_fields_by_path().items()
        if is_computed_int_field(entry)
        and entry.default is not None
        and entry.default.span is not None
    }


def _is_shape_error(error: SpeccError) -> bool:
    """Return True if all errors are shape errors (E03xx)."""
    return all(d.code.startswith("E03") for d in error.diagnostics)


def _run_trials(
    program: Program, graph: str, *, derive_integers: bool
) -> list[SymbolicElaboration]:
    """Run all trials. Derived integers are symbols, unless `derive_integers` is set."""
    fixed_values: dict[str, SpecValue] = {}
    runner = _TrialRunner(program, graph, StepBudget(), derive_integers)
    try:
        model = runner.elaborate_with_trial_sizes(fixed_values)
    except SpeccError as failed:
        raise SpeccError(*runner.add_relevant_sizes(failed, fixed_values)) from None
    trials = [SymbolicElaboration({k: format_value(v) for k, v in fixed_values.items()}, model)]
    errors: list[Diagnostic] = []
    # skip the values that the first trial has already checked
    alternatives = [
        (p, v)
        for p, v in iterate_candidate_values(program, fixed_values)
        if fixed_values.get(p) != v
    ]
    fields = program.map_fields_by_path()
    for path, value in alternatives[:MAX_TRIALS]:
        trial_model = model
        # the model of the first trial is reused for the value of the first trial
        if path in fixed_values or value != get_default_choice(fields[path]):
            try:
                trial_model = runner.elaborate_alternative(fixed_values, path, value)
            except SpeccError as failed:
                errors += failed.diagnostics
                continue
        trials.append(SymbolicElaboration({path: format_value(value)}, trial_model))
    if errors := [d for d in errors if not _is_requirement_error(d)]:
        raise SpeccError(*errors[:20])
    return trials


def _add_trial_sizes(error: SpeccError, sizes: Mapping[str, SpecValue]) -> list[Diagnostic]:
    """Add a note to each error that states the trial sizes, which are not in the spec."""
    if not sizes:
        return list(error.diagnostics)
    values = ", ".join(f"{path} = {format_value(value)}" for path, value in sizes.items())
    return [replace(d, notes=(*d.notes, f"with {values}")) for d in error.diagnostics]


def _get_messages(error: SpeccError) -> set[tuple[str, Label | None]]:
    return {(d.title, d.primary) for d in error.diagnostics}


def _is_requirement_error(diagnostic: Diagnostic) -> bool:
    """Return True if an error reports a violated `require` statement of the spec."""
    return diagnostic.code == "E0404"


@immutable_dataclass
class _TrialRunner:
    """The arguments and the step budget of all trials of one check."""

    program: Program
    graph: str
    steps: StepBudget
    derive_integers: bool

    def _elaborate_trial(self, fixed_values: Mapping[str, SpecValue]) -> ModelDefinition:
        reader = ConfigReadOptions(
            is_symbolic=True,
            derive_integers=self.derive_integers,
            trial_values=fixed_values,
            steps=self.steps,
        )
        program = select_alternatives_to_check(self.program, fixed_values)
        return elaborate_model(program, reader, self.graph)

    def elaborate_alternative(
        self, fixed_values: Mapping[str, SpecValue], path: str, value: SpecValue
    ) -> ModelDefinition:
        """Elaborate with the value `value` of the field `path`. If a `require` statement rejects a
        choice value in combination with the sizes in `fixed_values`, use default sizes. Add a note
        on the trial value `value` to errors.
        """
        # another alternative of a used spec may have different fields
        other_values = {p: v for p, v in fixed_values.items() if not p.startswith(f"{path}.")}
        fields = self.program.map_fields_by_path()
        defaults = collect_numeric_defaults({p: fields[p] for p in other_values if p in fields})
        try:
            return self.elaborate_with_trial_sizes(other_values | {path: value})
        except SpeccError as failed:
            has_other_sizes = not other_values.items() >= defaults.items()
            is_rejected = all(map(_is_requirement_error, failed.diagnostics))
            if is_rejected and has_other_sizes and not isinstance(value, Dim):
                return self.elaborate_alternative(other_values | defaults, path, value)
            raise SpeccError(*_add_trial_sizes(failed, {path: value})) from None

    def add_relevant_sizes(
        self, failed: SpeccError, sizes: dict[str, SpecValue]
    ) -> list[Diagnostic]:
        """Add a note that states the trial sizes to errors that occur only with these sizes."""
        other_sizes = [
            (p, v) for p, v in iterate_candidate_values(self.program, sizes) if v != sizes.get(p, v)
        ]
        messages = [self._collect_messages(sizes, path, value) for path, value in other_sizes]
        always = _get_messages(failed).intersection(*messages)
        pairs = zip(failed.diagnostics, _add_trial_sizes(failed, sizes), strict=True)
        return [d if (d.title, d.primary) in always else noted for d, noted in pairs]

    def _collect_messages(
        self, sizes: Mapping[str, SpecValue], path: str, value: SpecValue
    ) -> set[tuple[str, Label | None]]:
        """Return the titles and labels of errors that occur if the field has the value `value`."""
        try:
            self.elaborate_alternative(sizes, path, value)
        except SpeccError as failed:
            return _get_messages(failed)
        return set()

    def elaborate_with_trial_sizes(self, fixed_values: dict[str, SpecValue]) -> ModelDefinition:
        """Elaborate with valid sizes of structural fields, and add the sizes to `fixed_values`."""
        fields = select_alternatives_to_check(self.program, fixed_values).map_fields_by_path()
        free_fields: dict[str, ast.ConfigField] = {}
        defaults: dict[str, SpecValue] = {}
        sizes: Iterator[dict[str, SpecValue]] = iter(())
        first_violation: SpeccError | None = None
        while True:
            try:
                return self._elaborate_trial(fixed_values)
            except UnresolvedValueError as error:
                free_fields |= _find_free_fields(error, fields, fixed_values)
                defaults = collect_numeric_defaults(free_fields)
                sizes = iterate_trial_sizes(free_fields)
                fixed_values.update(next(sizes))
            except SpeccError as failed:
                # other sizes can help only if a `require` statement is violated
                if not all(map(_is_requirement_error, failed.diagnostics)):
                    raise failed from None
                # if all sizes are rejected, raise the first error, because its numbers are simplest
                first_violation = first_violation or failed
                # keep the small trial sizes of fields that occur in no violated requirement
                required_sizes = {
                    p: defaults.pop(p)
                    for p in _find_fields_of_violated_requirements(failed, defaults)
                }
                next_sizes = required_sizes or next(sizes, {})
                if not next_sizes:
                    raise first_violation from None
                fixed_values.update(next_sizes)


def _find_fields_of_violated_requirements(failed: SpeccError, paths: Iterable[str]) -> list[str]:
    """Return the paths of the fields that occur in the violated requirements."""
    texts = [d.primary.span.text for d in failed.diagnostics if d.primary]
    names = {name for text in texts for name in FIELD_PATH.findall(text)}
    return [path for path in paths if names & {path, path.rpartition(".")[2]}]


def _find_free_fields(
    error: UnresolvedValueError,
    fields: Mapping[str, ast.ConfigField],
    fixed_values: Mapping[str, SpecValue],
) -> dict[str, ast.ConfigField]:
    """Return the fields on which the graph structure depends and that have no trial value yet.
    Raise E0207 if there are no such fields: the structure then depends on a dynamic dimension.
    """
    # the name of a symbol may contain several field names, as in `d / heads`
    paths = [p for s in error.symbols for p in FIELD_PATH.findall(s)]
    free_fields = {p: fields[p] for p in paths if p in fields and p not in fixed_values}
    if not free_fields:
        raise_dynamic_graph_structure_error(error)
    return free_fields


FIELD_PATH = re.compile(r"[A-Za-z_][\w.]*")


TRIAL_SIZES = (4, 8, 16, 3, 6, 12, 32, 64, 24, 48, 96, 128, 256)
"""The sizes to try if a `require` statement rejects the default sizes."""


def iterate_trial_sizes(fields: Mapping[str, ast.ConfigField]) -> Iterator[dict[str, SpecValue]]:
    """Yield sizes to try: small sizes, defaults, then other sizes for one field or all fields."""
    small_values: dict[str, SpecValue] = {n: get_placeholder_number(e) for n, e in fields.items()}
    yield dict(small_values)
    yield small_values | collect_numeric_defaults(fields)
    integers = [path for path, entry in fields.items() if entry.type.name == "int"]
    sizes: list[SpecValue] = [Dim.from_value(size) for size in (1, *TRIAL_SIZES)]
    for path in integers:
        yield from (small_values | {path: size} for size in sizes)
    if len(integers) > 1:  # `require a == b` can be satisfied only by equal sizes
        yield from (small_values | dict.fromkeys(integers, size) for size in sizes)


def collect_numeric_defaults(fields: Mapping[str, ast.ConfigField]) -> dict[str, SpecValue]:
    """Return the defaults of the fields whose default is a number."""
    return {path: d for path, e in fields.items() if (d := get_default_number(e)) is not None}


def iterate_candidate_values(
    program: Program, trial_values: dict[str, SpecValue]
) -> Iterator[tuple[str, SpecValue]]:
    """Yield (path, value) pairs: each value of a bool or choice, and 1 and 2 for fixed integers."""
    for path, entry in program.map_fields_by_path().items():
        # values set for one alternative of a used spec do not apply to its other alternatives
        if any(p == path or p.startswith(f"{path}.") for p in program.assignments):
            continue
        match entry.type.name:
            case "bool":
                yield path, True
                yield path, False
            case "choice":
                yield from ((path, StringChoice(w, entry.type.names)) for w in entry.type.names)
            case "int" if path in trial_values:
                yield path, Dim.from_value(1)
                yield path, Dim.from_value(2)
