"""Allowed imports between packages. The table is the architecture."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.measure import iterate_statements, parse_module

import specc

ROOT = Path(__file__).parents[2]

# Each package may import itself, the listed packages and the standard library.
MAY_IMPORT: dict[str, set[str]] = {
    "specc.diagnostics": set(),
    "specc.io": {"specc.diagnostics"},
    "specc.ir": {"specc.diagnostics"},
    # a type for annotations: the rest of ir needs no arrays
    "specc.ir.array": {"numpy"},
    "specc.syntax": {"specc.diagnostics", "yaml"},
    # only names and ranges, which specs contain too
    "specc.decode.setting_names_and_limits": set(),
    "specc.decode.setting_validation": {"specc.decode.setting_names_and_limits", "specc.diagnostics"},
    # only names and name patterns, which specs contain too
    "specc.weights.parameter_name_patterns": {"specc.diagnostics", "specc.io"},
    "specc.frontend": {
        "specc.decode.setting_validation", "specc.diagnostics", "specc.io", "specc.ir", "specc.syntax",
        "specc.weights.parameter_name_patterns",
    },
    "specc.library": {"specc.diagnostics", "specc.frontend", "specc.io", "specc.syntax"},
    "specc.transforms": {"specc.diagnostics", "specc.ir", "specc.weights.parameter_name_patterns"},
    # a lowering of loops that the backends share
    "specc.transforms.chunk_scan": {"specc.ir", "specc.transforms"},
    "specc.analysis": {
        "specc.diagnostics", "specc.ir", "specc.transforms", "specc.transforms.chunk_scan",
    },
    "specc.incremental": {"specc.analysis", "specc.diagnostics", "specc.ir"},
    # only the order of the passes
    "specc.transforms.pass_pipeline": {
        "specc.analysis", "specc.diagnostics", "specc.incremental", "specc.ir", "specc.transforms",
    },
    "specc.weights.random_stream": {"numpy"},
    "specc.weights.int_quantization": {"numpy", "specc.ir", "specc.ir.array"},
    "specc.weights.formats": {"ml_dtypes", "numpy", "specc.diagnostics", "specc.io", "specc.ir.array"},
    "specc.weights": {
        "ml_dtypes", "numpy", "specc.diagnostics", "specc.io", "specc.ir", "specc.ir.array",
        "specc.weights.formats", "specc.weights.int_quantization", "specc.weights.parameter_name_patterns",
        "specc.weights.random_stream",
    },
    "specc.drawing": {
        "PIL", "numpy", "specc.diagnostics", "specc.io", "specc.ir.array", "specc.weights.parameter_name_patterns",
    },
    "specc.preprocessing": {
        "PIL", "jinja2", "numpy", "specc.diagnostics", "specc.drawing", "specc.io", "specc.ir",
        "specc.ir.array", "tokenizers",
    },
    "specc.decode": {
        "numpy", "specc.decode.setting_names_and_limits", "specc.decode.setting_validation", "specc.diagnostics",
        "specc.ir.array", "specc.weights.random_stream",
    },
    "specc.artifact": {
        "specc.analysis", "specc.diagnostics", "specc.io", "specc.ir", "specc.ir.array",
        "specc.preprocessing", "specc.version",
    },
    "specc.backend": {
        "numpy", "specc.artifact", "specc.diagnostics", "specc.ir", "specc.ir.array", "specc.weights",
    },
    "specc_numpy": {"numpy", "specc.backend", "specc.diagnostics", "specc.ir", "specc.ir.array"},
    "specc_onnx.execution_providers": {
        "ml_dtypes", "numpy", "onnx", "onnxruntime", "specc.diagnostics", "specc.io", "specc.ir", "specc.ir.array",
    },
    "specc_onnx.denormals_and_huge_pages": set(),
    "specc_onnx.ort_model": {
        "ml_dtypes", "numpy", "onnx", "onnxruntime", "specc.backend", "specc.diagnostics", "specc.io",
        "specc.ir.array", "specc_onnx.denormals_and_huge_pages", "specc_onnx.execution_providers",
    },
    "specc_onnx.int8_saturation": {
        "google", "numpy", "onnx", "onnxruntime", "specc.ir.array", "specc_onnx.execution_providers",
    },
    "specc_onnx.ort_session": {
        "ml_dtypes", "numpy", "onnx", "onnxruntime", "specc.backend", "specc.diagnostics", "specc.io",
        "specc_onnx.denormals_and_huge_pages", "specc_onnx.execution_providers",
        "specc_onnx.int8_saturation", "specc_onnx.ort_model",
    },
    "specc_onnx": {
        "google", "ml_dtypes", "numpy", "onnx", "specc.analysis", "specc.artifact", "specc.backend",
        "specc.diagnostics", "specc.io", "specc.ir", "specc.ir.array", "specc.transforms.chunk_scan",
        "specc.version", "specc.weights", "specc.weights.formats", "specc.weights.random_stream", "specc_onnx.ort_model",
        "specc_onnx.ort_session",
    },
    # no package imports it, so training finds specs and preprocessing here
    "specc_torch": {
        "numpy", "specc.backend", "specc.diagnostics", "specc.driver", "specc.driver.option_kinds",
        "specc.io", "specc.ir", "specc.ir.array", "specc.runtime", "specc.weights", "specc.weights.parameter_name_patterns",
        "specc.weights.formats", "torch",
    },
    "specc.runtime": {
        "ml_dtypes", "numpy", "specc.analysis", "specc.artifact", "specc.backend", "specc.decode",
        "specc.decode.setting_names_and_limits", "specc.decode.setting_validation", "specc.diagnostics", "specc.drawing",
        "specc.io", "specc.ir", "specc.ir.array", "specc.preprocessing", "specc.weights.int_quantization",
        "specc.weights.parameter_name_patterns",
    },
    "specc.verification": {
        "ml_dtypes", "numpy", "specc.analysis", "specc.artifact", "specc.backend", "specc.decode", "specc.diagnostics",
        "specc.io", "specc.ir", "specc.ir.array", "specc.runtime", "specc.transforms.chunk_scan",
        "specc.weights.int_quantization", "specc.weights.parameter_name_patterns",
    },
    "specc.batch_inference": {
        "numpy", "pyarrow", "ray", "specc.analysis", "specc.artifact", "specc.decode", "specc.diagnostics",
        "specc.drawing", "specc.io", "specc.ir", "specc.ir.array", "specc.preprocessing", "specc.runtime",
        "specc.version",
    },
    "specc.calibration": {
        "numpy", "specc.analysis", "specc.artifact", "specc.backend", "specc.diagnostics", "specc.io",
        "specc.ir", "specc.ir.array", "specc.preprocessing", "specc.runtime", "specc.transforms",
        "specc.weights", "specc.weights.int_quantization",
    },
    "specc.huggingface": {
        "huggingface_hub", "specc.decode", "specc.decode.setting_names_and_limits",
        "specc.decode.setting_validation", "specc.diagnostics", "specc.frontend", "specc.io", "specc.ir", "specc.library", "specc.preprocessing",
        "specc.syntax", "specc.weights", "specc.weights.formats", "specc.weights.parameter_name_patterns",
    },
    "specc.driver.option_kinds": {"specc.diagnostics", "specc.io"},
    "specc.driver": {
        "numpy", "specc.driver.option_kinds", "specc.analysis", "specc.artifact", "specc.backend", "specc.calibration", "specc.decode",
        "specc.decode.setting_validation", "specc.diagnostics", "specc.frontend", "specc.huggingface",
        "specc.incremental", "specc.io", "specc.ir", "specc.ir.array", "specc.library", "specc.preprocessing",
        "specc.syntax", "specc.transforms", "specc.transforms.pass_pipeline", "specc.weights",
        "specc.weights.formats", "specc.weights.parameter_name_patterns", "specc.weights.random_stream",
    },
    "specc.visualize": {
        "numpy", "specc.analysis", "specc.diagnostics", "specc.drawing", "specc.driver", "specc.io",
        "specc.ir", "specc.transforms", "specc.transforms.pass_pipeline",
    },
    "specc.lsp": {
        "lsprotocol", "pygls", "specc.analysis", "specc.diagnostics", "specc.driver", "specc.frontend",
        "specc.huggingface", "specc.io", "specc.library", "specc.syntax", "specc.version",
    },
    "specc.cli": {
        "numpy", "specc.analysis", "specc.artifact", "specc.batch_inference", "specc.decode.setting_names_and_limits",
        "specc.diagnostics", "specc.drawing", "specc.driver", "specc.driver.option_kinds",
        "specc.frontend", "specc.huggingface", "specc.io", "specc.ir", "specc.ir.array", "specc.library",
        "specc.lsp", "specc.model_loading", "specc.preprocessing",
        "specc.runtime", "specc.syntax", "specc.transforms", "specc.transforms.pass_pipeline",
        "specc.verification", "specc.version", "specc.visualize", "specc.weights", "specc.weights.formats",
    },
    # the public interface of compiled models, which must not import the compiler
    "specc.model": {
        "specc.batch_inference", "specc.decode", "specc.diagnostics", "specc.driver.option_kinds",
        "specc.ir.array", "specc.runtime",
    },
    "specc.model_loading": {
        "specc.artifact", "specc.decode.setting_names_and_limits", "specc.diagnostics", "specc.driver.option_kinds",
        "specc.huggingface", "specc.io", "specc.library", "specc.model", "specc.runtime",
    },
    # the public interface
    "specc.api": {
        "specc.diagnostics", "specc.driver", "specc.driver.option_kinds", "specc.io", "specc.model",
        "specc.model_loading",
    },
    "specc.version": set(),
    "specc": {
        "specc.api", "specc.diagnostics", "specc.model", "specc.model_loading", "specc.runtime", "specc.version",
    },
    "specc.__main__": {"specc.cli"},
}  # fmt: skip


@cache
def find_package(module: str) -> str:
    """Return the longest name in the table that is a prefix of `module`, or its top-level
    package."""
    names = [p for p in MAY_IMPORT if f"{module}.".startswith(f"{p}.")]
    return max(names, key=len, default=module.split(".")[0])


def list_imports(path: Path) -> list[tuple[int, str]]:
    """Return every import in a file, including lazy and type-only ones."""
    found = []
    for node in iterate_statements(parse_module(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def list_forbidden_imports(path: Path) -> list[str]:
    base = ROOT / "backends" if "backends" in path.relative_to(ROOT).parts else ROOT
    me = find_package(".".join(path.relative_to(base).with_suffix("").parts))
    allowed = MAY_IMPORT[me] | {me} | sys.stdlib_module_names
    return [
        f"{path.relative_to(ROOT)}:{line}: {me} may not import {name}"
        for line, name in list_imports(path)
        if find_package(name) not in allowed
    ]


def test_imports_follow_the_table() -> None:
    paths = [p for d in ("specc", "backends") for p in sorted((ROOT / d).rglob("*.py"))]
    wrong = [line for path in paths for line in list_forbidden_imports(path)]
    assert not wrong, "\n".join(wrong)


def test_table_has_no_cycle() -> None:
    TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["check", "gpt2"], ("numpy", "specc.incremental", "specc.transforms.pass_pipeline")),
        (["--version"], ("numpy", "specc.frontend", "specc.ir", "specc.syntax")),
    ],
    ids=["check", "version"],
)
def test_commands_import_only_what_they_use(arguments: list[str], unused: tuple[str, ...]) -> None:
    """Importing numpy, or all of the compiler, takes as long as checking a small spec."""
    code = (
        f"import sys\nfrom specc.cli.main import run_main_and_exit\nsys.argv[1:] = {arguments!r}\n"
        "try:\n    run_main_and_exit()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"assert not (found := [n for n in sys.modules if n.startswith({unused!r})]), found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


COMPILER_PARTS = (
    *("specc.syntax", "specc.frontend", "specc.library", "specc.transforms", "specc.incremental"),
    *("specc.batch_inference", "specc.calibration", "specc.huggingface", "specc.verification"),
    *("specc.driver.compile_options", "specc.driver.spec_loader"),
    *("specc_onnx.lower.registry", "specc_onnx.generate", "specc_onnx.write.onnx_"),
)


def test_loading_and_generating_imports_no_compiler(tmp_path: Path) -> None:
    """Running a model needs neither specs nor lowering; importing them takes longer than loading a
    small model."""
    model = tmp_path / "model"
    small = {"vocab": 20, "width": 8, "layers": 1}
    specc.compile("lstm_lm", model, graphs=["step"], init=0, set=small)
    code = (
        "import sys, specc\n"
        f"with specc.load({str(model)!r}) as model:\n"
        "    list(model.generate(ids=[[1, 2]], max_tokens=2))\n"
        f"print([n for n in sys.modules if n.startswith({COMPILER_PARTS!r})])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
