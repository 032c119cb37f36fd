"""Evaluate config fields from the command line, derived specs, config.json or their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Diagnostic, Label, Origin, Span, SpeccError, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.frontend.declared_types import ErrorContext, convert_to_declared_type
from specc.frontend.elaboration_context import ElaborationContext, LexicalScope, SpecNamespace
from specc.frontend.elaboration_limits_and_errors import ErrorCollectorContext, StepBudget
from specc.frontend.hf_config import HF_ACTIVATION_ALIASES, KNOWN_ACTIVATIONS, read_hf_config_field
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.name_lookup import evaluate_with_expected_type, resolve_name
from specc.frontend.node_builder import NodeBuilder
from specc.frontend.parameter_kinds import NORMALIZER_NAMES
from specc.frontend.runtime_scalars import convert_to_float
from specc.frontend.spec_inheritance_and_config_overrides import ConfigAssignment
from specc.frontend.spec_modules import Program
from specc.frontend.spec_values import (
    ERROR_VALUE,
    MissingValue,
    Record,
    Rope,
    SpecValue,
    StringChoice,
    UnresolvedValueError,
    get_first_result,
)
from specc.ir.dim import Dim
from specc.syntax import ast

KIND_PLURALS = {
    "activation": "activations",
    "mask": "masks",
    "score": "scores",
    "normalizer": "normalizers",
}
"""The plural noun that messages use for each kind of definition."""


def raise_unknown_name_error(kind: str, name: ast.Name, env: LexicalScope) -> NoReturn:
    """Raise E0202 for an unknown name of the kind `kind` (such as "mask"), with a similar name."""
    names = list_definition_names(kind, env)
    # config.json files may use alternative names of activations
    alias = HF_ACTIVATION_ALIASES.get(name.path) if kind == "activation" else None
    similar = alias or find_similar_name(name.path, names)
    all_names = f"{KIND_PLURALS[kind]} are {', '.join(names)}"
    raise_error(
        "E0202",
        f"`{name.path}` is not defined",
        name.span,
        "unknown name",
        helps=[format_suggestion(similar) if similar else all_names],
    )


def list_definition_names(kind: str, env: LexicalScope) -> list[str]:
    """Return the names of all definitions and built-ins of the kind `kind`, the names of the spec
    first.
    """
    if kind == "activation":
        return sorted({HF_ACTIVATION_ALIASES.get(name, name) for name in KNOWN_ACTIVATIONS})
    candidates = [*env.module.list_names(), *env.context.library.list_std_names()]
    builtin_names = NORMALIZER_NAMES if kind == "normalizer" else ()
    names: list[str] = []
    for name in dict.fromkeys(candidates):
        match env.module.find_definition(name) or env.context.library.find_std_item(name):
            case ast.AttentionDef() as definition, _ if definition.kind == kind:
                names.append(name)
    return [*names, *builtin_names]


@dataclass(kw_only=True)
class ConfigReadOptions:
    """Options for reading the config of a spec.

    With `is_symbolic`, config fields that are integers become symbols. If `derive_integers` is set,
    an integer whose default is computed from other fields (as in `side = image / patch`) keeps this
    expression instead of becoming a new symbol. `trial_values` contains values for fields that
    determine the graph structure. `steps` counts the steps of all elaborations. `path` is the path
    of this config within the config of the outermost spec ("" for that spec). `max_length` is the
    maximum sequence length for which RoPE frequencies are computed, or 0 to use the length of the
    spec or file. With `is_training`, the graph contains the operations of training mode, such as
    dropout.
    """

    is_symbolic: bool = False
    derive_integers: bool = False
    trial_values: Mapping[str, SpecValue] = field(default_factory=dict)
    config_file: JsonObject | None = None
    steps: StepBudget = field(default_factory=StepBudget)
    max_length: int = 0
    path: str = ""
    is_training: bool = False

    def qualify_field_path(self, path: str) -> str:
        """Return the path of a field in the config of the outermost spec."""
        return f"{self.path}.{path}" if self.path else path


def evaluate_config(
    context: ElaborationContext,
    program: Program,
    options: ConfigReadOptions,
    used_configs: Mapping[str, SpecValue] | None = None,
) -> dict[str, SpecValue]:
    """Return the values of the config fields and the configs of used specs, `used_configs`. Raise
    one E0401 error for all missing values.
    """
    env = LexicalScope(
        context=context, module=program.module, config={}, config_file=options.config_file
    )
    values: dict[str, SpecValue] = dict(used_configs or {})
    env.config = values  # the default of a field can read the preceding fields
    errors = ErrorCollectorContext()
    user_spec = program.chain[0] if program.chain else program.module
    evaluation = _ConfigEvaluation(program.assignments, options, user_spec)
    for entry in program.iterate_fields():
        result: SpecValue = ERROR_VALUE
        with errors:
            value = _evaluate_field(evaluation, entry, entry.name, env)
            result = _limit_rope_length(options.max_length, value)
        values[entry.name] = result
    errors.raise_collected_errors()
    return values


def _limit_rope_length(max_length: int, value: SpecValue) -> SpecValue:
    """Limit the RoPE settings in a config value to `max_length` tokens."""
    match value:
        case Rope() if max_length:
            return value.with_max_length(max_length)
        case Record(fields=fields):
            limited_fields = {
                name: _limit_rope_length(max_length, field) for name, field in fields.items()
            }
            return replace(value, fields=limited_fields)
    return value


def _evaluate_field(
    evaluation: "_ConfigEvaluation", entry: ast.ConfigField, path: str, env: LexicalScope
) -> SpecValue:
    """Evaluate a field. The default of a record field can refer to preceding fields by name."""
    if entry.type.name != "record" or path in evaluation.assignments:
        return _evaluate_single(evaluation, entry, path, env)
    inner_env = replace(env, names=dict(env.names))
    fields: dict[str, SpecValue] = {}
    for member in entry.type.fields:
        value = _evaluate_field(evaluation, member, f"{path}.{member.name}", inner_env)
        fields[member.name] = inner_env.names[member.name] = value
    return Record(fields, path)


@dataclass(frozen=True, slots=True)
class _ConfigEvaluation:
    """Inputs for evaluating a config. `user_spec` resolves names in command-line values."""

    assignments: Mapping[str, ConfigAssignment]
    reader: ConfigReadOptions
    user_spec: SpecNamespace


def _evaluate_single(
    evaluation: _ConfigEvaluation, entry: ast.ConfigField, path: str, env: LexicalScope
) -> SpecValue:
    """Return the value of a field from the first source that provides a value. The sources, in
    order of precedence, are assignments, trial values, config.json, symbols and defaults.

    In symbolic elaboration, a field of type `int` is a symbol even if it has a default, so that
    errors that occur only with other values are found. Fields of other types keep their default,
    because they usually determine the graph structure.
    """
    reader = evaluation.reader
    if path in evaluation.assignments:
        return _evaluate_assigned(evaluation, entry, path, env)
    if (full_path := reader.qualify_field_path(path)) in reader.trial_values:
        trial_value = reader.trial_values[full_path]
        # use the same trial value for both items of a pair
        is_single = entry.type.name == "pair" and not isinstance(trial_value, tuple)
        return (trial_value, trial_value) if is_single else trial_value
    value = read_hf_config_field(entry, env)
    if not isinstance(value, MissingValue):
        return value
    return _evaluate_unset_field(evaluation, entry, path, env)


def _evaluate_unset_field(
    evaluation: _ConfigEvaluation, entry: ast.ConfigField, path: str, env: LexicalScope
) -> SpecValue:
    """Return the value of an unassigned field: a symbol, the field's default or a placeholder."""
    reader = evaluation.reader
    full_path = reader.qualify_field_path(path)
    origin = Origin(entry.span, f"the config value `{full_path}`")
    if (
        reader.is_symbolic
        and (symbol := _make_symbol(evaluation, entry, path, env, origin)) is not None
    ):
        return symbol
    if entry.default is not None:
        return _convert_to_field_type(entry.default, entry, path, env)
    if entry.type.optional:
        return None
    if reader.is_symbolic and entry.type.name == "float":
        nodes = NodeBuilder(env.context, entry.span)
        return convert_to_float(nodes, Dim.symbol(full_path, origin))
    if reader.is_symbolic and (placeholder := get_placeholder_value(entry.type)) is not None:
        return placeholder
    _raise_missing_value(entry, full_path, reader)


def _make_symbol(
    evaluation: _ConfigEvaluation,
    entry: ast.ConfigField,
    path: str,
    env: LexicalScope,
    origin: Origin,
) -> SpecValue:
    """Return the symbol of an integer field or the symbols of a pair, or None for other types."""
    full_path = evaluation.reader.qualify_field_path(path)
    if entry.type.optional:
        return None
    match entry.type:
        # represent a pair of integers, such as an image size, by one symbol per integer
        case ast.TypeExpr(name="pair", element_type=ast.TypeExpr(name="int")):
            return tuple(Dim.symbol(f"{full_path}[{n}]", origin) for n in range(2))
    if entry.type.name != "int":
        return None
    derived_value = (
        _evaluate_derived(evaluation, entry, path, env)
        if evaluation.reader.derive_integers
        else None
    )
    return derived_value or Dim.symbol(full_path, origin)


def is_computed_int_field(entry: ast.ConfigField) -> bool:
    """Return True if a field is an integer that is computed from other fields. A copy of another
    field, such as `= width`, is not considered computed.
    """
    if entry.type.name != "int" or isinstance(entry.default, ast.NumberLiteral | ast.Name):
        return False
    return entry.default is not None


def _evaluate_derived(
    evaluation: _ConfigEvaluation, entry: ast.ConfigField, path: str, env: LexicalScope
) -> Dim | None:
    """Return the symbolic value of a derived field, or None if it requires concrete values."""
    if not is_computed_int_field(entry) or entry.default is None:
        return None
    try:
        value = _convert_to_field_type(entry.default, entry, path, env)
    # errors in the default are reported in a trial with concrete numbers
    except (UnresolvedValueError, SpeccError):
        return None
    return value if isinstance(value, Dim) and value.number is None else None


def _evaluate_assigned(
    evaluation: _ConfigEvaluation, entry: ast.ConfigField, path: str, env: LexicalScope
) -> SpecValue:
    """Evaluate the value assigned to a field. Raise E0203 if a single value is assigned to a
    record.
    """
    assignment = evaluation.assignments[path]
    if entry.type.name == "record":
        names = ", ".join(f"{path}.{f.name}" for f in entry.type.fields)
        title = f"`{path}` is a record: set its fields one by one"
        raise_error("E0203", title, assignment.span, "one value", helps=[f"fields: {names}"])
    assignment_env = replace(env, module=assignment.module or evaluation.user_spec)
    return _convert_to_field_type(
        assignment.value, entry, path, assignment_env, span=assignment.span
    )


def _convert_to_field_type(
    expr: ast.Expr, entry: ast.ConfigField, path: str, env: LexicalScope, span: Span | None = None
) -> SpecValue:
    """Evaluate an expression as the value of a field. `span` is the span of the assignment."""
    error_context = ErrorContext(f"`{path}`", span or expr.span)
    if entry.type.name == "choice" and isinstance(expr, ast.Name):
        is_choice = expr.path in entry.type.names
        if is_choice or resolve_name(expr, env, missing_ok=True) is ERROR_VALUE:
            # an unknown name raises E0203 with the allowed values
            return convert_to_declared_type(entry.type, expr.path, env, error_context)
    try:
        value = get_first_result(evaluate_with_expected_type(entry.type, expr, env))
    except SpeccError as failed:
        if isinstance(expr, ast.Name):
            _explain_unknown_name(failed, entry, expr, env)
        raise
    converted = convert_to_declared_type(entry.type, value, env, error_context)
    if isinstance(converted, Dim):
        return converted.with_origin(
            Origin(error_context.span, f"the config value {error_context.description}")
        )
    return converted


def _explain_unknown_name(
    error: SpeccError, entry: ast.ConfigField, name: ast.Name, env: LexicalScope
) -> None:
    """Raise E0202 for an unknown name, and list the names or values that the field accepts."""
    kind = entry.type.name
    if error.diagnostics[0].code != "E0202":
        return
    if kind in KIND_PLURALS:
        raise_unknown_name_error(kind, name, env)
    if kind in EXAMPLE_VALUES:
        _raise_unknown_value(error.diagnostics[0], entry, name)


EXAMPLE_VALUES = {
    "int": "12",
    "float": "0.5",
    "bool": "true",
    "text": '"a string"',
    "list": "[2, 4]",
    "pair": "[2, 4]",
}
"""An example literal for each declared type, shown in messages."""


def _raise_unknown_value(error: Diagnostic, entry: ast.ConfigField, name: ast.Name) -> NoReturn:
    """Raise E0202 if a value is an unknown name, as in `layers: two`."""
    kind = entry.type.name
    example = f'"{name.path}"' if kind == "text" else _get_example(entry, name.path)
    expectation = f"`{entry.name}` expects {kind}, for example {example}"
    suggestions = [help for help in error.helps if help.startswith("did you mean")]
    raise SpeccError(replace(error, helps=(*suggestions, expectation)))


def _get_example(entry: ast.ConfigField, unknown_name: str) -> str:
    """Return an example value of a field: its default, or a literal of its type."""
    default = entry.default.span.text if entry.default and entry.default.span else ""
    return default if default not in ("", unknown_name) else EXAMPLE_VALUES[entry.type.name]


def get_placeholder_value(type: ast.TypeExpr) -> SpecValue:
    """Return a placeholder for a bool, text or choice field that has neither a value nor a default.
    Return None for other types. Placeholders are used in symbolic elaboration.
    """
    if type.name == "choice" and type.names:
        return StringChoice(type.names[0], type.names)
    values: dict[str, SpecValue] = {"bool": True, "text": ""}
    return values.get(type.name)


def get_default_choice(entry: ast.ConfigField) -> SpecValue:
    """Return the default or a placeholder, for symbolic elaboration, of an unset bool or choice
    field. Return None for other fields.
    """
    if entry.default is None:
        return None if entry.type.optional else get_placeholder_value(entry.type)
    if not isinstance(entry.default, ast.Name):
        return None
    word = entry.default.path
    if entry.type.name == "bool":
        return {"true": True, "false": False}.get(word)
    return StringChoice(word, entry.type.names) if word in entry.type.names else None


def get_default_number(entry: ast.ConfigField) -> Dim | float | None:
    """Return the default of a field if the default is a number literal, otherwise None."""
    if not isinstance(entry.default, ast.NumberLiteral):
        return None
    text = entry.default.text
    return Dim.from_value(int(text)) if text.isdigit() else float(text)


def get_placeholder_number(entry: ast.ConfigField) -> Dim | float:
    """Return the placeholder 0.5 for a float, and for an integer 2 or a default of 0, 1 or 2."""
    if entry.type.name == "float":
        return 0.5
    value = get_default_number(entry)
    return value if isinstance(value, Dim) and value.number in (0, 1, 2) else Dim.from_value(2)


def _raise_missing_value(entry: ast.ConfigField, path: str, reader: ConfigReadOptions) -> NoReturn:
    """Raise E0401 for a field without a value."""
    helps = [f"set it: `--set {path}=…`, or `{path}: …` in a spec that extends this one"]
    keys = [s.value for s in entry.sources if isinstance(s, ast.StringLiteral)]
    title, notes = f"`{path}` has no value", list[str]()
    # without a config file, suggest passing a file that contains the value
    if entry.sources and reader.config_file is None:
        helps.append("a config file can provide it: `--config DIR`")
    elif keys and reader.config_file is not None:
        file = reader.config_file.span.source.name
        keys_text = [f'"{k}"' for k in keys]
        title = f"`{path}` has no value: {' or '.join(keys_text)} is not in {file}"
        names = {key.rpartition(".")[2] for key in keys}
        paths = [path for path, _ in reader.config_file.iterate_members()]
        if nested_keys := [path for path in paths if path.rpartition(".")[2] in names]:
            notes.append(f"{file} has {', '.join(nested_keys[:4])}")
            sources = dict.fromkeys((*nested_keys[:2], *keys))
            helps.insert(0, "write  from " + " | ".join(f'"{k}"' for k in sources))
    primary = Label.from_span(entry.span, "declared here, without a default")
    raise SpeccError(Diagnostic("E0401", title, primary, notes=tuple(notes), helps=tuple(helps)))
