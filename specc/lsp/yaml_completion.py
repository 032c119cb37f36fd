"""Completion in YAML specs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from specc.library.spec_file_lookup import get_specs_directory
from specc.lsp.document_analysis import DocumentAnalysis
from specc.lsp.dsl_completion import (
    CompletionItem,
    complete_call_options,
    complete_expected_tokens,
    list_builtin_spec_completions,
)
from specc.syntax.dsl.dsl_parser import EXPR, find_expected_tokens

KEY_LINE = re.compile(
    r"""(?P<blank>[ ]*(?:-[ ]+)*)(?P<key>[\w .]+|"[^"]*"|'[^']*')[ ]*:(?=[ ]|$)"""
)
LIST_DASHES = re.compile(r"[ ]*(?:-[ ]*)*")
Schema = Mapping[str, object]


@cache
def load_schema() -> Schema:
    """Load the JSON schema of YAML specs."""
    data = json.loads((get_specs_directory() / "schema.json").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def complete_yaml(analysis: DocumentAnalysis, text: str, offset: int) -> list[CompletionItem]:
    """Return the completions at an offset. The text may be newer than the last analysis."""
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:offset]
    preceding_lines = text[:start].splitlines()
    key_match = KEY_LINE.match(line)
    if key_match is None:
        dashes = LIST_DASHES.match(line)
        column = len(dashes.group()) if dashes else 0
        path = _find_parents(preceding_lines, column)
        return list(_complete_keys(text, path))
    column = len(key_match["blank"])
    path = (*_find_parents(preceding_lines, column), key_match["key"].strip("\"' "))
    value = line[key_match.end() :].lstrip()
    return [*_complete_words(text, path), *_complete_expression(analysis, path, value, offset)]


def _find_parents(preceding_lines: Sequence[str], column: int) -> tuple[str, ...]:
    """Return the keys that enclose a column below `preceding_lines`, the outermost key first."""
    keys: list[str] = []
    for line in reversed(preceding_lines):
        key_match = KEY_LINE.match(line)
        if key_match is None or line.lstrip().startswith("#"):
            continue
        dashes = key_match["blank"]
        if _is_parent_line(line, dashes, column, preceding_lines[-1]):
            keys.append(key_match["key"].strip("\"' "))
            column = len(dashes) - len(dashes.lstrip())
        if column == 0:
            break
    return tuple(reversed(keys))


def _is_parent_line(line: str, dashes: str, column: int, last_line: str) -> bool:
    """Return True if the key of a line encloses `column`. `dashes` is the text before the key."""
    key_column = len(dashes)
    # the dashes of a list may be in the same column as the key of the list
    has_list = line.rstrip().endswith(":") and last_line.lstrip().startswith("-")
    return key_column < column or (key_column == column and "-" not in dashes and has_list)


def _complete_keys(text: str, path: Sequence[str]) -> Iterator[CompletionItem]:
    """Yield the keys that are allowed in the map at a path of keys."""
    for schema in _find_schemas(text, path):
        for key, value in _get_properties(schema).items():
            yield CompletionItem(f"{key}: ", "property", doc=_get_doc(value))


def _complete_words(text: str, path: Sequence[str]) -> Iterator[CompletionItem]:
    """Yield the words that are allowed as the value of a key path."""
    if tuple(path) == ("extends",):
        yield from list_builtin_spec_completions()
    for schema in _find_schemas(text, path):
        words = schema.get("enum", ())
        for word in words if isinstance(words, list) else ():
            yield CompletionItem(
                str(word).lower() if isinstance(word, bool) else str(word), "constant"
            )


def _get_doc(value: object) -> str:
    """Return the description in a JSON schema, or "" if there is none."""
    text = value.get("description", "") if isinstance(value, dict) else ""
    return str(text)


def _get_properties(schema: Schema) -> Mapping[str, object]:
    """Return the schemas of a map's keys, or {} if the map's schema lists no keys."""
    properties = schema.get("properties", {})
    return properties if isinstance(properties, dict) else {}


def _find_schemas(text: str, path: Sequence[str]) -> list[Schema]:
    """Return the schemas of the value at a path of keys."""
    schemas = _expand_schemas([load_schema()], text)
    for key in path:
        child_schemas = [
            child_schema
            for schema in schemas
            for child_schema in [
                _get_properties(schema).get(key, schema.get("additionalProperties"))
            ]
            if isinstance(child_schema, dict)
        ]
        schemas = _expand_schemas(child_schemas, text)
    return schemas


def _expand_schemas(schemas: Sequence[Schema], text: str) -> list[Schema]:
    """Return the given schemas together with their alternatives, references and items."""
    expanded: dict[int, Schema] = {}
    worklist = list(reversed(schemas))
    while worklist:
        schema = worklist.pop()
        if id(schema) in expanded:
            continue
        expanded[id(schema)] = schema
        worklist += reversed(list(_iterate_value_schemas(schema, text)))
    return list(expanded.values())


def _iterate_value_schemas(schema: Schema, text: str) -> Iterator[Schema]:
    """Yield the alternatives, references and items of a schema, which are schemas themselves."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = load_schema()["definitions"]
        assert isinstance(target, dict)
        yield target[reference.rpartition("/")[2]]
    yield from _iterate_alternatives(schema)
    if isinstance(items := schema.get("items"), dict):
        yield items
    if isinstance(then := schema.get("then"), dict) and _is_condition_true(schema.get("if"), text):
        yield then


def _iterate_alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas that a schema combines with `anyOf` or `allOf`."""
    for key in ("anyOf", "allOf"):
        alternatives = schema.get(key, ())
        yield from alternatives if isinstance(alternatives, list) else ()


def _is_condition_true(condition: object, text: str) -> bool:
    """Return False if the schema has a condition on the key `extends` that a text violates."""
    text_of_condition = json.dumps(condition)
    if '"extends"' not in text_of_condition:
        return True
    extends = re.search(r"""^extends:[ ]*["']?([\w.-]+)""", text, re.MULTILINE)
    return extends is not None and f'"const": "{extends[1]}"' in text_of_condition


def _complete_expression(
    analysis: DocumentAnalysis, path: Sequence[str], value: str, offset: int
) -> Iterator[CompletionItem]:
    """Yield completions for an expression, if the value of a key path is an expression."""
    if path[0] in ("extends", "model", "doc", "specc") or path[-1] in ("doc", "because"):
        return
    if value.startswith(("{", "[")):
        function_names = re.findall(r"(\w+):[ ]*\{[^{}]*$", value)
        if function_names:
            for item in complete_call_options(analysis, function_names[-1]):
                yield CompletionItem(item.text.replace("=", ": "), "option", item.detail)
            return
    prefix = re.sub(r"[\w.]*$", "", value.lstrip("\"'{["))
    expected = find_expected_tokens(prefix, len(prefix), EXPR.symbol)
    if expected is not None:
        yield from complete_expected_tokens(analysis, expected, offset, is_incomplete=True)
