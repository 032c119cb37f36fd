"""Generate the JSON Schema (draft-07) of YAML specs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from docs.generators.json_schema_parts import (
    VALUE_SCHEMAS,
    Schema,
    describe_schema,
    make_any_of_schema,
    make_call_schemas,
    make_config_schema,
    make_mapping_schema,
    make_schema_ref,
)
from specc.diagnostics.render import extract_docstring_summary
from specc.driver.quantize_section import KINDS_BY_NAME, KV_CACHE_TYPES, LM_HEAD_BITS, UNQUANTIZED
from specc.driver.quantize_section import QUANTIZE_SETTINGS as ROUNDING
from specc.frontend.declared_types import STATIC_KINDS, TENSOR_DTYPES
from specc.frontend.spec_modules import build_program
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs
from specc.lsp.hover import KEYWORD_NODES
from specc.syntax import ast
from specc.syntax.yaml import yaml_keys, yaml_values
from specc.syntax.yaml.yaml_emitter import IGNORED_KEYS
from specc.syntax.yaml.yaml_parser import YAML_TOP_KEYS

SCHEMA_DRAFT = "http://json-schema.org/draft-07/schema#"
Definitions: TypeAlias = dict[str, Schema]

SCALAR_SCHEMA: Schema = {"type": ["string", "number", "boolean"]}
NAME_SCHEMA: Schema = {"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_]*\s*$"}
NAMES_SCHEMA = make_any_of_schema(NAME_SCHEMA, {"type": "array", "items": NAME_SCHEMA})
TEXTS_SCHEMA = make_any_of_schema(SCALAR_SCHEMA, {"type": "array", "items": SCALAR_SCHEMA})
TYPE_NAMES = (*STATIC_KINDS, *TENSOR_DTYPES, "list", "pair", "choice")
TYPE_SCHEMA: Schema = {"type": "string", "pattern": rf"^\s*({'|'.join(sorted(set(TYPE_NAMES)))})\b"}


EXPRESSION_SCHEMA = make_schema_ref("expression")
STATEMENTS_SCHEMA = make_any_of_schema(
    {"type": "array", "items": make_schema_ref("statement")}, {"type": "null"}
)

NO_VALUE = "unknown config value; to declare a new config value, write its type: `{type: int}`"


def build_json_schema() -> Schema:
    """Return the JSON Schema of YAML specs."""
    parents = {
        name: make_config_schema(build_program(SpecLibrary().load_spec(name), SpecLibrary()))
        for name in find_builtin_specs()
    }
    shared = _shared(parents)
    return {
        "$schema": SCHEMA_DRAFT,
        "title": "A specc model spec",
        "type": "object",
        "required": ["specc", "model"],
        "additionalProperties": False,
        "properties": {key: describe_schema(TOP_KEYS[key], TOP_DOCS[key]) for key in YAML_TOP_KEYS},
        "allOf": [_config_rule(), *(_extends_rule(name, shared[name]) for name in parents)],
        "definitions": {
            **_definitions(),
            **{shared[name]: parent for name, parent in parents.items()},
        },
    }


def _shared(parents: Mapping[str, Schema]) -> dict[str, str]:
    """Return the name of the config definition of each spec. Specs with equal configs share one
    definition.
    """
    first: dict[str, str] = {}
    return {
        name: first.setdefault(json.dumps(parent, sort_keys=True), f"config of {name}")
        for name, parent in parents.items()
    }


def _extends_rule(name: str, definition: str) -> Schema:
    """Return the rule for specs with `extends: name`, which may set the config values of `name`."""
    return {
        "if": {"properties": {"extends": {"const": name}}, "required": ["extends"]},
        "then": {"properties": {"config": make_schema_ref(definition)}},
    }


def _config_rule() -> Schema:
    """Return the rule for specs without `extends` and `use`, which must declare config types."""
    others = [{"required": [key]} for key in ("extends", "use", "items")]
    listed = {
        "required": ["items"],
        "properties": {"items": {"items": {"not": {"required": ["use"]}}}},
    }
    plain = {"anyOf": [{"not": {"anyOf": others}}, _only(listed)]}
    return {"if": plain, "then": {"properties": {"config": make_schema_ref("declarations")}}}


def _only(listed: Schema) -> Schema:
    """Return the condition that a file contains no `extends` and no `use`, including its
    `items`.
    """
    return {
        "allOf": [listed, {"not": {"anyOf": [{"required": ["extends"]}, {"required": ["use"]}]}}]
    }


def _definitions() -> Definitions:
    """Return the definitions of all constructs of a spec, except the configs of built-in specs."""
    return {
        "expression": _expression(),
        "call": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "properties": make_call_schemas(EXPRESSION_SCHEMA, SCALAR_SCHEMA),
            "additionalProperties": make_any_of_schema({"type": "object"}, {"type": "null"}),
        },
        "field": _field(),
        # the YAML language server displays `errorMessage`; other validators ignore it
        "new field": {**_field(), "errorMessage": NO_VALUE},
        "declarations": _entries(make_schema_ref("field")),
        **VALUE_SCHEMAS,
        "value": make_any_of_schema(SCALAR_SCHEMA, {"type": "array"}, {"type": "object"}),
        "item": _chosen(ITEM_SCHEMAS),
        "statement": _statement(),
        "rule": _chosen(_rules()),
        "used": make_mapping_schema(USE_PROPERTIES | {"file": TEXTS_SCHEMA}, ("file", "as")),
        "generated": make_mapping_schema(
            {"of": NAME_SCHEMA, "from": NAME_SCHEMA}, ("of", "from"), EXPRESSION_SCHEMA
        ),
        "input": make_any_of_schema(
            TYPE_SCHEMA,
            make_mapping_schema({"type": TYPE_SCHEMA, "default": EXPRESSION_SCHEMA}, ("type",)),
        ),
    }


def _expression() -> Schema:
    text = "a string, a list of expressions, or a call as a mapping: `{linear: {in: x, out: d}}`"
    listed = {"type": "array", "items": EXPRESSION_SCHEMA}
    return describe_schema(make_any_of_schema(SCALAR_SCHEMA, listed, make_schema_ref("call")), text)


def _field() -> Schema:
    """Return the schema of the declaration of a config value."""
    record = make_mapping_schema({"record": _entries(make_schema_ref("field"))}, ("record",))
    keys = {
        "type": make_any_of_schema(TYPE_SCHEMA, record),
        "from": TEXTS_SCHEMA,
        "default": make_schema_ref("value"),
        "doc": SCALAR_SCHEMA,
    }
    return make_mapping_schema(keys, ("type",))


def _entries(value: Schema) -> Schema:
    """Return the schema of the entries of a `config:` mapping."""
    return {
        "type": ["object", "null"],
        "properties": {IGNORED_KEYS: TEXTS_SCHEMA},
        "patternProperties": {"^expect ": TEXTS_SCHEMA, r"^[A-Za-z_][A-Za-z0-9_]*$": value},
        "additionalProperties": False,
    }


def _chosen(kinds: Mapping[str, Schema]) -> Schema:
    """Return the schema of a mapping whose keyword determines the other keys."""
    return {
        "type": "object",
        "anyOf": [{"required": [kind]} for kind in kinds],
        "allOf": [{"if": {"required": [kind]}, "then": then} for kind, then in kinds.items()],
    }


def _rules() -> dict[str, Schema]:
    """Return the schema of each kind of rule in `weights`."""
    return {
        kind: _convert_mapping_schema(schema, (kind, *schema.required))
        for kind, schema in yaml_keys.WEIGHT_RULE_SCHEMAS.items()
    }


def _convert_mapping_schema(
    schema: yaml_keys.MappingSchema[ast.Node], needed: Sequence[str]
) -> Schema:
    """Return the JSON schema of the keys of a construct; the keys `needed` are required."""
    return make_mapping_schema(
        {k.name: CODEC_SCHEMAS.get(k.codec, SCALAR_SCHEMA) for k in schema.keys}, needed
    )


def _statement() -> Schema:
    """Return the schema of a statement: a keyword statement or an assignment."""
    kinds = {
        kind: describe_schema(
            _convert_mapping_schema(schema, (kind, *schema.required)), STATEMENT_DOCS[kind]
        )
        for kind, schema in yaml_keys.STATEMENT_SCHEMAS.items()
    }
    typed = make_mapping_schema({"type": SCALAR_SCHEMA, "is": EXPRESSION_SCHEMA}, ("type", "is"))
    let = {
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": make_any_of_schema(typed, EXPRESSION_SCHEMA),
    }
    worded = {"anyOf": [{"required": [kind]} for kind in kinds]}
    return {
        "type": "object",
        "allOf": [
            *({"if": {"required": [k]}, "then": then} for k, then in kinds.items()),
            {"if": {"not": worded}, "then": let},
        ],
        "properties": {k: {"description": STATEMENT_DOCS[k]} for k in kinds},
    }


def get_keyword_docs(words: Iterable[str]) -> dict[str, str]:
    """Return the documentation of keywords of the spec language, by keyword."""
    return {word: extract_docstring_summary(KEYWORD_NODES[word].__doc__) for word in words}


STATEMENT_DOCS = get_keyword_docs(yaml_keys.STATEMENT_SCHEMAS)
"""Documentation of the keywords that begin a statement."""
CODEC_SCHEMAS: dict[yaml_values.YamlValueCodec, Schema] = {
    yaml_values.EXPRESSION: EXPRESSION_SCHEMA,
    yaml_values.EXPRESSIONS: EXPRESSION_SCHEMA,
    yaml_keys.BODY_CODEC: STATEMENTS_SCHEMA,
    yaml_keys.ELSE_CODEC: STATEMENTS_SCHEMA,
    yaml_values.NAMES: NAMES_SCHEMA,
    yaml_values.WEIGHT_NAMES: TEXTS_SCHEMA,
    yaml_values.FLAG: {"enum": [True, False, "true", "false"]},
}
"""The schemas of the keys of statements and weight rules. The values of all other keys are
scalars.
"""
USE_PROPERTIES: dict[str, Schema] = {
    "as": NAME_SCHEMA,
    "from": TEXTS_SCHEMA,
    "under": SCALAR_SCHEMA,
}
INPUTS_SCHEMA: Schema = {
    "type": ["object", "null"],
    "additionalProperties": make_schema_ref("input"),
}
INPUT_ENTRY_SCHEMA = make_any_of_schema(
    NAME_SCHEMA, {"type": "object", "additionalProperties": make_schema_ref("input")}
)
BLOCK_PROPERTIES: dict[str, Schema] = {
    "in": make_any_of_schema(INPUTS_SCHEMA, {"type": "array", "items": INPUT_ENTRY_SCHEMA}),
    "out": make_any_of_schema(TYPE_SCHEMA, {"type": "object", "additionalProperties": TYPE_SCHEMA}),
    "do": STATEMENTS_SCHEMA,
    "doc": SCALAR_SCHEMA,
}
GRAPH_PROPERTIES: dict[str, Schema] = {
    "where": {"type": ["object", "null"], "additionalProperties": EXPRESSION_SCHEMA},
    "for": TEXTS_SCHEMA,
}
QUANTIZE_SCHEMA: Schema = {
    "type": ["object", "null"],
    "properties": {
        **dict.fromkeys(ROUNDING, TEXTS_SCHEMA),
        "default": {"enum": [*KINDS_BY_NAME, UNQUANTIZED]},
        "lm_head_bits": {"enum": [4, 8, *LM_HEAD_BITS]},
        "all": {"type": ["boolean", "string"]},
        "kv_cache": {"enum": [*KV_CACHE_TYPES]},
        "fold_norms": {"type": ["boolean", "string"]},
    },
    "additionalProperties": False,
}
TOP_KEYS: dict[str, Schema] = {
    "specc": {"enum": [1, "1"]},
    "model": SCALAR_SCHEMA,
    "doc": SCALAR_SCHEMA,
    "extends": {"type": "string"},
    "use": make_any_of_schema(
        {"type": "array", "items": make_schema_ref("used")}, {"type": "null"}
    ),
    "config": _entries(make_schema_ref("value")),
    "dims": TEXTS_SCHEMA,
    "inputs": INPUTS_SCHEMA,
    "require": make_any_of_schema(
        {
            "type": "array",
            "items": make_any_of_schema(
                SCALAR_SCHEMA,
                make_mapping_schema(
                    {"that": EXPRESSION_SCHEMA, "because": SCALAR_SCHEMA}, ("that",)
                ),
            ),
        },
        {"type": "null"},
    ),
    "items": make_any_of_schema(
        {"type": "array", "items": make_schema_ref("item")}, {"type": "null"}
    ),
    "reading": {"type": ["object", "null"], "additionalProperties": EXPRESSION_SCHEMA},
    "weights": make_any_of_schema(
        {"type": "array", "items": make_schema_ref("rule")}, {"type": "null"}
    ),
    "generate": {"type": ["object", "null"], "additionalProperties": make_schema_ref("generated")},
    "quantize": QUANTIZE_SCHEMA,
    "stream": {"type": ["object", "null"], "additionalProperties": NAME_SCHEMA},
}
TOP_DOCS = {
    "specc": "the version of the spec language: 1",
    "model": "the name of the model",
    "doc": "the description of the model",
    "extends": "the base spec, whose config values this spec sets: a built-in spec, or a file",
    **get_keyword_docs(("use", "config", "dims", "require", "reading", "weights", "generate")),
    **get_keyword_docs(("inputs", "quantize", "stream")),
    "items": "blocks, graphs, masks, scores, biases and normalizers, in order",
}
ITEM_SCHEMAS: dict[str, Schema] = {
    "block": make_mapping_schema(BLOCK_PROPERTIES | {"block": NAME_SCHEMA}, ("block", "out", "do")),
    "graph": make_mapping_schema(
        BLOCK_PROPERTIES | GRAPH_PROPERTIES | {"graph": NAME_SCHEMA}, ("graph", "out", "do")
    ),
    **{
        kind: make_mapping_schema(
            {kind: SCALAR_SCHEMA, "is": EXPRESSION_SCHEMA, "doc": SCALAR_SCHEMA}, (kind, "is")
        )
        for kind in ast.DEFINITION_KINDS
    },
    "use": make_mapping_schema(USE_PROPERTIES | {"use": TEXTS_SCHEMA}, ("use", "as")),
    "require": make_mapping_schema(
        {"require": EXPRESSION_SCHEMA, "because": SCALAR_SCHEMA}, ("require",)
    ),
    **{
        key: make_mapping_schema({key: TOP_KEYS[key]}, (key,))
        for key in (
            *("config", "dims", "inputs", "reading", "weights"),
            *("generate", "quantize", "stream"),
        )
    },
}


def render_json_schema() -> str:
    """Return the content of specs/schema.json, with one definition or rule per line."""
    whole = dict(build_json_schema())
    definitions, rules = whole.pop("definitions"), whole.pop("allOf")
    assert isinstance(definitions, dict)
    assert isinstance(rules, Sequence)
    lines = [f"{json.dumps(key)}: {_line(value)}" for key, value in whole.items()]
    lines.append('"allOf": [\n' + ",\n".join(map(_line, rules)) + "\n]")
    held = [f"{json.dumps(name)}: {_line(made)}" for name, made in definitions.items()]
    lines.append('"definitions": {\n' + ",\n".join(held) + "\n}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
