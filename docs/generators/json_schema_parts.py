"""Parts of the JSON Schema of YAML specs: configs of built-in specs, calls, mappings."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from specc.diagnostics.render import extract_docstring_summary
from specc.frontend.builtins import BUILTINS
from specc.frontend.spec_modules import Program
from specc.library.spec_file_lookup import SpecLibrary
from specc.syntax import ast
from specc.syntax.dsl.expression_printer import format_expression
from specc.syntax.yaml.yaml_emitter import IGNORED_KEYS

Schema: TypeAlias = Mapping[str, object]


def make_any_of_schema(*schemas: Schema) -> Schema:
    """Return a schema that accepts the values of any of several schemas."""
    return {"anyOf": list(schemas)}


def describe_schema(schema: Schema, text: str) -> Schema:
    """Return a schema with the given description, which editors display."""
    return {**schema, "description": text}


def make_mapping_schema(
    keys: Mapping[str, Schema], needed: Sequence[str] = (), other: Schema | None = None
) -> Schema:
    """Return the schema of a mapping with the given keys; further keys must match `other`."""
    return {
        "type": "object",
        "properties": dict(keys),
        "required": list(needed),
        "additionalProperties": False if other is None else other,
    }


def make_call_schemas(expression: Schema, scalar: Schema) -> dict[str, Schema]:
    """Return the schema of each callable with its options. Any options are allowed for unknown
    blocks.
    """
    calls: dict[str, Schema] = {}
    for name, options in list_callables().items():
        keys = {"in": expression, "weights": scalar, **dict.fromkeys(options, expression)}
        calls[name] = {"type": ["object", "null"], "properties": keys}
    docs = {name: extract_docstring_summary(word.doc) for name, word in BUILTINS.items()}
    return {n: describe_schema(call, docs[n]) if docs.get(n) else call for n, call in calls.items()}


def list_callables() -> dict[str, tuple[str, ...]]:
    """Return every built-in function and std block with the names of its parameters."""
    found = {
        name: tuple(slot.name for slot in word.parameters if not slot.is_variadic)
        for name, word in BUILTINS.items()
    }
    library = SpecLibrary()
    for name in library.list_std_names():
        item = library.find_std_item(name)
        assert item is not None  # `list_std_names` returned this name, so the definition exists
        if isinstance(item[0], ast.Block):
            found[name] = tuple(param.name for param in item[0].params)
    return dict(sorted(found.items()))


SCALAR_SCHEMA: Schema = {"type": ["string", "number", "boolean"]}
EXPRESSION_STRING_SCHEMA: Schema = {
    "type": "string",
    "pattern": r"^\s*(?!(true|false)\s*$)[^\s\"'\[{]",
}
"""Schema of an expression that may evaluate to a number: no boolean and no quoted string."""
VALUE_SCHEMAS: dict[str, Schema] = {
    "int": make_any_of_schema({"type": "integer"}, EXPRESSION_STRING_SCHEMA),
    "float": make_any_of_schema({"type": "number"}, EXPRESSION_STRING_SCHEMA),
    "bool": make_any_of_schema({"type": "boolean"}, {"type": "string", "pattern": "[A-Za-z]"}),
    "text": SCALAR_SCHEMA,
    "longer": {"type": "string", "pattern": r"[ .(\[]"},
}
"""Schemas of literals, and of expressions with more than one token (`longer`)."""


def make_config_schema(program: Program) -> Schema:
    """Return the schema of `config:` in a derived spec: inherited values and new fields."""
    schema = _of(program)
    texts = make_any_of_schema(SCALAR_SCHEMA, {"type": "array", "items": SCALAR_SCHEMA})
    return {
        **schema,
        "type": ["object", "null"],
        "patternProperties": {"^expect ": texts},
        "properties": {**_mapping(schema["properties"]), IGNORED_KEYS: texts},
        "additionalProperties": make_schema_ref("new field"),
    }


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _of(program: Program) -> Schema:
    """Return the schema of the config of a base spec or a used spec."""
    fields = list(program.iterate_fields())
    # the value of a choice may be the name of another choice field
    words = [f.name for f in fields if f.type.name == "choice"]
    properties: dict[str, Schema] = {}
    for part in program.used_specs:
        properties[part.name] = make_any_of_schema(
            *(_of(one) for one in part.programs), SCALAR_SCHEMA
        )
    for field in fields:
        properties[field.name] = _described(field, words)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _described(field: ast.ConfigField, words: Sequence[str]) -> Schema:
    return describe_schema(_value(field.type, words), _about(field))


def _about(field: ast.ConfigField) -> str:
    """Return the description of a config value: its documentation and its default."""
    default = f"default: {format_expression(field.default)}" if field.default else ""
    return "; ".join(filter(None, (field.doc, default))) or "no default"


def _value(kind: ast.TypeExpr, words: Sequence[str]) -> Schema:
    """Return the schema of the values of a config type."""
    found = _kinds(kind, words)
    return make_any_of_schema(*found, *([{"enum": ["none"]}] if kind.optional else []))


def _kinds(kind: ast.TypeExpr, words: Sequence[str]) -> tuple[Schema, ...]:
    match kind.name:
        case "int" | "float" | "bool" | "text":
            return (make_schema_ref(kind.name),)
        case "choice":
            return {"enum": [*kind.names, *words]}, make_schema_ref("longer")
        case "list" | "pair":
            assert kind.element_type is not None  # the grammar requires an element type
            item = _value(kind.element_type, words)
            listed: Schema = {"type": "array", "items": item}
            # a single number means a pair of equal numbers
            return listed, item if kind.name == "pair" else {"type": "string"}
        case "record":
            inner = {f.name: _described(f, words) for f in kind.fields}
            record: Schema = {"type": "object", "properties": inner}
            return {**record, "additionalProperties": False}, {"type": "string"}
        case _:
            return (make_schema_ref("value"),)


def make_schema_ref(name: str) -> Schema:
    """Return a reference to a definition of the schema."""
    return {"$ref": f"#/definitions/{name}"}
