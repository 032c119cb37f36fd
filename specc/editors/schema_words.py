"""Pieces of the JSON Schema: what many places have in common, and calls as maps."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from specc.elaborate.vocabulary import WORDS
from specc.lang import tree
from specc.library.files import Files
from specc.text.summary import summary

Schema: TypeAlias = Mapping[str, object]


def either(*schemas: Schema) -> Schema:
    """One of several."""
    return {"anyOf": list(schemas)}


def described(schema: Schema, text: str) -> Schema:
    """The same with what it is, which editors show."""
    return {**schema, "description": text}


def mapping(
    keys: Mapping[str, Schema], needed: Sequence[str] = (), other: Schema | None = None
) -> Schema:
    """A map with these keys, and others only if it is said what stands there."""
    return {
        "type": "object",
        "properties": dict(keys),
        "required": list(needed),
        "additionalProperties": False if other is None else other,
    }


def called(expression: Schema, scalar: Schema) -> dict[str, Schema]:
    """What can be called, with its options; a file may have a block of its own under
    the same name, so that other options are not refused.
    """
    calls: dict[str, Schema] = {}
    for name, options in callables().items():
        keys = {
            "in": expression,
            "weights": scalar,
            **dict.fromkeys(options, expression),
        }
        calls[name] = {"type": ["object", "null"], "properties": keys}
    docs = {name: summary(word.doc) for name, word in WORDS.items()}
    return {
        n: described(call, docs[n]) if docs.get(n) else call
        for n, call in calls.items()
    }


def callables() -> dict[str, tuple[str, ...]]:
    """Every word and block that ships, with the names of what it takes."""
    found = {
        name: tuple(slot.name for slot in word.slots if not slot.many)
        for name, word in WORDS.items()
    }
    library = Files()
    for name in library.standard_names():
        item = library.standard(name)
        assert item is not None  # it was listed
        if isinstance(item[0], tree.Block):
            found[name] = tuple(param.name for param in item[0].params)
    return dict(sorted(found.items()))
