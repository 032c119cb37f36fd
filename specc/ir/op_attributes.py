"""Build an op from its name and attributes, with a type check of each attribute."""

from dataclasses import MISSING, fields
from types import UnionType
from typing import Literal, get_args, get_origin

from specc.ir.dim import MAX_DIM_INTEGER, Dim
from specc.ir.graph import Graph
from specc.ir.op import OPS_BY_NAME, Op
from specc.ir.types import ShapeError

EXACT_TYPE_PAIRS = {(t, t) for t in (float, bool, str, Dim)}


def build_op(name: str, attributes: dict[str, object], body: Graph | None = None) -> Op:
    """The op `name` with these attributes. ShapeError where one is missing that has no
    usual value, unknown or ill typed.
    """
    kind = OPS_BY_NAME.get(name)
    if kind is None:
        raise ShapeError("there is no such op")
    wanted = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]  # every op is a dataclass
    given = attributes if body is None else {**attributes, "body": body}
    for attribute, field in wanted.items():
        if attribute not in given:
            # A text from before an attribute was added says nothing of it.
            if field.default is not MISSING:
                continue
            raise ShapeError(f"the attribute `{attribute}` is missing")
        if not _has_type(given[attribute], field.type):
            raise ShapeError(f"the attribute `{attribute}` cannot be {given[attribute]!r:.40}")
    for attribute in given:
        if attribute not in wanted:
            raise ShapeError(f"there is no attribute `{attribute}`")
    return kind(**given)


def _has_type(value: object, type: object) -> bool:
    """Whether a value is of the annotated type: `int`, `Dim`, `tuple[float, ...]`,
    `float | int` …
    """
    if type == "Graph":
        return isinstance(value, Graph)
    if isinstance(type, UnionType):
        return any(_has_type(value, t) for t in get_args(type))
    if get_origin(type) is Literal:
        return isinstance(value, str) and value in get_args(type)
    if get_origin(type) is tuple:
        item = get_args(type)[0]
        return isinstance(value, tuple) and all(_has_type(v, item) for v in value)
    if type is int:
        return _is_integer(value)
    # exactly of the type: True is no number, nor 1 a fraction, in the text of a graph
    return (value.__class__, type) in EXACT_TYPE_PAIRS


def _is_integer(value: object) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return abs(value) < MAX_DIM_INTEGER
