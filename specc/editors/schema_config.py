"""The config of a shipped spec as JSON Schema: what an instance of it may say."""

from collections.abc import Sequence

from specc.editors.schema_words import Schema, described, either
from specc.elaborate.modules import Program
from specc.lang import tree
from specc.lang.dsl.write_expression import one_line
from specc.lang.yaml.config import UNREAD

SCALAR: Schema = {"type": ["string", "number", "boolean"]}
COMPUTED: Schema = {"type": "string", "pattern": r"^\s*(?!(true|false)\s*$)[^\s\"'\[{]"}
"""An expression that may give a number: neither a truth nor a text in quotes."""
VALUES: dict[str, Schema] = {
    "int": either({"type": "integer"}, COMPUTED),
    "float": either({"type": "number"}, COMPUTED),
    "bool": either({"type": "boolean"}, {"type": "string", "pattern": "[A-Za-z]"}),
    "text": SCALAR,
    "longer": {"type": "string", "pattern": r"[ .(\[]"},
}
"""Values of plain types, and expressions that are no single word."""


def config_of(program: Program) -> Schema:
    """What `config:` of an instance may hold: values for the fields of the spec and of
    those that it uses, and new fields with their types.
    """
    schema = _of(program)
    texts = either(SCALAR, {"type": "array", "items": SCALAR})
    return {
        **schema,
        "type": ["object", "null"],
        "patternProperties": {"^expect ": texts},
        "properties": {**_mapping(schema["properties"]), UNREAD: texts},
        "additionalProperties": ref("new field"),
    }


def _mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return value


def _of(program: Program) -> Schema:
    """The values of a spec that is used, or extended."""
    fields = list(program.fields())
    # the name of another choice may stand for a word of one
    words = [f.name for f in fields if f.type.name == "choice"]
    properties: dict[str, Schema] = {}
    for part in program.parts:
        properties[part.name] = either(*(_of(one) for one in part.programs), SCALAR)
    for field in fields:
        properties[field.name] = _described(field, words)
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _described(field: tree.Field, words: Sequence[str]) -> Schema:
    return described(_value(field.type, words), _about(field))


def _about(field: tree.Field) -> str:
    """The default and the description of a config value."""
    default = f"{one_line(field.default)} unless said" if field.default else ""
    return "; ".join(filter(None, (field.doc, default))) or "no default"


def _value(kind: tree.TypeName, words: Sequence[str]) -> Schema:
    """The values that a type takes."""
    found = _kinds(kind, words)
    return either(*found, {"enum": ["none"]}) if kind.optional else either(*found)


def _kinds(kind: tree.TypeName, words: Sequence[str]) -> tuple[Schema, ...]:
    match kind.name:
        case "int" | "float" | "bool" | "text":
            return (ref(kind.name),)
        case "choice":
            return {"enum": [*kind.names, *words]}, ref("longer")
        case "list" | "pair":
            assert kind.of is not None  # the grammar wants it
            item = _value(kind.of, words)
            listed: Schema = {"type": "array", "items": item}
            # one number stands for a pair of it
            return listed, item if kind.name == "pair" else {"type": "string"}
        case "record":
            inner = {f.name: _described(f, words) for f in kind.fields}
            record: Schema = {"type": "object", "properties": inner}
            return {**record, "additionalProperties": False}, {"type": "string"}
        case _:
            return (ref("value"),)


def ref(name: str) -> Schema:
    """What a definition says."""
    return {"$ref": f"#/definitions/{name}"}
