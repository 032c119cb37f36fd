"""The house in numbers: `make measure`. Sizes, density, complexity, and who imports
whom, of everything but tests.

What is counted, so that two readings can be compared:

* a function's lines are those from `def` to its last, a file's all of it; a fault is a
  function over 50, a class over 150 or a file over 400 lines;
* tokens are Python's own without comments, line ends and indentation, over lines that
  are not blank;
* complexity is one more than the decisions: `if`, `elif`, loops, `except`, `case`,
  conditional expressions, `assert`, each further operand of `and` and `or`, and each
  `for` and `if` of a comprehension; a function within another counts for itself;
* a room is a folder that holds modules; an arrow is one room that imports another; an
  arrow up leads to a room that, by `tests/house/test_layers.py`, stands above.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

ROOT = Path(__file__).parents[2]
PLACES = ("specc", "backends")
LONGEST = {ast.FunctionDef: 50, ast.AsyncFunctionDef: 50, ast.ClassDef: 150}
LONGEST_FILE = 400
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.IfExp,
    ast.match_case,
    ast.Assert,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SILENT = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Measured:
    """What was counted in one file or in all."""

    lines: int = 0
    code: int = 0
    tokens: int = 0
    comments: int = 0
    wide: int = 0
    anys: int = 0
    functions: list[int] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    complexities: list[tuple[int, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def complexity(function: ast.AST) -> int:
    """One more than the number of decisions in a function, those of functions within it
    left out.
    """
    count = 1
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            continue
        if isinstance(node, BRANCHES):
            count += 1
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        waiting += ast.iter_child_nodes(node)
    return count


def size(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """The lines from the first to the last of a definition."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def measured(path: Path) -> Measured:
    """The counts of one file."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    found = Measured(
        lines=text.count("\n"), wide=sum(len(line) > 100 for line in text.splitlines())
    )
    _count_tokens(text, found)
    name = str(path.relative_to(ROOT))
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                found.anys += 1
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.functions.append(size(node))
                found.complexities.append(
                    (complexity(node), f"{name}:{node.lineno} {node.name}")
                )
            case ast.ClassDef():
                found.classes.append(size(node))
        limit = LONGEST.get(type(node))
        if (
            limit
            and isinstance(node, (*FUNCTIONS, ast.ClassDef))
            and size(node) > limit
        ):
            found.faults.append(f"{name}:{node.lineno} {node.name}: {size(node)} lines")
    if found.lines > LONGEST_FILE:
        found.faults.append(f"{name}: {found.lines} lines")
    return found


def _count_tokens(text: str, found: Measured) -> None:
    found.code = sum(bool(line.strip()) for line in text.splitlines())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found.comments += 1
        elif token.type not in SILENT:
            found.tokens += 1


def files(places: Sequence[str] = PLACES) -> list[Path]:
    """Every module that is measured: those of some folders, or one that is named."""
    roots = [ROOT / place for place in places]
    return [p for r in roots for p in ([r] if r.is_file() else sorted(r.rglob("*.py")))]


def module_of(path: Path) -> str:
    """The dotted name of a file; a package's is that of its folder."""
    base = ROOT / "backends" if "backends" in path.relative_to(ROOT).parts else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module or name that a file imports, lazily or not, but not for types alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = {
        n for node in ast.walk(tree) if _is_for_types(node) for n in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_for_types(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def module_graph() -> dict[str, set[str]]:
    """Which module imports which, of those that are measured."""
    known = {module_of(p) for p in files()}
    graph: dict[str, set[str]] = {}
    for path in files():
        targets = {t if t in known else t.rpartition(".")[0] for t in imports(path)}
        graph.setdefault(module_of(path), set()).update(
            (targets & known) - {module_of(path)}
        )
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which leads to all others of its group (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def rooms(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Which folder imports which."""
    packages = {module_of(p) for p in files() if p.name == "__init__.py"}
    made: dict[str, set[str]] = {}
    for module, targets in graph.items():
        here = module if module in packages else module.rpartition(".")[0] or module
        there = {t if t in packages else t.rpartition(".")[0] or t for t in targets}
        made.setdefault(here, set()).update(there - {here})
    return made


def total(places: Sequence[str] = PLACES) -> Measured:
    """The counts of all files of some folders together."""
    made = Measured()
    for path in files(places):
        one = measured(path)
        for name in ("lines", "code", "tokens", "comments", "wide", "anys"):
            vars(made)[name] += vars(one)[name]
        for name in ("functions", "classes", "complexities", "faults"):
            vars(made)[name] += vars(one)[name]
    return made


def report(places: Sequence[str] = PLACES) -> Iterator[str]:
    """The figures, a line each; rooms and cycles are those of the whole."""
    all_ = total(places)
    thousands = all_.lines / 1000
    lengths = sorted(all_.functions)
    hard = sorted(all_.complexities, reverse=True)
    counts = [c for c, _ in hard]
    graph = module_graph()
    arrows = rooms(graph)
    yield f"files, lines                       {len(files(places))}, {all_.lines}"
    p90 = lengths[len(lengths) * 9 // 10]
    yield f"function lines: median, p90, max   {median(lengths):.0f}, {p90}, {lengths[-1]}"
    yield f"classes over 150 lines             {sum(c > 150 for c in all_.classes)}"
    yield f"house faults per 1 000 lines       {len(all_.faults) / thousands:.2f}"
    yield f"`Any` per 1 000 lines              {all_.anys / thousands:.1f}"
    yield f"comments per 1 000 lines           {all_.comments / thousands:.1f}"
    yield f"tokens per line that is not blank  {all_.tokens / all_.code:.1f}"
    yield f"lines over 100 columns             {100 * all_.wide / all_.lines:.1f} %"
    yield (
        f"complexity: mean, share over 10    {mean(counts):.1f}, "
        f"{100 * mean(c > 10 for c in counts):.1f} %"
    )
    yield f"functions over complexity 15       {sum(c > 15 for c in counts)}"
    yield f"import cycles                      {len(cycles(graph))}"
    yield f"rooms, arrows                      {len(arrows)}, {sum(map(len, arrows.values()))}"
    if "--list" in sys.argv:
        yield from (f"  fault: {fault}" for fault in all_.faults)
        yield from (
            f"  complexity {count}: {where}" for count, where in hard if count > 15
        )
        yield from (f"  cycle: {' '.join(group)}" for group in cycles(graph))


if __name__ == "__main__":
    folders = [word for word in sys.argv[1:] if not word.startswith("-")]
    print("\n".join(report(folders or PLACES)))
