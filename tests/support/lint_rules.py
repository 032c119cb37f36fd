"""Lint rules over the syntax trees of the product code.

Each rule yields offenders as (rule, where, what): `where` is the path with the name of the function
or class, so that waivers remain valid when other parts of a file change.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support import measure

ROOT = measure.ROOT
WAIVERS = ROOT / "tests" / "waivers.txt"
MAX_FUNCTION, MAX_CLASS, MAX_FILE, MAX_COMPLEXITY = 50, 150, 400, 15
MAX_POSITIONAL_FIELDS = 5
"""Maximum number of dataclass fields without `kw_only`."""
MAX_POSITIONAL_ARGUMENTS = 6
"""Maximum number of positional arguments of a call."""
CLASS_LISTS = {"specc/syntax/ast.py"}
"""Files that consist of many small classes: their length is not limited."""
FORBIDDEN = {"hasattr", "eval", "exec", "globals", "setattr"}
STATIC_LOOKUPS = {"runtime_checkable", "getattr_static"}
"""Names whose attribute lookup ignores the `__getattr__` of a module, in `isinstance` since 3.12."""
DYNAMIC_IMPORTERS = {"specc/cli/main.py", "specc/backend.py"}
"""The two files that may import a module by its name as a string: commands, and backends."""
TYPE_IGNORE = re.compile(r"#\s*type:\s*ignore(?P<code>\[[\w, -]+\])?(?P<reason>.*)")


class Offender(NamedTuple):
    """One violation. A waiver names `rule` and `where`; `what` is the message."""

    rule: str
    where: str
    what: str


@cache
def list_file_offenders(path: Path) -> tuple[Offender, ...]:
    """Return all violations in one file."""
    name = str(path.relative_to(ROOT))
    tree = measure.parse_module(path)
    return tuple(find_offenders(path.read_text(encoding="utf-8"), name, tree))


def find_offenders(text: str, name: str, tree: ast.Module | None = None) -> Iterator[Offender]:
    """Yield all violations in the text of a file called `name`, of which `tree` is the syntax tree."""
    tree = tree or ast.parse(text)
    if not ast.get_docstring(tree):
        yield Offender("docstring", name, "no module docstring")
    if text.count("\n") > MAX_FILE and name not in CLASS_LISTS:
        yield Offender("file", name, f"{text.count(chr(10))} lines, at most {MAX_FILE}")
    for node, inside in _walk(tree):
        where = f"{name}::{inside}" if inside else name
        for rule in RULES.get(type(node), ()):
            yield from rule(node, where)
    yield from _ignores(text, name)


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node with the dotted name of the innermost definition that contains it."""
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, inside = waiting.pop()
        yield node, inside
        for child in measure.iterate_children(node):
            named = isinstance(child, (*measure.FUNCTIONS, ast.ClassDef))
            here = f"{inside}.{child.name}".lstrip(".") if named else inside
            waiting.append((child, here))


def _sizes(node: ast.AST, where: str) -> Iterator[Offender]:
    if isinstance(node, measure.FUNCTIONS):
        if (lines := measure.count_lines(node)) > MAX_FUNCTION:
            yield Offender("function", where, f"{lines} lines, at most {MAX_FUNCTION}")
        if (found := measure.count_complexity(node)) > MAX_COMPLEXITY:
            yield Offender("complexity", where, f"{found}, at most {MAX_COMPLEXITY}")
    if isinstance(node, ast.ClassDef) and (lines := measure.count_lines(node)) > MAX_CLASS:
        yield Offender("class", where, f"{lines} lines, at most {MAX_CLASS}")


def _dataclass(node: ast.AST, where: str) -> Iterator[Offender]:
    """Yield a dataclass with many fields that is not `kw_only`."""
    if not isinstance(node, ast.ClassDef):
        return
    said = [ast.unparse(d) for d in node.decorator_list]
    if not any(d.startswith(("dataclass", "immutable_dataclass")) for d in said):
        return
    fields = [f for f in node.body if isinstance(f, ast.AnnAssign)]
    fields = [f for f in fields if not ast.unparse(f.annotation).startswith("ClassVar")]
    if len(fields) > MAX_POSITIONAL_FIELDS and not any("kw_only=True" in d for d in said):
        yield Offender("fields", where, f"{len(fields)} fields, not kw_only")


def _late_attributes(node: ast.AST, where: str) -> Iterator[Offender]:
    """Yield attributes that a method assigns (`self.x = …`) but neither the class nor `__init__`
    declares.
    """
    if not isinstance(node, ast.ClassDef) or node.bases:
        return
    born = {
        n.target.id
        for n in node.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    later: dict[str, int] = {}
    for method in (m for m in node.body if isinstance(m, measure.FUNCTIONS)):
        for n in ast.walk(method):
            if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store):
                if not (isinstance(n.value, ast.Name) and n.value.id == "self"):
                    continue
                if method.name in ("__init__", "__post_init__", "__enter__"):
                    born.add(n.attr)
                else:
                    later.setdefault(n.attr, n.lineno)
    for attribute in sorted(later.keys() - born):
        yield Offender("attribute", f"{where}.{attribute}", "born outside __init__")


def _call(node: ast.AST, where: str) -> Iterator[Offender]:
    name = where.partition("::")[0]
    match node:
        case ast.Call(func=ast.Name(id=called), args=args) if called in FORBIDDEN or (
            called == "getattr" and len(args) == 3
        ):
            yield Offender("call", where, f"{called}() hides what the type is")
        case ast.Call(func=ast.Name(id="import_module")) if name not in DYNAMIC_IMPORTERS:
            yield Offender("import", where, "a module imported by its name as a text")
        case ast.Attribute(attr="__name__", value=ast.Attribute(attr="__class__")):
            yield Offender("call", where, "dispatch on the class, not on its name")
    if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL_ARGUMENTS:
        called = ast.unparse(node.func)
        what = f"{called}() gets {len(node.args)} arguments by place"
        yield Offender("arguments", where, what)


def _static_lookup(node: ast.AST, where: str) -> Iterator[Offender]:
    used = node.name if isinstance(node, ast.alias) else getattr(node, "attr", "")
    if used in STATIC_LOOKUPS:
        yield Offender("lookup", where, f"{used} ignores __getattr__ of modules")


RULES: dict[type[ast.AST], tuple[Callable[[ast.AST, str], Iterator[Offender]], ...]] = {
    ast.FunctionDef: (_sizes,),
    ast.AsyncFunctionDef: (_sizes,),
    ast.ClassDef: (_sizes, _dataclass, _late_attributes),
    ast.Call: (_call,),
    ast.Attribute: (_call, _static_lookup),
    ast.alias: (_static_lookup,),
}
"""Rules by node type."""


def _ignores(text: str, name: str) -> Iterator[Offender]:
    """Yield each `type: ignore` without a code or without a reason."""
    for line in text.splitlines():
        found = TYPE_IGNORE.search(line)
        if found and not (found["code"] and found["reason"].strip(" #")):
            yield Offender("ignore", f"{name}::{line.split('#')[0].strip()}", "why?")


@cache
def read_waivers() -> dict[tuple[str, str], str]:
    """Return the reason of each waiver by (rule, where)."""
    found = {}
    for line in WAIVERS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            head, _, reason = line.partition("  — ")
            rule, _, where = head.partition(" ")
            found[rule, where] = reason
    return found


def remove_unused_waivers() -> None:
    """Remove waivers that no violation needs. No code adds waivers."""
    now = {(o.rule, o.where) for path in measure.list_files() for o in list_file_offenders(path)}
    lines = WAIVERS.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = []
    for line in lines:
        rule, _, where = line.rstrip("\n").partition("  — ")[0].partition(" ")
        if not line.strip() or line.startswith("#") or (rule, where) in now:
            kept.append(line)
    WAIVERS.write_text("".join(kept), encoding="utf-8")


if __name__ == "__main__":
    remove_unused_waivers()
