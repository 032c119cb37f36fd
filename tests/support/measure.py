"""Measurements of the product code: `make measure` prints them next to their aims.

Definitions, so that two readings can be compared:

* a function's length is its lines from `def` to its last, a file's is all of it; a fault
  is a function over 50, a class over 150 or a file over 400 lines;
* tokens are Python's own without comments, line ends and indentation;
* complexity is one more than the decisions: `if`, `elif`, loops, `except`, `case`,
  conditional expressions, `assert`, each further operand of `and` and `or`, and each
  `for` and `if` of a comprehension; a nested function counts for itself;
* the op grid is the packages that hold one rule per op or built-in function; an op rule
  is a function there that a decorator registers, and shares its name on purpose;
* `__init__.py` does not count as a file, but its lines and tokens count;
* a homonym is a public module-level function whose name another module defines too.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[2]
PRODUCT_DIRS = ("specc", "backends")
MAX_LINES = {ast.FunctionDef: 50, ast.AsyncFunctionDef: 50, ast.ClassDef: 150}
MAX_FILE_LINES = 400
OP_GRID = {
    "specc/ir/ops",
    "specc/frontend/builtins",
    "backends/specc_numpy",
    "backends/specc_torch",
    "backends/specc_onnx/lower",
}
"""Packages with one file per group of ops: their basenames repeat on purpose."""
REGISTRIES = {"evaluate", "lower", "word", "register_builtin"}
"""Decorators that register the rule of an op or of a built-in function."""
ENTRY_POINTS = {"main", "compile", "load", "check", "open", "run"}
"""Names of commands and of functions of the `specc` package."""
NOT_MODULE_NAMES = frozenset(
    [
        "answer",
        "answers",
        "apart",
        "asked",
        "beginnings",
        "beside",
        "beyond",
        "blame",
        "broken",
        "clash",
        "clean",
        "closing",
        "counts",
        "crossed",
        "crossing",
        "doubt",
        "drawn",
        "dress",
        "each",
        "ending",
        "enough",
        "fitting",
        "foreseen",
        "given",
        "halting",
        "held",
        "kept_out",
        "lately",
        "left",
        "lessons",
        "told",
        "meaning",
        "mends",
        "moving",
        "named",
        "needs",
        "newest",
        "noted",
        "of_its_own",
        "once",
        "opened",
        "ours",
        "over",
        "own",
        "pairs",
        "parts",
        "place",
        "placing",
        "places",
        "prior",
        "published",
        "rounded",
        "rounds",
        "said",
        "seen",
        "several",
        "short",
        "shown",
        "sliding",
        "spliced",
        "standing",
        "standing_alone",
        "taken",
        "taught",
        "tellers",
        "told",
        "turn",
        "turned",
        "turning",
        "uncompiled",
        "unreadable",
        "unshared",
        "walked",
        "whole",
        "wishes",
    ]
)
"""Participles, prepositions and adverbs that were module names before."""
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
IDENTIFIER_NODES = {ast.Name, ast.Attribute, ast.ClassDef, *FUNCTIONS}
UNCOUNTED_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


LEAF_NODES = {ast.Name, ast.Constant, ast.Load, ast.Store, ast.alias}
STATEMENT_FIELDS = {"body", "orelse", "finalbody", "handlers", "cases"}


@dataclass
class FileCounts:
    """Counts of one file or of all files."""

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


@cache
def parse_module(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which is parsed once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def iterate_children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children of a node; none for names and literals, which are the most frequent nodes."""
    return iter(()) if type(node) in LEAF_NODES else ast.iter_child_nodes(node)


def list_nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a file."""
    nodes: list[ast.AST] = [parse_module(path)]
    for node in nodes:
        nodes += iterate_children(node)
    return nodes


def iterate_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield all statements in a node, at any depth. Expressions contain none."""
    for name in STATEMENT_FIELDS & {*node._fields}:
        for child in getattr(node, name):
            if isinstance(child, ast.stmt):
                yield child
            yield from iterate_statements(child)


def count_complexity(function: ast.AST) -> int:
    """Return 1 plus the number of decisions in a function, without those of nested functions."""
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
        waiting += iterate_children(node)
    return count


def count_lines(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    """Return the number of lines of a definition."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def measure_file(path: Path) -> FileCounts:
    """Measure one file."""
    text = path.read_text(encoding="utf-8")
    found = FileCounts(
        lines=text.count("\n"), wide=sum(len(line) > 100 for line in text.splitlines())
    )
    _count_tokens(text, found)
    name = str(path.relative_to(ROOT))
    for node in (n for n in list_nodes(path) if type(n) in IDENTIFIER_NODES):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                found.anys += 1
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.functions.append(count_lines(node))
                found.complexities.append(
                    (count_complexity(node), f"{name}:{node.lineno} {node.name}")
                )
            case ast.ClassDef():
                found.classes.append(count_lines(node))
        limit = MAX_LINES.get(type(node))
        if limit and isinstance(node, (*FUNCTIONS, ast.ClassDef)) and count_lines(node) > limit:
            found.faults.append(f"{name}:{node.lineno} {node.name}: {count_lines(node)} lines")
    if found.lines > MAX_FILE_LINES:
        found.faults.append(f"{name}: {found.lines} lines")
    return found


def _count_tokens(text: str, found: FileCounts) -> None:
    found.code = sum(bool(line.strip()) for line in text.splitlines())
    depth = 0  # of f-strings, which Python 3.12 and newer split into several tokens
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = tokenize.tok_name[token.type]
        depth -= name == "FSTRING_END"
        if token.type == tokenize.COMMENT:
            found.comments += 1
        elif token.type not in UNCOUNTED_TOKENS and not depth:
            found.tokens += name != "FSTRING_START"
        depth += name == "FSTRING_START"


def list_files(places: Sequence[str] = PRODUCT_DIRS) -> list[Path]:
    """Return all modules in some directories, or a single file."""
    roots = [ROOT / place for place in places]
    return [p for r in roots for p in ([r] if r.is_file() else sorted(r.rglob("*.py")))]


def get_module_name(path: Path) -> str:
    """Return the dotted name of a file; that of a package is its directory."""
    base = ROOT / "backends" if "backends" in path.relative_to(ROOT).parts else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def list_imports(path: Path) -> Iterator[str]:
    """Return the modules and names that a file imports, including lazy imports but not imports for
    types only.
    """
    nodes = [*iterate_statements(parse_module(path))]
    typing = {n for node in nodes if _is_for_types(node) for n in iterate_statements(node)}
    for node in nodes:
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


def build_module_graph() -> dict[str, set[str]]:
    """Return the imports of each module within the product code."""
    known = {get_module_name(p) for p in list_files()}
    graph: dict[str, set[str]] = {}
    for path in list_files():
        targets = {t if t in known else t.rpartition(".")[0] for t in list_imports(path)}
        graph.setdefault(get_module_name(path), set()).update(
            (targets & known) - {get_module_name(path)}
        )
    return graph


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one module (Tarjan 1972)."""
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


def sum_counts(places: Sequence[str] = PRODUCT_DIRS) -> FileCounts:
    """Return the sum of the counts of all files in some directories."""
    made = FileCounts()
    for path in list_files(places):
        one = measure_file(path)
        for name in ("lines", "code", "tokens", "comments", "wide", "anys"):
            vars(made)[name] += vars(one)[name]
        for name in ("functions", "classes", "complexities", "faults"):
            vars(made)[name] += vars(one)[name]
    return made


def is_op_rule(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> bool:
    """Whether a decorator registers the function as the rule of an op or built-in."""
    if path.parent.relative_to(ROOT).as_posix() not in OP_GRID:
        return False
    called = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(d) in REGISTRIES for d in called)


def list_public_functions(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return name and file of every public module-level function, op rules aside."""
    return [
        (node.name, path)
        for path in paths
        for node in parse_module(path).body
        if isinstance(node, FUNCTIONS)
        and not node.name.startswith("_")
        and not is_op_rule(node, path)
    ]


def is_one_word(name: str) -> bool:
    """Whether a function name is a single word instead of verb and object."""
    return "_" not in name and name not in ENTRY_POINTS


def find_homonyms(paths: Sequence[Path]) -> list[str]:
    """Return `name: files` for every public function name that two modules define."""
    where: dict[str, list[str]] = {}
    for name, path in list_public_functions(paths):
        where.setdefault(name, []).append(str(path.relative_to(ROOT)))
    return [f"{n}: {' '.join(at)}" for n, at in sorted(where.items()) if len(at) > 1]


def find_shared_basenames(paths: Sequence[Path]) -> list[str]:
    """Return the files that share a basename, the op grid and `__init__` aside."""
    where: dict[str, list[Path]] = {}
    for path in paths:
        if path.name != "__init__.py":
            where.setdefault(path.name, []).append(path)
    return [
        str(p.relative_to(ROOT))
        for group in where.values()
        if len(group) > 1
        for p in group
        if p.parent.relative_to(ROOT).as_posix() not in OP_GRID
    ]


def find_dialect_modules(paths: Sequence[Path]) -> list[str]:
    """Return modules named by a participle, a preposition or an adverb."""
    return [str(p.relative_to(ROOT)) for p in paths if p.stem in NOT_MODULE_NAMES]


def compute_percent(part: int, whole: int) -> float:
    """Return a share in percent, 0 if the total is 0."""
    return 100 * part / whole if whole else 0.0


@dataclass(frozen=True)
class MetricRow:
    """One line of the table: a value that must not exceed `aim` once it has reached it."""

    name: str
    value: float
    aim: float
    detail: Sequence[str] = ()

    @property
    def is_reached(self) -> bool:
        return self.value <= self.aim

    def __str__(self) -> str:
        mark = "ok" if self.is_reached else "--"
        return f"{self.name:44} {self.value:>10.4g}  aim <= {self.aim:<8g} {mark}"


def build_name_rows(paths: Sequence[Path]) -> Iterator[MetricRow]:
    """Return the rows about names of functions and modules."""
    functions = list_public_functions(paths)
    one_word = [f"{n}: {p.relative_to(ROOT)}" for n, p in functions if is_one_word(n)]
    homonyms = find_homonyms(paths)
    shared = sum(len(h.split(": ")[1].split()) for h in homonyms)
    basenames = find_shared_basenames(paths)
    dialect = find_dialect_modules(paths)
    total_functions = len(functions)
    yield MetricRow(
        "public functions of one word, %",
        compute_percent(len(one_word), total_functions),
        10,
        one_word,
    )
    yield MetricRow(
        "public functions with a homonym, %", compute_percent(shared, total_functions), 8, homonyms
    )
    yield MetricRow(
        "files that share a basename, %", compute_percent(len(basenames), len(paths)), 15, basenames
    )
    yield MetricRow("modules named by no noun", len(dialect), 0, dialect)


def build_size_rows(paths: Sequence[Path], counts: FileCounts) -> Iterator[MetricRow]:
    """Return the rows about size, length and complexity."""
    thousands = counts.lines / 1000
    complexities = sorted(counts.complexities, reverse=True)
    values = [c for c, _ in complexities]
    over_15 = [f"{c}: {where}" for c, where in complexities if c > 15]
    yield MetricRow("files", sum(path.name != "__init__.py" for path in paths), 400)
    yield MetricRow("lines", counts.lines, 90_000)
    yield MetricRow("tokens", counts.tokens, 600_000)
    yield MetricRow("functions over 60 lines", sum(f > 60 for f in counts.functions), 0)
    yield MetricRow("classes over 150 lines", sum(c > 150 for c in counts.classes), 5)
    yield MetricRow(
        "size faults per 1 000 lines", len(counts.faults) / thousands, 0.09, counts.faults
    )
    yield MetricRow("`Any` per 1 000 lines", counts.anys / thousands, 1.5)
    yield MetricRow("comments per 1 000 lines", counts.comments / thousands, 22)
    yield MetricRow("tokens per non-blank line", counts.tokens / counts.code, 7.8)
    yield MetricRow("lines over 100 columns, %", compute_percent(counts.wide, counts.lines), 0.05)
    yield MetricRow("mean complexity", mean(values), 4.05)
    yield MetricRow(
        "functions over complexity 10, %",
        compute_percent(sum(c > 10 for c in values), len(values)),
        4.5,
    )
    yield MetricRow("functions over complexity 15", len(over_15), 0, over_15)


def build_rows(places: Sequence[str] = PRODUCT_DIRS) -> list[MetricRow]:
    """Return the whole table; cycles are those of the whole import graph."""
    paths = list_files(places)
    found = find_cycles(build_module_graph())
    lines = [" ".join(group) for group in found]
    return [
        *build_name_rows(paths),
        *build_size_rows(paths, sum_counts(places)),
        MetricRow("import cycles", len(found), 4, lines),
    ]


def print_report(words: Sequence[str]) -> None:
    """Print the table; `--list` adds the items that each row counts."""
    directories = [word for word in words if not word.startswith("-")]
    for row in build_rows(directories or PRODUCT_DIRS):
        print(row)
        if "--list" in words:
            print(*(f"    {line}" for line in row.detail), sep="\n")


if __name__ == "__main__":
    print_report(sys.argv[1:])
