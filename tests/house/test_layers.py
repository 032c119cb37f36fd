"""Who may import whom. The table is the architecture; the test keeps it true."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Each part may import itself, the parts listed, the standard library, and the packages
# listed.
MAY_IMPORT: dict[str, set[str]] = {
    "specc.text": set(),
    "specc.files": {"specc.text"},
    "specc.ir": {"specc.text"},
    "specc.ir.array": {"numpy"},  # a type for annotations: the rest of ir needs no arrays
    "specc.lang": {"specc.text", "lark", "yaml"},
    # names and ranges alone: a spec says them too
    "specc.decode.options": set(),
    "specc.decode.option_faults": {"specc.decode.options", "specc.text"},
    "specc.weights.names": set(),  # patterns of names alone: a spec says them too
    "specc.elaborate": {
        "specc.lang", "specc.ir", "specc.text", "specc.files", "specc.decode.option_faults", "specc.weights.names",
    },
    "specc.library": {"specc.elaborate", "specc.lang", "specc.files", "specc.text"},
    "specc.passes.simplify": {"specc.ir", "specc.text"},
    "specc.passes.quantize": {"specc.passes.simplify", "specc.ir", "specc.text", "specc.weights.names"},
    "specc.passes.narrow": {"specc.ir"},
    "specc.passes.measure": {"specc.passes.prove", "specc.ir", "specc.text"},
    "specc.passes.prove": {"specc.passes.simplify", "specc.ir", "specc.text"},
    "specc.passes.derive": {"specc.passes.prove", "specc.ir", "specc.text"},
    # the order of the passes, and nothing else
    "specc.passes.pipeline": {
        "specc.passes.derive", "specc.passes.narrow", "specc.passes.prove", "specc.passes.quantize", "specc.passes.simplify",
        "specc.ir", "specc.text",
    },
    "specc.passes": set(),
    "specc.weights.random": {"numpy"},
    "specc.weights.lowbits": {"specc.ir", "specc.ir.array", "numpy"},
    "specc.weights.formats": {"specc.ir.array", "specc.text", "specc.files", "numpy", "ml_dtypes"},
    "specc.weights": {
        "specc.ir.array", "specc.ir", "specc.text", "specc.files", "specc.weights.random", "specc.weights.names",
        "specc.weights.formats", "specc.weights.lowbits", "numpy", "ml_dtypes",
    },
    "specc.data": {"specc.ir.array", "specc.text", "specc.ir", "specc.files", "numpy", "PIL", "tokenizers", "jinja2"},
    "specc.decode": {"specc.ir.array", "specc.weights.random", "specc.decode.options", "specc.decode.option_faults", "specc.text", "numpy"},
    "specc.artifact": {
        "specc.ir.array", "specc.version", "specc.text", "specc.files", "specc.ir", "specc.data",
        "specc.passes.measure",
    },
    "specc.backend": {"specc.artifact", "specc.ir", "specc.ir.array", "specc.text", "specc.weights", "numpy"},
    "specc_numpy": {"specc.ir.array", "specc.ir", "specc.text", "specc.backend", "numpy"},
    "specc_onnx.placement": {"specc.ir.array", "specc.ir", "specc.text", "specc.files", "numpy", "onnx"},
    "specc_onnx.providers": {"specc.files", "specc.text", "specc_onnx.placement", "onnx", "onnxruntime"},
    "specc_onnx.fitting": {
        "specc.backend", "specc.files", "specc.ir.array", "specc.text", "specc_onnx.providers", "numpy",
    },
    "specc_onnx.denormals": set(),
    "specc_onnx.picking": {"specc_onnx.providers", "specc.ir.array", "ml_dtypes", "numpy", "onnx", "onnxruntime"},
    "specc_onnx.fixed": {
        "specc.backend", "specc.ir.array", "specc_onnx.denormals", "specc_onnx.providers", "specc_onnx.run", "numpy", "onnx", "onnxruntime",
    },
    "specc_onnx.run": {
        "specc.backend", "specc_onnx.denormals", "specc_onnx.fitting", "specc_onnx.picking", "specc_onnx.providers",
        "specc.ir.array", "specc.text", "specc.files", "specc.ir", "specc_onnx.placement", "numpy", "onnx", "onnxruntime", "google",
        "ml_dtypes",
    },
    "specc_onnx": {
        "specc.ir.array", "specc.version", "specc.artifact", "specc.files", "specc.ir", "specc.text", "specc.weights", "specc.backend",
        "specc.passes.measure", "specc.passes.prove", "specc.weights.formats", "specc.weights.random", "specc_onnx.fixed", "specc_onnx.run", "numpy", "onnx", "google", "ml_dtypes",
    },
    "specc_torch": {
        "specc.ir.array", "specc.ir", "specc.text", "specc.backend", "specc.weights", "specc.weights.formats", "numpy",
        # no other room asks for it, so that who trains finds specs and readings here
        "specc.compiler", "specc.files", "specc.run", "torch",
    },
    "specc.run": {
        "specc.ir.array", "specc.artifact", "specc.backend", "specc.data", "specc.decode", "specc.files", "specc.ir", "specc.text",
        "specc.passes.measure", "specc.decode.options", "specc.decode.option_faults", "specc.weights.lowbits", "specc.weights.names", "numpy", "ml_dtypes",
    },
    "specc.map": {
        "specc.artifact", "specc.data", "specc.decode", "specc.files", "specc.ir", "specc.ir.array",
        "specc.passes.measure", "specc.run", "specc.text", "specc.version", "numpy", "pyarrow", "ray",
    },
    "specc.calibrate": {
        "specc.ir.array", "specc.artifact", "specc.backend", "specc.data", "specc.files", "specc.ir", "specc.passes.measure",
        "specc.passes.quantize", "specc.run", "specc.text", "specc.weights", "numpy",
    },
    "specc.compiler": {
        "specc.ir.array", "specc.artifact", "specc.calibrate", "specc.backend", "specc.data", "specc.decode", "specc.decode.option_faults", "specc.elaborate",
        "specc.files", "specc.ir", "specc.lang", "specc.library", "specc.passes.derive", "specc.passes.measure",
        "specc.passes.narrow", "specc.passes.pipeline", "specc.passes.prove", "specc.passes.quantize", "specc.text", "specc.weights",
        "specc.weights.formats", "specc.weights.names", "specc.weights.random", "numpy",
    },
    "specc.editors": {
        "specc.version", "specc.compiler", "specc.elaborate", "specc.files", "specc.lang", "specc.library", "specc.passes.prove",
        "specc.text", "pygls", "lsprotocol",
    },
    "specc.cli": {
        "specc.editors",
        "specc.ir.array", "specc.version", "specc.artifact", "specc.compiler", "specc.data", "specc.decode.options", "specc.elaborate",
        "specc.files", "specc.ir", "specc.lang", "specc.library", "specc.passes.measure", "specc.passes.pipeline",
        "specc.passes.prove", "specc.passes.quantize", "specc.run", "specc.map", "specc.text", "specc.weights", "specc.weights.formats", "numpy",
    },
    # five modules: the public interface, and the one place where a backend is found by
    # name
    "specc.api": {
        "specc.ir.array", "specc.compiler", "specc.decode", "specc.files", "specc.map", "specc.run", "specc.text",
        "numpy",
    },
    "specc.version": set(),
    "specc": {"specc.api", "specc.version"},
    "specc.__main__": {"specc.cli"},
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
            found += [
                (node.lineno, f"{node.module}.{alias.name}") for alias in node.names
            ]
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
