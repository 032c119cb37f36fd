"""Limits on size and complexity, and on constructs that bypass the type checker.
`tests/waivers.txt` lists the exceptions with reasons. The list may only shrink: a waiver that is
no longer needed fails too (`make waivers` removes it)."""

from support import measure
from support.lint_rules import find_offenders, list_file_offenders, read_waivers


def test_violations_equal_the_waivers() -> None:
    found = {
        (o.rule, o.where): o for path in measure.list_files() for o in list_file_offenders(path)
    }
    wrong = [found[key] for key in found.keys() - read_waivers().keys()]
    assert not wrong, "\n".join(f"{o.where}: {o.rule}: {o.what}" for o in wrong)
    assert not read_waivers().keys() - found.keys(), "`make waivers` takes out what is left over"


def test_every_waiver_has_a_reason() -> None:
    assert not [where for (_, where), reason in read_waivers().items() if not reason.strip()]


BAD = """
from dataclasses import dataclass
from importlib import import_module
from typing import runtime_checkable

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


def test_planted_violations_are_found() -> None:
    long = "".join(f"    if x == {n}:\n        x += 1\n" for n in range(30))
    longer = "class C:\n" + "    x = 1\n" * 160 + "y = 1\n" * 300
    found = sorted(o.rule for o in find_offenders(BAD + long + longer, "a.py"))
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
            "lookup",
            "arguments",
            "ignore",
        ]
    )
