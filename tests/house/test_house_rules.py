"""The fences of the house: sizes, complexity, and what hides from the type checker.

Who breaks one stands in `tests/waivers.txt` with the reason. The list may only shrink: a
waiver that nothing needs any more fails too (`make waivers` takes such out).
"""

from pathlib import Path

import pytest
from support import measure
from support.lint_rules import faults, offenders, waived

FILES = measure.files()
MAX_ANY = 2.0
"""Uses of `Any` per 1 000 lines, at most. It may only be lowered."""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(measure.ROOT)))
def test_house_rules(path: Path) -> None:
    wrong = [o for o in offenders(path) if (o.rule, o.where) not in waived()]
    assert not wrong, "\n".join(f"{o.where}: {o.rule}: {o.what}" for o in wrong)


def test_no_waiver_is_left_over() -> None:
    now = {(o.rule, o.where) for path in FILES for o in offenders(path)}
    assert not [f"{rule} {where}" for rule, where in waived() if (rule, where) not in now]


def test_every_waiver_says_why() -> None:
    assert not [where for (_, where), reason in waived().items() if not reason.strip()]


def test_any_is_rare() -> None:
    total = measure.total()
    assert 1000 * total.anys / total.lines <= MAX_ANY


BAD = """
from dataclasses import dataclass
from importlib import import_module

def f(x):
    if hasattr(x, "a"):
        return getattr(x, "a", 1)
    import_module("json")
    y = g(1, 2, 3, 4, 5, 6, 7)  # type: ignore
    return x.__class__.__name__.endswith("Layer")

@dataclass
class Many:
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int

    def later(self):
        self.g = 1

def long(x):
"""


def test_the_rules_bite() -> None:
    long = "".join(f"    if x == {n}:\n        x += 1\n" for n in range(30))
    longer = "class C:\n" + "    x = 1\n" * 160 + "y = 1\n" * 300
    found = sorted(o.rule for o in faults(BAD + long + longer, "a.py"))
    assert found == sorted(
        [
            "docstring",
            "file",
            "function",
            "class",
            "complexity",
            "fields",
            "attribute",
            "call",
            "call",
            "call",
            "import",
            "arguments",
            "ignore",
        ]
    )
