"""A JSON Schema (draft-07) of specs in YAML: what editors complete and underline before
specc has looked at a text.

It is made of what the reader takes (`specc.lang.yaml`), of the words of the language and
of the config of every shipped spec. It refuses nothing that specc takes; what a key or a
type alone can say is refused. `make tables` writes it to `specs/schema.json`; a test
compares.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from specc.compiler.rounding import CACHE, CACHES, HEADS, KIND_OF, NONE
from specc.compiler.rounding import WORDS as ROUNDING
from specc.editors.schema_config import VALUES, config_of, ref
from specc.editors.schema_words import Schema, called, described, either, mapping
from specc.elaborate.modules import program_of
from specc.elaborate.typing import STATIC, TENSORS
from specc.lang import tree
from specc.lang.yaml.config import UNREAD
from specc.lang.yaml.read import TOP
from specc.lang.yaml.rules import RULES
from specc.lang.yaml.statements import KEYS
from specc.library.files import Files, shipped
from specc.text.summary import summary

DRAFT = "http://json-schema.org/draft-07/schema#"
Definitions: TypeAlias = dict[str, Schema]

SCALAR: Schema = {"type": ["string", "number", "boolean"]}
NAME: Schema = {"type": "string", "pattern": r"^\s*[A-Za-z_][A-Za-z0-9_]*\s*$"}
NAMES = either(NAME, {"type": "array", "items": NAME})
TEXTS = either(SCALAR, {"type": "array", "items": SCALAR})
TYPES = (*STATIC, *TENSORS, "list", "pair", "choice")
TYPE: Schema = {"type": "string", "pattern": rf"^\s*({'|'.join(sorted(set(TYPES)))})\b"}


EXPRESSION = ref("expression")
STATEMENTS = either({"type": "array", "items": ref("statement")}, {"type": "null"})

NO_VALUE = "no config value of this spec; a new one has its type: `{type: int}`"


def schema() -> Schema:
    """The whole schema."""
    parents = {
        name: config_of(program_of(Files().open(name), Files())) for name in shipped()
    }
    shared = _shared(parents)
    return {
        "$schema": DRAFT,
        "title": "A spec of specc",
        "type": "object",
        "required": ["specc", "model"],
        "additionalProperties": False,
        "properties": {key: described(TOP_KEYS[key], TOP_DOCS[key]) for key in TOP},
        "allOf": [
            _config_rule(),
            *(_extends_rule(name, shared[name]) for name in parents),
        ],
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
    """An instance of a shipped spec has that one's config values."""
    return {
        "if": {"properties": {"extends": {"const": name}}, "required": ["extends"]},
        "then": {"properties": {"config": ref(definition)}},
    }


def _config_rule() -> Schema:
    """A file that extends and uses none declares its config values with their types."""
    others = [{"required": [key]} for key in ("extends", "use", "items")]
    listed = {
        "required": ["items"],
        "properties": {"items": {"items": {"not": {"required": ["use"]}}}},
    }
    plain = {"anyOf": [{"not": {"anyOf": others}}, _only(listed)]}
    return {"if": plain, "then": {"properties": {"config": ref("declarations")}}}


def _only(listed: Schema) -> Schema:
    """A file whose `items` use no other file, which `extends` and `use` none either."""
    return {
        "allOf": [
            listed,
            {"not": {"anyOf": [{"required": ["extends"]}, {"required": ["use"]}]}},
        ]
    }


def _definitions() -> Definitions:
    """What a spec is made of, apart from the config of shipped specs."""
    return {
        "expression": _expression(),
        "call": {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "properties": called(EXPRESSION, SCALAR),
            "additionalProperties": either({"type": "object"}, {"type": "null"}),
        },
        "field": _field(),
        # YAML's language server shows this, others pass over it
        "new field": {**_field(), "errorMessage": NO_VALUE},
        "declarations": _entries(ref("field")),
        **VALUES,
        "value": either(SCALAR, {"type": "array"}, {"type": "object"}),
        "item": _chosen(ITEMS),
        "statement": _statement(),
        "rule": _chosen(_rules()),
        "used": mapping(USED | {"file": TEXTS}, ("file", "as")),
        "generated": mapping({"of": NAME, "from": NAME}, ("of", "from"), EXPRESSION),
        "input": either(
            TYPE, mapping({"type": TYPE, "default": EXPRESSION}, ("type",))
        ),
    }


def _expression() -> Schema:
    text = "a value as text, a list of values, or a call as a map: `{linear: {in: x, out: d}}`"
    listed = {"type": "array", "items": EXPRESSION}
    return described(either(SCALAR, listed, ref("call")), text)


def _field() -> Schema:
    """The declaration of a config value."""
    record = mapping({"record": _entries(ref("field"))}, ("record",))
    keys = {
        "type": either(TYPE, record),
        "from": TEXTS,
        "default": ref("value"),
        "doc": SCALAR,
    }
    return mapping(keys, ("type",))


def _entries(value: Schema) -> Schema:
    """What stands below `config:`."""
    return {
        "type": ["object", "null"],
        "properties": {UNREAD: TEXTS},
        "patternProperties": {"^expect ": TEXTS, r"^[A-Za-z_][A-Za-z0-9_]*$": value},
        "additionalProperties": False,
    }


def _chosen(kinds: Mapping[str, Schema]) -> Schema:
    """A map that is of the kind whose word it has."""
    return {
        "type": "object",
        "anyOf": [{"required": [kind]} for kind in kinds],
        "allOf": [
            {"if": {"required": [kind]}, "then": then} for kind, then in kinds.items()
        ],
    }


def _rules() -> dict[str, Schema]:
    """The rules of `weights`."""
    made = {}
    for kind, (needed, allowed) in RULES.items():
        keys = {key: EXPRESSION if key in ("when", "as") else SCALAR for key in allowed}
        keys |= {key: EXPRESSION if key == "as" else SCALAR for key in (kind, *needed)}
        made[kind] = mapping(keys, (kind, *needed))
    return made


def _statement() -> Schema:
    """A statement that begins with a word, or names for a value."""
    kinds: dict[str, Schema] = {}
    for kind, keys in KEYS.items():
        said = {key: PARTS.get(key, EXPRESSION) for key in keys}
        needed = (kind, "do") if "do" in keys else (kind,)
        docs = STATEMENT_DOCS[kind]
        kinds[kind] = described(mapping(said, needed), docs)
    typed = mapping({"type": SCALAR, "is": EXPRESSION}, ("type", "is"))
    let = {
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": either(typed, EXPRESSION),
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


def documented(kinds: Iterable[tuple[str, type[tree.Node]]]) -> dict[str, str]:
    """The words of the language with what the classes of the tree say of them."""
    return {word: summary(kind.__doc__) for word, kind in kinds}


STATEMENT_DOCS = documented(
    [
        ("repeat", tree.Repeat),
        ("scan", tree.Scan),
        ("when", tree.When),
        ("return", tree.Return),
        ("require", tree.Require),
    ]
)
"""What the words that begin a statement mean."""
PARTS: dict[str, Schema] = {
    "do": STATEMENTS,
    "else": STATEMENTS,
    "collect": NAMES,
    "carry": NAMES,
    "under": SCALAR,
    "reverse": {"enum": [True, False, "true", "false"]},
    "because": SCALAR,
    "repeat": SCALAR,
    "scan": SCALAR,
}
"""What stands under the keys of statements, where it is no value."""
USED: dict[str, Schema] = {"as": NAME, "from": TEXTS, "under": SCALAR}
BLOCK: dict[str, Schema] = {
    "in": {"type": ["object", "null"], "additionalProperties": ref("input")},
    "out": either(TYPE, {"type": "object", "additionalProperties": TYPE}),
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
        "head": {"enum": [*HEADS]},
        "all": {"type": ["boolean", "string"]},
        CACHE: {"enum": [*CACHES]},
        "fold": {"type": ["boolean", "string"]},
    },
    "additionalProperties": False,
}
TOP_KEYS: dict[str, Schema] = {
    "specc": {"enum": [1, "1"]},
    "model": SCALAR,
    "doc": SCALAR,
    "extends": {"type": "string"},
    "use": either({"type": "array", "items": ref("used")}, {"type": "null"}),
    "config": _entries(ref("value")),
    "dims": TEXTS,
    "require": either(
        {
            "type": "array",
            "items": either(
                SCALAR, mapping({"that": EXPRESSION, "because": SCALAR}, ("that",))
            ),
        },
        {"type": "null"},
    ),
    "items": either({"type": "array", "items": ref("item")}, {"type": "null"}),
    "reading": {"type": ["object", "null"], "additionalProperties": EXPRESSION},
    "weights": either({"type": "array", "items": ref("rule")}, {"type": "null"}),
    "generate": {"type": ["object", "null"], "additionalProperties": ref("generated")},
    "quantize": QUANTIZE,
    "stream": {"type": ["object", "null"], "additionalProperties": NAME},
}
TOP_DOCS = {
    "specc": "the version of the language: 1",
    "model": "what the model is called",
    "doc": "what it is",
    "extends": "the spec whose config gets values here: a shipped one by name, or a file",
    **documented(
        [
            ("use", tree.Use),
            ("config", tree.Config),
            ("dims", tree.Dims),
            ("require", tree.Require),
            ("reading", tree.Reading),
            ("weights", tree.Weights),
            ("generate", tree.Generate),
            ("quantize", tree.Quantize),
            ("stream", tree.Stream),
        ]
    ),
    "items": "blocks, graphs, masks, scores, biases and normalizers, in order",
}
ITEMS: dict[str, Schema] = {
    "block": mapping(BLOCK | {"block": NAME}, ("block", "out", "do")),
    "graph": mapping(BLOCK | GRAPH | {"graph": NAME}, ("graph", "out", "do")),
    **{
        kind: mapping({kind: SCALAR, "is": EXPRESSION, "doc": SCALAR}, (kind, "is"))
        for kind in tree.DEFINITIONS
    },
    "use": mapping(USED | {"use": TEXTS}, ("use", "as")),
    "require": mapping({"require": EXPRESSION, "because": SCALAR}, ("require",)),
    **{
        key: mapping({key: TOP_KEYS[key]}, (key,))
        for key in (
            *("config", "dims", "reading", "weights", "generate", "quantize"),
            "stream",
        )
    },
}


def text() -> str:
    """The contents of specs/schema.json: a definition or a rule a line, so that changes
    can be read.
    """
    whole = dict(schema())
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
