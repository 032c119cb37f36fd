"""Who may import whom. The table is the architecture; the test keeps it true."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Each part may import itself, the parts listed, the standard library, and the packages listed.
MAY_IMPORT: dict[str, set[str]] = {
    "specc.text": set(),
    "specc.input": set(),
    "specc.ir": {"specc.text"},
    "specc.lang": {"specc.text", "lark", "yaml"},
    "specc.generation.options": {"specc.text"},  # names and ranges alone: a spec says them too
    "specc.weights.names": set(),  # patterns of names alone: a spec says them too
    "specc.elaborate": {"specc.lang", "specc.ir", "specc.text", "specc.generation.options", "specc.weights.names"},
    "specc.passes": {"specc.ir", "specc.text"},
    "specc.ours": {"specc.input"},
    "specc.place": {"specc.text", "specc.input", "specc.ours"},
    "specc.output": {"specc.text", "specc.input", "specc.place"},
    "specc.beside": {"specc.input"},
    "specc.package_index": {"specc.text", "specc.input", "specc.output", "specc.beside"},
    "specc.weights.random": {"numpy"},
    "specc.weights": {
        "specc.ir", "specc.text", "specc.input", "specc.ours", "specc.output", "specc.weights.random",
        "specc.weights.names", "numpy", "ml_dtypes",
    },
    "specc.generation": {"specc.weights.random", "specc.generation.options", "specc.text", "numpy"},
    "specc.reading": {"specc.text", "specc.ir", "specc.input", "numpy", "PIL", "tokenizers"},
    "specc.config_file": {"specc.elaborate", "specc.input", "specc.text"},
    "specc.backend": {"specc.text"},
    "specc_numpy": {"specc.ir", "specc.text", "specc.backend", "numpy"},
    "specc_onnx": {
        "specc", "specc.ir", "specc.text", "specc.input", "specc.ours", "specc.place", "specc.output", "specc.backend",
        "specc.weights", "specc.weights.random", "specc.package_index", "specc.beside", "numpy", "onnx", "onnxruntime",
        "google", "ml_dtypes",
    },
    "specc_torch": {"specc.ir", "specc.text", "specc.backend", "specc.weights", "numpy", "torch"},
    # the edge: files, printing, and the one place where everything meets; never a backend by name
    "specc": {
        "specc.text", "specc.input", "specc.ir", "specc.lang", "specc.elaborate", "specc.passes", "specc.ours",
        "specc.place", "specc.output",
        "specc.weights", "specc.weights.names", "specc.reading", "specc.backend", "specc.config_file",
        "specc.package_index", "specc.beside", "specc.generation", "specc.generation.options", "numpy",
    },
}  # fmt: skip


def part_of(module: str) -> str:
    """The longest name in the table that `module` starts with, or its top package."""
    names = [p for p in MAY_IMPORT if f"{module}.".startswith(f"{p}.")]
    return max(names, key=len, default=module.split(".")[0])


def imports(path: Path) -> list[tuple[int, str]]:
    """Every import in a file, lazy and type-only ones included."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


FILES = [p for d in ("specc", "backends") for p in sorted((ROOT / d).rglob("*.py"))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_follow_the_table(path: Path) -> None:
    base = ROOT / "backends" if "backends" in path.relative_to(ROOT).parts else ROOT
    me = part_of(".".join(path.relative_to(base).with_suffix("").parts))
    allowed = MAY_IMPORT[me] | {me} | sys.stdlib_module_names
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {me} may not import {name}"
        for line, name in imports(path)
        if part_of(name) not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_cycle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()
