"""`immutable_dataclass` makes classes that compare, hash and print like frozen dataclasses."""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from specc.diagnostics.immutable_dataclass import immutable_dataclass


class Point:
    """A class with a default, and a field that comparison ignores."""

    x: int
    y: tuple[str, ...] = ()
    span: str = field(default="", compare=False, repr=False, kw_only=True)


class Empty:
    """A class without fields."""


class Named:
    """A class with methods of its own, which are kept."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.name.lower() == other.name.lower()  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.name.lower())


VALUES: dict[type, list[dict[str, Any]]] = {
    Point: [{"x": 1}, {"x": 1, "span": "a"}, {"x": 1, "y": ("b",)}, {"x": 2}, {"x": True}],
    Empty: [{}, {}],
    Named: [{"name": "a"}, {"name": "A"}, {"name": "b"}],
}


def copy_class(cls: type) -> type:
    """Return a new class with the same body, because dataclass changes classes in place."""
    body = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    return type(cls.__name__, (), body)


@pytest.mark.parametrize("cls", VALUES)
@pytest.mark.parametrize("slots", [False, True])
def test_comparison_hash_and_repr_equal_those_of_a_frozen_dataclass(cls: type, slots: bool) -> None:
    frozen = dataclass(frozen=True, slots=slots)(copy_class(cls))
    light = immutable_dataclass(slots=slots)(copy_class(cls))
    for a, b in product(VALUES[cls], repeat=2):
        assert (light(**a) == light(**b)) == (frozen(**a) == frozen(**b))
        assert (hash(light(**a)) == hash(light(**b))) == (hash(frozen(**a)) == hash(frozen(**b)))
        assert repr(light(**a)) == repr(frozen(**a))
        assert light(**a) != frozen(**a), "of another class"
        assert replace(light(**a), **b) == light(**{**a, **b})
    assert hasattr(light(**VALUES[cls][0]), "__dict__") != slots


def test_subclasses_compare_their_own_fields() -> None:
    @immutable_dataclass(slots=True, kw_only=True)
    class Base:
        a: int

    @immutable_dataclass
    class Derived(Base):
        b: int

    assert Derived(2, a=1) == Derived(2, a=1) != Derived(3, a=1)
    assert Derived(2, a=1) != Derived(2, a=2)
    assert Derived(2, a=1) != Base(a=1)
    assert len({Derived(2, a=1), Derived(2, a=1), Base(a=1)}) == 2
