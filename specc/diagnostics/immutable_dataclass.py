"""A decorator for immutable dataclasses that import faster than frozen dataclasses."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform, overload

C = TypeVar("C")


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable_dataclass(cls: type[C], /) -> type[C]: ...
@overload
def immutable_dataclass(
    *, slots: bool = True, kw_only: bool = False
) -> Callable[[type[C]], type[C]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable_dataclass(cls: Any = None, /, *, slots: bool = True, kw_only: bool = False) -> Any:
    """Make a class an immutable dataclass. Type checkers such as mypy reject assignments to fields;
    there is no check at run time. `slots` and `kw_only` are the options of `dataclass`.

    A frozen dataclass compiles six methods when its module is imported, which took a third of
    `specc check`'s import time. `immutable_dataclass` generates and compiles only the constructor.
    """
    if cls is None:
        return partial(_decorate_class, slots=slots, kw_only=kw_only)
    return _decorate_class(cls, slots=slots, kw_only=kw_only)


def _decorate_class(cls: type, **options: bool) -> type:
    """Make a class an immutable dataclass that is compared, hashed and printed by its fields."""
    own_methods = vars(cls)
    decorated: Any = dataclass(eq=False, repr=False, **options)(cls)
    compared_names = [f.name for f in fields(decorated) if f.compare]
    decorated._get_compared_values = (
        attrgetter(*compared_names) if compared_names else staticmethod(_get_no_values)
    )
    if "__eq__" not in own_methods:
        decorated.__eq__ = _are_equal
    if "__hash__" not in own_methods or own_methods["__hash__"] is None:
        decorated.__hash__ = _compute_hash
    if "__repr__" not in own_methods:
        decorated.__repr__ = _format_fields
    result: type = decorated
    return result


def _get_no_values(instance: object) -> None:
    """Return None as the comparison key of all instances of a class without compared fields."""


def _are_equal(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    get_values = self._get_compared_values
    return get_values(self) == get_values(other)


def _compute_hash(self: Any) -> int:
    return hash(self._get_compared_values(self))


def _format_fields(self: Any) -> str:
    values = (f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"
