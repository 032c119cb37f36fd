"""Format a new spec that extends a built-in spec, and draft a spec for a checkpoint. The draft
extends the most similar built-in spec and lists the differences between draft and checkpoint.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from specc.diagnostics.diagnostic import Source, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.driver.config_json_check import warn_about_unused_keys
from specc.driver.spec_loader import LoadedSpec, open_spec_argument
from specc.driver.weight_sources import WeightSources, load_parameters
from specc.driver.weights_section_and_load_transforms import mark_tied_weights
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.generate_stream_and_reading_sections import value_to_json
from specc.frontend.json_parser_with_spans import JsonObject
from specc.frontend.spec_modules import Program, build_program, collect_fields_by_path
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.used_specs import select_spec_alternatives
from specc.huggingface.model_family import (
    count_matching_keys_by_spec,
    find_graph_for_architecture,
    find_spec_for_model_type,
    read_architectures,
    read_model_type,
)
from specc.io.safe_read import escape_text
from specc.ir.model_definition import ModelDefinition
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs, load_config_json
from specc.syntax import ast
from specc.syntax.ast import walk_tree
from specc.syntax.dsl.dsl_parser import parse_expression
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.dsl.expression_printer import format_expression
from specc.weights.checkpoint_files import open_checkpoint

SCHEMA_FILE = "specc.schema.json"
"""Name of the JSON Schema file for YAML specs, which specc writes next to specs for editors."""
SAMPLE_VALUES = {"int": "16", "float": "1.0", "bool": "false", "list": "[16]"}
"""Placeholder values, keyed by type, for config fields without a default."""


@dataclass(kw_only=True)
class DerivedSpec:
    """A spec that extends a base spec: its name, the config values by path that override the
    defaults, and the comment lines before and after the spec. If `omits_defaults` is True, the spec
    contains only `config_values`. `comment_separator` follows the names of config fields in
    comments.
    """

    name: str
    extends: str
    config_values: Mapping[str, str] = field(default_factory=dict)
    header_comments: tuple[str, ...] = ()
    footer_comments: tuple[str, ...] = ()
    omits_defaults: bool = False
    comment_separator: str = ": "


def build_derived_spec_ast(derived_spec: DerivedSpec) -> ast.File:
    """Build the syntax tree of a derived spec. Raise E0222 if the base spec is not built-in."""
    library = SpecLibrary()
    names, hint = find_builtin_specs(), "`specc list specs` prints the built-in specs"
    if derived_spec.extends not in names:
        helps = suggest_similar_name(derived_spec.extends, names, hint)
        raise_error("E0222", f"unknown built-in spec `{derived_spec.extends}`", helps=helps)
    program = build_program(library.load_spec(derived_spec.extends), library)
    config = _build_config(program, derived_spec)
    return ast.File(
        version=1,
        model=derived_spec.name,
        doc=program.doc,
        extends=derived_spec.extends,
        items=(config,) if config.entries else (),
        comments=ast.Comments(leading=derived_spec.header_comments),
        end_comments=derived_spec.footer_comments,
    )


def _build_config(program: Program, derived_spec: DerivedSpec) -> ast.ConfigSection:
    """Build a `config` section with a value or a comment for each config field, followed by the
    values of used specs. Each comment precedes the value that it describes.
    """
    config_values = derived_spec.config_values
    assignments: list[ast.ConfigEntry] = []
    pending_comments: list[str] = []
    fields = {entry.name: entry for entry in program.iterate_fields()}
    for name, entry in fields.items():
        written_values: dict[str, str] = {}
        for path, config_field in collect_fields_by_path((entry,)).items():
            text, is_written = _format_value(program, config_values, path, config_field)
            is_omitted = derived_spec.omits_defaults and path not in config_values
            if not text or is_omitted or config_field.type.fields:
                continue
            if is_written:
                written_values[path] = text
            else:
                doc = f"  ({config_field.doc})" if config_field.doc else ""
                pending_comments.append(f"{path}{derived_spec.comment_separator}{text}{doc}")
        if written_values:
            comments = ast.Comments(tuple(pending_comments), entry.doc)
            value = _build_value(written_values, name)
            assignments.append(ast.ConfigOverride(name, value, comments=comments))
            pending_comments = []
    names = dict.fromkeys(path.split(".")[0] for path in config_values)
    for name in (name for name in names if name not in fields):
        comments = ast.Comments(tuple(pending_comments))
        assignments.append(
            ast.ConfigOverride(name, _build_value(config_values, name), comments=comments)
        )
        pending_comments = []
    return ast.ConfigSection(tuple(assignments), end_comments=tuple(pending_comments))


def _build_value(values: Mapping[str, str], path: str) -> ast.Expr:
    """Build the expression of the config value at a path: a literal, a record, or a call."""
    subpaths = [p.removeprefix(f"{path}.") for p in values if p.startswith(f"{path}.")]
    names = dict.fromkeys(p.split(".")[0] for p in subpaths)
    options = [ast.NamedArg(name, _build_value(values, f"{path}.{name}")) for name in names]
    if path not in values:
        return ast.RecordLiteral(tuple(options))
    # write a used spec as a call: its name, with its config values as arguments
    if options:
        return ast.Call(ast.Name(values[path]), options=tuple(options))
    return parse_expression(Source("<value>", values[path]))


def _format_value(
    program: Program, config_values: Mapping[str, str], path: str, entry: ast.ConfigField
) -> tuple[str, bool]:
    """Return the source text of a field's value ("" for a record), and True if the config section
    sets the value. A default that is computed from other fields is written as a comment.
    """
    if path in config_values:
        return config_values[path], True
    if path in program.assignments:
        return format_expression(program.assignments[path].value), True
    if entry.default is None:
        return "" if entry.type.optional else SAMPLE_VALUES.get(entry.type.name, ""), True
    names = {path.split(".")[0] for path in program.map_fields_by_path()}
    depends_on_fields = any(
        isinstance(node, ast.Name) and node.path.split(".")[0] in names
        for node in walk_tree(entry.default)
    )
    return format_expression(entry.default), not depends_on_fields


MAX_CANDIDATES = 4
"""Maximum number of candidate specs whose tensor names are compared."""
MAX_LISTED_LINES = 12
"""Maximum number of listed differences per kind."""


@dataclass(frozen=True, kw_only=True)
class SpecDraft:
    """A draft of a spec that extends a built-in spec with values from config.json.

    `graph` is the graph for the class in the checkpoint's config.json. `unmapped` lists the
    differences between the checkpoint and the draft, one per line. `is_known_model_type` is true if
    the built-in spec declares the checkpoint's model_type.
    """

    file: ast.File
    graph_name: str
    value_count: int
    is_known_model_type: bool
    unmapped: tuple[str, ...]


def draft_spec(directory: str, name: str, header_comments: tuple[str, ...] = ()) -> SpecDraft:
    """Draft a spec called `name` for a checkpoint directory.

    Raise E0948 if no built-in spec is similar to the checkpoint, and E0802 or E0410 to E0415 if
    config.json cannot be read.
    """
    data = load_config_json(directory)
    names = _collect_tensor_names(directory)
    model_type = read_model_type(data)
    base = find_spec_for_model_type(data, model_type)
    if base:
        spec, model, _ = _elaborate_with_config(base, data)
    else:
        spec, model = _find_nearest_spec(directory, data, names)
    spec = replace(spec, checkpoint=directory)
    chosen_specs = dict(_iterate_chosen_specs(spec.program))
    reproduced, unreproduced = _find_differing_values(spec, model, chosen_specs)
    unmapped = [f"config value `{path}`: {text}" for path, text in unreproduced.items()]
    unmapped += [
        f"config.json: {'; '.join([warning.title, *warning.notes])}"
        for warning in warn_about_unused_keys(spec.program, data)
    ]
    unmapped += _iterate_binding_errors(spec, model, names)
    derived_spec = DerivedSpec(
        name=name,
        extends=spec.spec_name,
        config_values={**chosen_specs, **reproduced},
        header_comments=header_comments,
        omits_defaults=True,
    )
    return SpecDraft(
        file=build_derived_spec_ast(derived_spec),
        graph_name=model.graph.name,
        value_count=len(reproduced),
        is_known_model_type=bool(base),
        unmapped=tuple(unmapped),
    )


def _collect_tensor_names(directory: str) -> frozenset[str]:
    """Return the tensor names of a checkpoint, or an empty set if the checkpoint has no weights."""
    try:
        with closing(open_checkpoint(directory)) as checkpoint:
            return frozenset(checkpoint.tensors)
    except SpeccError as failed:
        # missing weights are allowed, because a draft requires only config.json; unreadable weights
        # are an error
        if any(d.code not in ("E0802", "E0518") for d in failed.diagnostics):
            raise
        return frozenset()


def _elaborate_with_config(base: str, data: JsonObject) -> tuple[LoadedSpec, ModelDefinition, str]:
    """Elaborate a built-in spec with the values of a config.json, ignoring the model_type. Also
    return the name of the graph for the class in `architectures`, or "" if the spec has no such
    graph.
    """
    library = SpecLibrary()
    program = select_spec_alternatives(build_program(library.load_spec(base), library), data)
    reader = ConfigReadOptions(config_file=data)
    spec = LoadedSpec(program, library, reader, base)
    graph = ""
    with suppress(SpeccError):  # the specs of other model families do not declare the class
        graph = find_graph_for_architecture(program, data)
    # skip the symbolic check, which all built-in specs pass
    model = elaborate_model(program, reader, graph)
    return spec, mark_tied_weights(program, reader, model), graph


def _find_nearest_spec(
    directory: str, data: JsonObject, names: frozenset[str]
) -> tuple[LoadedSpec, ModelDefinition]:
    """Among the specs that read the most config keys, return the spec whose parameter names are
    most similar to the tensor names. If several specs are equally similar, return the spec for the
    class in `architectures`. Raise E0948 if no spec is similar.
    """
    known_key_counts = count_matching_keys_by_spec(data)
    # ignore specs with one or two common keys, because most config.json files have keys such as
    # `vocab_size`
    candidates = [name for name in known_key_counts if known_key_counts[name] > 2]
    specs, classes = find_builtin_specs(), read_architectures(data)
    texts = {name: specs[name].read_text(encoding="utf-8") for name in candidates}
    candidates.sort(key=lambda name: not any(class_name in texts[name] for class_name in classes))
    patterns = _extract_name_patterns(names)
    scored_specs: list[tuple[tuple[float, int, bool], LoadedSpec, ModelDefinition]] = []
    for base in candidates[:MAX_CANDIDATES]:
        with suppress(SpeccError):
            spec, model, graph = _elaborate_with_config(base, data)
            shared_count = len(patterns & _extract_name_patterns(frozenset(model.graph.parameters)))
            key = (shared_count / max(len(patterns), 1), known_key_counts[base], bool(graph))
            scored_specs.append((key, spec, model))
    if not scored_specs:
        raise_error(
            "E0948",
            f"no built-in spec is similar to the model in `{escape_text(directory)}`",
            notes=[
                f"its config.json has the `model_type` `{escape_text(read_model_type(data))[:60]}`"
            ],
            helps=[
                "start from a similar spec: specc new bert my.yaml",
                "docs/families.md describes how to write a spec for a new model type",
            ],
        )
    return max(scored_specs, key=lambda scored: scored[0])[1:]


def _extract_name_patterns(names: frozenset[str]) -> set[str]:
    """Return the last three components of tensor names, with layer indices replaced by `{i}`. The
    prefixes of tensor names are dropped, because they differ between model families.
    """
    return {".".join(re.sub(r"\d+", "{i}", name).split(".")[-3:]) for name in names}


def _iterate_chosen_specs(program: Program, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each `use` that allows several specs, and the name of the chosen spec."""
    for part in program.used_specs:
        path = f"{prefix}{part.name}"
        if len(part.programs) > 1:
            yield path, part.path
        yield from _iterate_chosen_specs(part.program, f"{path}.")


def _find_differing_values(
    spec: LoadedSpec, model: ModelDefinition, chosen_specs: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two mappings from paths to the config values, as literals, that differ from the base
    spec. The first mapping contains the values that a derived spec can set. The second mapping
    contains all other values.
    """
    types = {path: entry.type for path, entry in spec.program.map_fields_by_path().items()}
    base, values = spec.spec_name, dict(_flatten_config(model.config))
    literals = {path: _format_literal(value, types.get(path)) for path, value in values.items()}
    derived_values = _evaluate_derived_config(base, chosen_specs) or {}
    reproduced: dict[str, str] = {}
    # a value that the first pass sets may change the default of another field
    for _ in range(2):
        differing = _select_differing(values, derived_values)
        added = {path: text for path in differing if (text := literals[path]) is not None}
        reproduced = _select_accepted_literals(base, chosen_specs, {**reproduced, **added})
        new_values = _evaluate_derived_config(base, {**chosen_specs, **reproduced})
        # a derived spec accepts each literal individually, but not all literals in combination
        if new_values is None:
            return reproduced, {p: t for p, t in differing.items() if p not in reproduced}
        derived_values = new_values
    unreproduced = _select_differing(values, derived_values)
    return {p: text for p, text in reproduced.items() if p not in unreproduced}, unreproduced


def _select_differing(
    values: Mapping[str, object], other_values: Mapping[str, object]
) -> dict[str, str]:
    """Return the values, as JSON, that differ from `other_values` at the same path."""
    return {p: json.dumps(v) for p, v in values.items() if other_values.get(p, ...) != v}


def _select_accepted_literals(
    base: str, chosen_specs: Mapping[str, str], literals: dict[str, str]
) -> dict[str, str]:
    """Return all literals if a derived spec accepts them together, or else the literals that it
    accepts individually.
    """
    if _evaluate_derived_config(base, {**chosen_specs, **literals}) is not None:
        return literals
    return {
        path: text
        for path, text in literals.items()
        if _evaluate_derived_config(base, {**chosen_specs, path: text}) is not None
    }


def _flatten_config(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield config values by dotted path. All RoPE settings together count as one value."""
    for key, value in config.items():
        if isinstance(value, dict) and "theta" not in value:
            yield from _flatten_config(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _format_literal(value: object, kind: ast.TypeExpr | None) -> str | None:
    """Return a value as a literal of the spec language, or None if the value has no literal."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            element_type = (kind.element_type or kind) if kind else None
            return json.dumps(value) if element_type and element_type.name == "text" else value
        case list():
            items = [_format_literal(item, kind) for item in value]
            literals = [*filter(None, items)]
            return f"[{', '.join(literals)}]" if len(literals) == len(items) else None
        case {"theta": float(theta), **rest} if rest == {"kind": "default"}:
            return f"rope(theta={theta!r})"
    return None


def _evaluate_derived_config(base: str, values: Mapping[str, str]) -> dict[str, object] | None:
    """Return the checked config of a spec that extends `base` with `values`, without elaborating
    its graph. Return None if the config is invalid or lacks required values.
    """
    with suppress(SpeccError):
        draft = DerivedSpec(name="draft", extends=base, config_values=values, omits_defaults=True)
        spec = open_spec_argument(format_dsl(build_derived_spec_ast(draft)) if values else base)
        context = create_context(spec.program, options=spec.config_options)
        config = evaluate_and_check_config(context, spec.program, spec.config_options)
        return dict(_flatten_config({n: value_to_json(value) for n, value in config.items()}))
    return None


def _iterate_binding_errors(
    spec: LoadedSpec, model: ModelDefinition, names: frozenset[str]
) -> Iterator[str]:
    """Yield short descriptions of the errors that occur when the checkpoint's tensors are bound."""
    if not names:
        yield "weights: the directory has no readable weights"
        return
    try:
        load_parameters(spec, model.graph, WeightSources()).close()
    except SpeccError as failed:
        lines = ["; ".join([d.title, *d.notes]) for d in failed.diagnostics]
        yield from (f"tensors: {line}" for line in lines[:MAX_LISTED_LINES])
        if len(lines) > MAX_LISTED_LINES:
            yield f"tensors: {len(lines) - MAX_LISTED_LINES} more messages"
