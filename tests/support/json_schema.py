"""A validator for the part of JSON Schema draft-07 that our schemas use. It fails on an unknown
keyword.
"""

from collections.abc import Iterator, Mapping
from typing import Any

JSON_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
IGNORED_KEYWORDS = {"$schema", "title", "definitions", "description"}


def list_schema_violations(
    value: object, schema: Mapping[str, Any], root: Mapping[str, Any], at: str = "$"
) -> Iterator[str]:
    """Return where and how `value` violates `schema`."""
    for word, said in schema.items():
        match word:
            case "$ref":
                yield from list_schema_violations(
                    value, root["definitions"][said.removeprefix("#/definitions/")], root, at
                )
            case "type":
                kinds = [said] if isinstance(said, str) else said
                # True is an integer in Python, but not in JSON
                if not any(
                    isinstance(value, JSON_TYPES[k])
                    and (isinstance(value, bool) == (k == "boolean"))
                    for k in kinds
                ):
                    yield f"{at} is no {' or '.join(kinds)}: {value!r}"
            case "const" | "enum":
                if value not in ([said] if word == "const" else said):
                    yield f"{at} is not {said!r}: {value!r}"
            case "required":
                yield from (
                    f"{at} lacks {name}"
                    for name in said
                    if isinstance(value, dict) and name not in value
                )
            case "items":
                for n, one in enumerate(value if isinstance(value, list) else ()):
                    yield from list_schema_violations(one, said, root, f"{at}[{n}]")
            case "properties" | "additionalProperties":
                yield from _members(value, word, schema, root, at)
            case "oneOf":
                fitting = [
                    one for one in said if not list(list_schema_violations(value, one, root, at))
                ]
                if len(fitting) != 1:
                    yield f"{at} fits {len(fitting)} of {len(said)} forms"
            case _ if word not in IGNORED_KEYWORDS:
                raise AssertionError(f"the reader does not know `{word}`")


def _members(
    value: object, word: str, schema: Mapping[str, Any], root: Mapping[str, Any], at: str
) -> Iterator[str]:
    known = schema.get("properties", {})
    for name, one in (value if isinstance(value, dict) else {}).items():
        if word == "properties" and name in known:
            yield from list_schema_violations(one, known[name], root, f"{at}.{name}")
        elif word == "additionalProperties" and name not in known:
            if schema[word] is False:
                yield f"{at}.{name} is not foreseen"
            else:
                yield from list_schema_violations(one, schema[word], root, f"{at}.{name}")
