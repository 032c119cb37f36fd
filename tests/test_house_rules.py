"""What no reviewer should have to say twice: sizes, and calls that hide what a value is."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(p for d in ("specc", "backends") for p in (ROOT / d).rglob("*.py"))
LONGEST: dict[type, int] = {ast.FunctionDef: 60, ast.ClassDef: 250, ast.Module: 500}
LISTS = {"specc/lang/tree.py"}
"""Files that are one list of small classes: length is no fault there."""
FORBIDDEN = {"hasattr", "eval", "exec", "globals", "setattr"}


def faults(tree: ast.Module, lines: int, whole: int = LONGEST[ast.Module]) -> list[str]:
    """Every broken house rule in one file."""
    found = [] if ast.get_docstring(tree) else ["1: no module docstring"]
    for node in ast.walk(tree):
        limit = whole if isinstance(node, ast.Module) else LONGEST.get(type(node), 0)
        first = 1 if isinstance(node, ast.Module) else getattr(node, "lineno", 0)
        last = lines if isinstance(node, ast.Module) else getattr(node, "end_lineno", 0)
        if limit and last - first + 1 > limit:
            found.append(f"{first}: {last - first + 1} lines, at most {limit}")
        match node:
            case ast.Call(func=ast.Name(id=name), args=args) if name in FORBIDDEN or (
                name == "getattr" and len(args) == 3
            ):
                found.append(f"{node.lineno}: {name}() hides what the type is")
            case ast.Attribute(attr="__name__", value=ast.Attribute(attr="__class__")):
                found.append(f"{node.lineno}: dispatch on the class, not on its name")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_house_rules(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    assert not faults(ast.parse(text), text.count("\n"), 10**6 if name in LISTS else LONGEST[ast.Module])


def test_the_rules_bite() -> None:
    bad = (
        "def f(x):\n"
        '    if hasattr(x, "a"):\n'
        '        return getattr(x, "a", 1)\n'
        '    return x.__class__.__name__.endswith("Layer")\n'
    )
    assert len(faults(ast.parse(bad), 4)) == 4
