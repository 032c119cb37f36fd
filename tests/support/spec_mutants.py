"""Mutated specs: built-in specs with changed bytes, words or nodes, and the checks that they must
pass.

A seed determines a mutant, so that a failure can be reproduced: `make_mutant(seed)`.
"""

import dataclasses
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specc.driver import preprocessing_section
from specc.driver import weight_sources as loading
from specc.driver.weights_section_and_load_transforms import (
    list_model_parameters,
    read_weight_rules,
)
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.spec_modules import build_module, build_program, collect_fields_by_path
from specc.frontend.spec_to_graph import create_context, elaborate_model, evaluate_and_check_config
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.ir.dim import Dim
from specc.library.spec_file_lookup import SpecLibrary, get_specs_directory, read_spec_file
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import decode_spec, parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml

WORD = re.compile(r"\w+|\s+|[^\w\s]")
ODD_WORDS = [
    "0", "1", "-1", "2", "9007199254740991", "1e400", "0.5", "inf", "pi", "none", "true", "false", "all", "causal",
    '""', '"{i}"', '"{"', "...", "[]", "{}", "()", "@", "|", "&", "not", "x", "config", "batch", "h", "i", "j", "q",
    "softmax", "linear", "attend", "window(0)", "dot", "float[]", "int?", "list[int]", "…", "\x00", "\t", "\u2028",
    "repeat", "scan", "when", "return", "use", "extends", "generate", "gelu", "layer_norm(eps=1e-5)", "//", "%", "**",
]  # fmt: skip
"""Words that are valid in some places, and words that are valid nowhere."""


@dataclass(frozen=True)
class SpecMutant:
    """A mutated spec as a file: its name, which determines the syntax, and its bytes."""

    name: str
    data: bytes


@cache
def open_library() -> SpecLibrary:
    """Return the library of all mutants: std is read once."""
    return SpecLibrary()


@cache
def list_spec_paths() -> dict[str, Path]:
    """Return the path of every built-in spec by file name without suffix."""
    paths = sorted(
        p
        for d in ("models", "std")
        for p in (get_specs_directory() / d).iterdir()
        if p.suffix in (".specc", ".yaml")
    )
    return {p.stem: p for p in paths}


def choose_spec(rng: random.Random) -> tuple[str, ast.File]:
    """Return a built-in spec and its file name in one of the syntaxes."""
    paths = list_spec_paths()
    name = rng.choice([f"{name}.{suffix}" for suffix in ("specc", "yaml") for name in paths])
    path = paths[Path(name).stem]
    return name, read_spec_file(path, path.name)


# --- bytes and words ------------------------------------------------------------------


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, remove, duplicate or move some bytes."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        end = min(len(made), at + rng.choice([1, 1, 2, 8, 64]))
        match rng.randrange(5):
            case 0 if at < len(made):
                made[at] = rng.randrange(256)
            case 1:
                del made[at:end]
            case 2:
                made[at:at] = made[at:end] * rng.choice([1, 2, 40])
            case 3:
                made[at:at] = rng.choice(ODD_WORDS).encode()
            case _:
                part = made[at:end]
                del made[at:end]
                to = rng.randrange(len(made) + 1)
                made[to:to] = part
    return bytes(made)


def mutate_words(rng: random.Random, text: str) -> str:
    """Replace some words by others of the same text or by odd ones, drop some, duplicate some."""
    words = WORD.findall(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(words))
        match rng.randrange(5):
            case 0:
                words[at] = ""
            case 1:
                words[at] = words[at] * 2
            case 2:
                words[at] = rng.choice(ODD_WORDS)
            case 3:
                words[at] = rng.choice(words)
            case _:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
    return "".join(words)


# --- trees ----------------------------------------------------------------------------


def iterate_nodes(node: Any) -> Iterator[Any]:
    """Yield every node of a tree, starting with the root."""
    if (
        dataclasses.is_dataclass(node)
        and not isinstance(node, type)
        and type(node).__module__ == ast.__name__
    ):
        yield node
        for field in dataclasses.fields(node):
            yield from iterate_nodes(getattr(node, field.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from iterate_nodes(item)


EXPRESSIONS = (ast.NumberLiteral, ast.StringLiteral, ast.Name, ast.Call, ast.Index, ast.UnaryOp, ast.BinaryOp, ast.Compare,
               ast.Conditional, ast.ListLiteral, ast.ListComprehension, ast.RecordLiteral)  # fmt: skip
STATEMENTS = (ast.Assignment, ast.RepeatLoop, ast.ScanLoop, ast.WhenStatement, ast.ReturnStatement)


def get_node_family(node: Any) -> Any:
    """Return the kind of nodes that may replace a node: expressions for expressions, statements for
    statements.
    """
    return (
        "expr"
        if isinstance(node, EXPRESSIONS)
        else "statement"
        if isinstance(node, STATEMENTS)
        else type(node)
    )


@cache
def collect_nodes(path: Path) -> dict[Any, list[Any]]:
    """Return the nodes of a built-in spec by family."""
    found: dict[Any, list[Any]] = {}
    for node in iterate_nodes(read_spec_file(path, path.name)):
        found.setdefault(get_node_family(node), []).append(node)
    return found


LITERALS = [
    *map(ast.NumberLiteral, ("0", "1", "2", "3", "0.5", "1e-5", "9007199254740991")),
    *map(ast.Name, ("true", "false", "none", "inf", "all", "causal", "x", "gelu")),
]


def choose_other_node(rng: random.Random, family: Any) -> Any:
    """Return a node of the family from one of some random built-in specs; None if they have none."""
    if family == "expr" and rng.random() < 0.03:
        return rng.choice(LITERALS)
    paths = rng.sample(list(list_spec_paths().values()), 8)
    return next((rng.choice(n) for p in paths if (n := collect_nodes(p).get(family))), None)


def mutate_tree(rng: random.Random, file: ast.File) -> ast.File:
    """Replace some nodes by nodes of the same family or by their children; drop some list items."""
    for _ in range(rng.randint(1, 3)):
        targets = [n for n in iterate_nodes(file) if not isinstance(n, ast.File | ast.Comments)]
        if not targets:
            return file
        target = rng.choice(targets)
        others = [
            n
            for n in iterate_nodes(target)
            if get_node_family(n) == get_node_family(target) and n is not target
        ]
        is_own = others and rng.random() < 0.2
        new = None if is_own else choose_other_node(rng, get_node_family(target))
        if new is None:  # a rare section has other nodes of its kind at most
            new = rng.choice(others or [target])
        file = _replaced(file, target, new, drop=rng.random() < 0.15)
    return file


def _replaced(node: Any, target: Any, new: Any, *, drop: bool) -> Any:
    if node is target:
        return new
    if isinstance(node, tuple):
        return tuple(
            _replaced(n, target, new, drop=drop) for n in node if not (drop and n is target)
        )
    if dataclasses.is_dataclass(node) and type(node).__module__ == ast.__name__:
        if isinstance(node, ast.Call) and node.function is target and not isinstance(new, ast.Name):
            return node  # no syntax can express this
        drop = drop and not isinstance(node, ast.Compare | ast.ScanLoop)
        fields = [f.name for f in dataclasses.fields(node) if not f.name.endswith("span")]
        return dataclasses.replace(
            node, **{n: _replaced(getattr(node, n), target, new, drop=drop) for n in fields}
        )  # type: ignore[type-var]
    return node


# --- mutants and their checks ----------------------------------------------------------


def make_mutant(seed: int) -> SpecMutant:
    """Return the mutant of a seed: one spec of the corpus, mutated in one of three ways."""
    rng = random.Random(seed)
    name, file = choose_spec(rng)
    write = format_dsl if name.endswith(".specc") else format_yaml
    match seed % 4:
        case 0:
            return SpecMutant(name, mutate_bytes(rng, write(file).encode()))
        case 1:
            return SpecMutant(name, mutate_words(rng, write(file)).encode(errors="surrogatepass"))
        case _:
            made = write(mutate_tree(rng, file))
            return SpecMutant(name, made.encode(errors="surrogatepass"))


def _choose_model(number: int) -> str:
    """Return the next spec with a graph after a number of built-in specs."""
    paths = list_spec_paths()
    names = [*[*paths][number % len(paths) :], *paths]
    trees = ((name, read_spec_file(paths[name], paths[name].name)) for name in names)
    return next(
        name
        for name, file in trees
        if any(isinstance(i, ast.Block) and i.kind == "graph" for i in file.items)
    )


def choose_small_value(entry: ast.ConfigField, path: str) -> Dim | None:
    """Return a small value for a field that needs one: few layers, and a value for fields without
    default.
    """
    if entry.type.name != "int" or entry.type.optional:
        return None
    if "layers" in path or "heads" in path:
        return Dim.from_value(2)
    return Dim.from_value(8) if entry.default is None else None


def elaborate_mutant(mutant: SpecMutant, *, thorough: bool = False) -> None:
    """Read and elaborate a mutant with few layers. Raise SpeccError at most.

    A mutant of a std file replaces that file, and a built-in model is elaborated with it.
    """
    module = build_module(parse_spec(decode_spec(mutant.data, mutant.name)), mutant.name)
    module.directory = get_specs_directory() / "models"
    files = open_library()
    if (get_specs_directory() / "std" / f"{Path(mutant.name).stem}.specc").exists():
        files = SpecLibrary()
        module.is_standard = True
        changed = {name: (item, module) for name, item in module.items.items()}
        files.__dict__["_std"] = {**open_library()._std, **changed}
        module = files.load_spec(_choose_model(len(mutant.data)))
    program = build_program(module, files)
    values = {
        p: n
        for p, e in collect_fields_by_path(program.iterate_fields()).items()
        if (n := choose_small_value(e, p)) is not None
    }
    if thorough:
        check_spec_symbolically(program)
    reader = ConfigReadOptions(trial_values=values)
    model = elaborate_model(program, reader)
    context = create_context(program)
    config = evaluate_and_check_config(context, program, reader)
    rules = read_weight_rules(
        program, LexicalScope(context=context, module=program.module, config=config)
    )
    loading.initialize_parameters(model.graph, list_model_parameters(model.graph), rules, 0)
    preprocessing_section.build_preprocessing_config(program, model)
