"""Expand a spec into a self-contained one with the same graphs (`specc expand`)."""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator

from specc.cli.options import (
    FORCE_OPTION,
    add_option_groups,
    add_spec_arguments,
    make_output_option,
    open_spec_from_arguments,
)
from specc.cli.terminal import print_json_result, print_note
from specc.diagnostics.diagnostic import Failed
from specc.diagnostics.source import Source
from specc.driver.spec_loader import OpenedSpec, elaborate_other_graphs, open_spec
from specc.frontend.standalone_spec import (
    build_renamed_standalone_spec,
    build_standalone_spec,
    merge_extends_chain,
)
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import SPEC_OUTPUT, resolve_output_path
from specc.ir.graph import Graph
from specc.ir.ir_printer import format_ir as format_ir
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.yaml.yaml_printer import print_yaml


def expand_spec(spec: OpenedSpec) -> tuple[ast.File, tuple[str, ...]]:
    """Return the spec as one standalone file, and notes about renamed or kept names.

    The graphs of the result equal those of the spec, node for node. If a name of the spec
    shadows one that std uses, the spec's name is renamed; if that fails, calls to std stay
    calls. Raise E0982 for values that only an instance can give.
    """
    expected = _graphs_as_text(spec)
    for file, notes in _candidate_files(spec):
        if _graphs_of_file(file, spec) == expected:
            return file, notes
    raise AssertionError(f"the expanded {spec.program.name} builds other graphs")


def _candidate_files(spec: OpenedSpec) -> Iterator[tuple[ast.File, tuple[str, ...]]]:
    """Yield candidate files with their notes, the most self-contained first."""
    yield build_standalone_spec(spec.program, spec.library), ()
    file, renamed = build_renamed_standalone_spec(spec.program, spec.library)
    yield (
        file,
        tuple(
            f"config value `{old}` is renamed to `{new}`: std has another `{old}`"
            for old, new in renamed.items()
        ),
    )
    stays = "calls to std are not expanded: names would clash"
    yield merge_extends_chain(spec.program), (stays,)


def _graphs_as_text(spec: OpenedSpec) -> list[str]:
    """Return every graph of a spec as text, or outlines from trial config values if some
    values are missing. Raise the errors of `check` if no graph can be built.
    """
    if graphs := list(elaborate_other_graphs(spec, "")):
        return [*map(format_ir, graphs)]
    trials = check_spec_symbolically(spec.program, spec.library, "")
    return [_outline_graph(trial.model.graph) for trial in trials]


def _outline_graph(graph: Graph) -> str:
    """Return the operations, shapes and weights of a graph with symbolic sizes as text."""
    weights = [f"{name} {value.type}" for name, value in graph.parameters.items()]
    nodes = [f"{n.op.name} {[str(r.type) for r in content]}" for n, content in graph.nodes]
    return "\n".join((*weights, *nodes))


def _graphs_of_file(file: ast.File, spec: OpenedSpec) -> list[str]:
    """Return the graphs of `file` at the path of `spec`; empty if it is invalid."""
    path = spec.program.module.path
    try:
        return _graphs_as_text(open_spec(Source(path, print_dsl(file)), library=spec.library))
    except Failed:
        return []


def add_expand_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc expand`."""
    add_spec_arguments(parser)
    output = make_output_option(
        "FILE", "output file, .specc or .yaml (default: standard output as .specc)"
    )
    add_option_groups(parser, output={**output, **FORCE_OPTION})


def run_expand(args: Namespace) -> int:
    """Print it, or write it with -o."""
    spec = open_spec_from_arguments(args)
    file, notes = expand_spec(spec)
    for line in notes:
        print_note(line)
    yaml = args.output.endswith((".yaml", ".yml"))
    text = print_yaml(file) if yaml else print_dsl(file)
    if not args.output:
        if not print_json_result("expand", {"file": None, "text": text, "notes": notes}):
            print(text, end="")
        return 0
    content = text.encode()
    input_paths = [*map(str, spec.library.modules)]
    output_path = resolve_output_path(
        args.output, SPEC_OUTPUT, inputs=input_paths, force=args.force, content=content
    )
    write_file_atomically(output_path, [content])
    print_json_result("expand", {"file": args.output, "text": None, "notes": notes})
    return 0
