"""JSON Schema (draft-07) of YAML specs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from specc.diagnostics.object_repr import extract_docstring_summary
from specc.driver.quantize_section import CACHES, HEADS, KIND_OF, NONE
from specc.driver.quantize_section import WORDS as ROUNDING
from specc.frontend.declared_types import STATIC_KINDS, TENSOR_DTYPES
from specc.frontend.spec_modules import build_program
from specc.library.spec_files import SpecLibrary, list_builtin_specs
from specc.lsp.hover import KEYWORDS
from specc.lsp.json_schema_parts import (
    VALUES,
    Schema,
    any_of_schemas,
    call_schema,
    config_schema,
    describe_schema,
    mapping_schema,
    schema_ref,
)
from specc.syntax import ast
from specc.syntax.yaml import yaml_forms, yaml_kinds
from specc.syntax.yaml.yaml_config import IGNORED_KEYS
from specc.syntax.yaml.yaml_parser import YAML_TOP_KEYS

DRAFT = "http://json-schema.org/draft-07/schema#"
Definitions: TypeAlias = dict[str, Schema]

SCALAR: Schema = {"type": ["string", "number", "boolean"]}
NAME: Schema = {"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_]*\s*$"}
NAMES = any_of_schemas(NAME, {"type": "array", "items": NAME})
TEXTS = any_of_schemas(SCALAR, {"type": "array", "items": SCALAR})
TYPES = (*STATIC_KINDS, *TENSOR_DTYPES, "list", "pair", "choice")
TYPE: Schema = {"type": "string", "pattern": rf"^\s*({'|'.join(sorted(set(TYPES)))})\b"}


EXPRESSION = schema_ref("expression")
STATEMENTS = any_of_schemas({"type": "array", "items": schema_ref("statement")}, {"type": "null"})

NO_VALUE = "no config value of this spec; a new one has its type: `{type: int}`"


def build_json_schema() -> Schema:
    """The whole schema."""
    parents = {
        name: config_schema(build_program(SpecLibrary().open(name), SpecLibrary()))
        for name in list_builtin_specs()
    }
    shared = _shared(parents)
    return {
        "$schema": DRAFT,
        "title": "A spec of specc",
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
    """The definition that holds the config of each spec; equal ones are one."""
    first: dict[str, str] = {}
    return {
        name: first.setdefault(json.dumps(parent, sort_keys=True), f"config of {name}")
        for name, parent in parents.items()
    }


def _extends_rule(name: str, definition: str) -> Schema:
    """An instance of a built-in spec has that one's config values."""
    return {
        "if": {"properties": {"extends": {"const": name}}, "required": ["extends"]},
        "then": {"properties": {"config": schema_ref(definition)}},
    }


def _config_rule() -> Schema:
    """A file that extends and uses none declares its config values with their types."""
    others = [{"required": [key]} for key in ("extends", "use", "items")]
    listed = {
        "required": ["items"],
        "properties": {"items": {"items": {"not": {"required": ["use"]}}}},
    }
    plain = {"anyOf": [{"not": {"anyOf": others}}, _only(listed)]}
    return {"if": plain, "then": {"properties": {"config": schema_ref("declarations")}}}


def _only(listed: Schema) -> Schema:
    """A file whose `items` use no other file, which `extends` and `use` none either."""
    return {
        "allOf": [listed, {"not": {"anyOf": [{"required": ["extends"]}, {"required": ["use"]}]}}]
    }


def _definitions() -> Definitions:
    """What a spec is made of, apart from the config of built-in specs."""
    return {
        "expression": _expression(),
        "call": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "properties": call_schema(EXPRESSION, SCALAR),
            "additionalProperties": any_of_schemas({"type": "object"}, {"type": "null"}),
        },
        "field": _field(),
        # YAML's language server shows this, others pass over it
        "new field": {**_field(), "errorMessage": NO_VALUE},
        "declarations": _entries(schema_ref("field")),
        **VALUES,
        "value": any_of_schemas(SCALAR, {"type": "array"}, {"type": "object"}),
        "item": _chosen(ITEMS),
        "statement": _statement(),
        "rule": _chosen(_rules()),
        "used": mapping_schema(USED | {"file": TEXTS}, ("file", "as")),
        "generated": mapping_schema({"of": NAME, "from": NAME}, ("of", "from"), EXPRESSION),
        "input": any_of_schemas(
            TYPE, mapping_schema({"type": TYPE, "default": EXPRESSION}, ("type",))
        ),
    }


def _expression() -> Schema:
    text = "a value as text, a list of values, or a call as a map: `{linear: {in: x, out: d}}`"
    listed = {"type": "array", "items": EXPRESSION}
    return describe_schema(any_of_schemas(SCALAR, listed, schema_ref("call")), text)


def _field() -> Schema:
    """The declaration of a config value."""
    record = mapping_schema({"record": _entries(schema_ref("field"))}, ("record",))
    keys = {
        "type": any_of_schemas(TYPE, record),
        "from": TEXTS,
        "default": schema_ref("value"),
        "doc": SCALAR,
    }
    return mapping_schema(keys, ("type",))


def _entries(value: Schema) -> Schema:
    """What stands below `config:`."""
    return {
        "type": ["object", "null"],
        "properties": {IGNORED_KEYS: TEXTS},
        "patternProperties": {"^expect ": TEXTS, r"^[A-Za-z_][A-Za-z0-9_]*$": value},
        "additionalProperties": False,
    }


def _chosen(kinds: Mapping[str, Schema]) -> Schema:
    """A map that is of the kind whose word it has."""
    return {
        "type": "object",
        "anyOf": [{"required": [kind]} for kind in kinds],
        "allOf": [{"if": {"required": [kind]}, "then": then} for kind, then in kinds.items()],
    }


def _rules() -> dict[str, Schema]:
    """The rules of `weights`."""
    return {
        kind: _form(form, (kind, *form.required))
        for kind, form in yaml_forms.WEIGHT_RULE_FORMS.items()
    }


def _form(form: yaml_forms.Form[ast.Node], needed: Sequence[str]) -> Schema:
    """The keys of a construct."""
    return mapping_schema({k.name: KINDS.get(k.kind, SCALAR) for k in form.keys}, needed)


def _statement() -> Schema:
    """A statement that begins with a word, or names for a value."""
    kinds = {
        kind: describe_schema(_form(form, (kind, *form.required)), STATEMENT_DOCS[kind])
        for kind, form in yaml_forms.STATEMENT_FORMS.items()
    }
    typed = mapping_schema({"type": SCALAR, "is": EXPRESSION}, ("type", "is"))
    let = {
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": any_of_schemas(typed, EXPRESSION),
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


def keyword_docs(words: Iterable[str]) -> dict[str, str]:
    """Return the summary of what each word of the language means."""
    return {word: extract_docstring_summary(KEYWORDS[word].__doc__) for word in words}


STATEMENT_DOCS = keyword_docs(yaml_forms.STATEMENT_FORMS)
"""What the words that begin a statement mean."""
KINDS: dict[yaml_kinds.ValueKind, Schema] = {
    yaml_kinds.EXPRESSION: EXPRESSION,
    yaml_kinds.EXPRESSIONS: EXPRESSION,
    yaml_forms.BODY: STATEMENTS,
    yaml_forms.ELSE: STATEMENTS,
    yaml_kinds.NAMES: NAMES,
    yaml_kinds.FLAG: {"enum": [True, False, "true", "false"]},
}
"""What stands under the keys of statements and weight rules; a scalar elsewhere."""
USED: dict[str, Schema] = {"as": NAME, "from": TEXTS, "under": SCALAR}
BLOCK: dict[str, Schema] = {
    "in": {"type": ["object", "null"], "additionalProperties": schema_ref("input")},
    "out": any_of_schemas(TYPE, {"type": "object", "additionalProperties": TYPE}),
    "do": STATEMENTS,
    "doc": SCALAR,
}
GRAPH: dict[str, Schema] = {
    "where": {"type": ["object", "null"], "additionalProperties": EXPRESSION},
    "for": TEXTS,
}
QUANTIZE: Schema = {
    "type": ["object", "null"],
    "properties": {
        **dict.fromkeys(ROUNDING, TEXTS),
        "default": {"enum": [*KIND_OF, NONE]},
        "lm_head_bits": {"enum": [4, 8, *HEADS]},
        "all": {"type": ["boolean", "string"]},
        "kv_cache": {"enum": [*CACHES]},
        "fold_norms": {"type": ["boolean", "string"]},
    },
    "additionalProperties": False,
}
TOP_KEYS: dict[str, Schema] = {
    "specc": {"enum": [1, "1"]},
    "model": SCALAR,
    "doc": SCALAR,
    "extends": {"type": "string"},
    "use": any_of_schemas({"type": "array", "items": schema_ref("used")}, {"type": "null"}),
    "config": _entries(schema_ref("value")),
    "dims": TEXTS,
    "require": any_of_schemas(
        {
            "type": "array",
            "items": any_of_schemas(
                SCALAR, mapping_schema({"that": EXPRESSION, "because": SCALAR}, ("that",))
            ),
        },
        {"type": "null"},
    ),
    "items": any_of_schemas({"type": "array", "items": schema_ref("item")}, {"type": "null"}),
    "reading": {"type": ["object", "null"], "additionalProperties": EXPRESSION},
    "weights": any_of_schemas({"type": "array", "items": schema_ref("rule")}, {"type": "null"}),
    "generate": {"type": ["object", "null"], "additionalProperties": schema_ref("generated")},
    "quantize": QUANTIZE,
    "stream": {"type": ["object", "null"], "additionalProperties": NAME},
}
TOP_DOCS = {
    "specc": "the version of the language: 1",
    "model": "what the model is called",
    "doc": "what it is",
    "extends": "the spec whose config gets values here: a built-in one by name, or a file",
    **keyword_docs(("use", "config", "dims", "require", "reading", "weights", "generate")),
    **keyword_docs(("quantize", "stream")),
    "items": "blocks, graphs, masks, scores, biases and normalizers, in order",
}
ITEMS: dict[str, Schema] = {
    "block": mapping_schema(BLOCK | {"block": NAME}, ("block", "out", "do")),
    "graph": mapping_schema(BLOCK | GRAPH | {"graph": NAME}, ("graph", "out", "do")),
    **{
        kind: mapping_schema({kind: SCALAR, "is": EXPRESSION, "doc": SCALAR}, (kind, "is"))
        for kind in ast.DEFINITION_KINDS
    },
    "use": mapping_schema(USED | {"use": TEXTS}, ("use", "as")),
    "require": mapping_schema({"require": EXPRESSION, "because": SCALAR}, ("require",)),
    **{
        key: mapping_schema({key: TOP_KEYS[key]}, (key,))
        for key in (*("config", "dims", "reading", "weights", "generate", "quantize"), "stream")
    },
}


def json_schema_text() -> str:
    """Return specs/schema.json, one definition or rule a line."""
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
