"""Commands that rewrite specs: `specc fmt`, `specc convert` (which also converts GloVe word
vectors), and `specc expand`, which writes a self-contained spec with the same graphs.
"""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from specc.cli.options import (
    FORCE_OPTION,
    add_option_groups,
    add_spec_arguments,
    make_output_option,
    open_spec_from_arguments,
)
from specc.cli.terminal import (
    STDIN_NAME,
    get_output_settings,
    print_json_result,
    print_note,
    print_result_line,
    read_spec_from_stdin,
    write_output,
)
from specc.diagnostics.diagnostic import Diagnostic, Source, SpeccError, raise_error
from specc.diagnostics.machine_formats_and_exit_codes import compute_exit_code, diagnostic_to_json
from specc.driver.option_kinds import BOOLEAN_OPTION, Option
from specc.driver.spec_check_and_elaboration import iterate_sibling_graphs
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.frontend.standalone_spec import (
    build_standalone_spec,
    build_standalone_spec_with_renames,
    list_overridden_source_fields,
    merge_extends_chain,
)
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import (
    SPEC_OUTPUT,
    VOCABULARY_OUTPUT,
    WEIGHTS_OUTPUT,
    resolve_output_path,
)
from specc.io.safe_read import escape_text
from specc.ir.graph import Graph
from specc.ir.ir_printer_and_lexer import format_ir
from specc.library.spec_file_lookup import is_builtin_spec, read_spec_file
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import detect_syntax, parse_spec
from specc.syntax.yaml.yaml_printer import format_yaml

FMT_OPTIONS = {
    "check": Option(
        BOOLEAN_OPTION, "", "do not write files; exit with status 1 if a file is not formatted"
    ),
    "diff": Option(BOOLEAN_OPTION, "", "do not write files; print the differences"),
}


def add_fmt_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc fmt`."""
    parser.add_argument(
        "files", nargs="+", metavar="SPEC", help="spec files (.specc or .yaml), or - for stdin"
    )
    add_option_groups(parser, output=FMT_OPTIONS)


def execute_fmt_command(args: Namespace) -> int:
    """Format spec files in place and print the changed file names. For stdin, print the formatted
    text.
    """
    changed, text = [], None
    is_written = not (args.check or args.diff)
    for name in args.files:
        old_text, new_text = _format_spec(name)
        if name == STDIN_NAME and is_written:
            text = new_text
        elif new_text != old_text:
            changed.append(name)
            _rewrite_or_diff(name, old_text, new_text, args)
    return _report_formatted(changed, text, is_written=is_written, is_check=args.check)


def _report_formatted(
    changed_files: list[str], text: str | None, *, is_written: bool, is_check: bool
) -> int:
    """Print the formatted text of stdin, or a JSON list of the changed files. Raise E0984 if
    `--check` fails.
    """
    errors = list(map(_build_format_error, changed_files)) if is_check else []
    result = {
        "changed": changed_files,
        "written": is_written,
        "text": text,
        "diagnostics": [*map(diagnostic_to_json, errors)],
    }
    if print_json_result(result):
        return compute_exit_code(error.code for error in errors)
    if errors:
        raise SpeccError(*errors)
    if text is not None:
        sys.stdout.write(text)
    return 0


def _format_spec(name: str) -> tuple[str, str]:
    """Return the text of a spec before and after formatting in the syntax of the file."""
    tree, source = _read_spec(name)
    printer = format_dsl if detect_syntax(source) == "specc" else format_yaml
    return source.text, printer(tree)


def _build_format_error(name: str) -> Diagnostic:
    """Return the diagnostic E0984 of `--check` for a file that formatting would change."""
    escaped_name = escape_text(name)
    fix = f"run `specc fmt {escaped_name}`"
    return Diagnostic("E0984", f"`{escaped_name}` is not in its canonical form", helps=(fix,))


def _read_spec(name: str) -> tuple[ast.File, Source]:
    """Return the syntax tree and the source of a spec file or of stdin."""
    is_stdin = name == STDIN_NAME
    if not Path(name).exists() and is_builtin_spec(name):
        raise_error(
            "E0802",
            f"`{name}` is a built-in spec, but this command expects a spec file",
            helps=[f"write it to a file first: `specc expand {name} -o {name}.specc`"],
        )
    tree = parse_spec(read_spec_from_stdin()) if is_stdin else read_spec_file(Path(name), name)
    assert tree.span is not None
    return tree, tree.span.source


def _rewrite_or_diff(name: str, old_text: str, new_text: str, args: Namespace) -> None:
    """Rewrite a file or, with `--diff`, print the differences between old and new text."""
    escaped_name = escape_text(name)
    if args.diff and not get_output_settings().is_machine_readable:
        lines = (old_text.splitlines(True), new_text.splitlines(True))
        sys.stdout.writelines(difflib.unified_diff(*lines, escaped_name, escaped_name))
    elif not (args.check or args.diff):
        write_file_atomically(Path(name), [new_text.encode()])
        print_result_line(f"{escaped_name} reformatted", to_stderr=True)


def add_convert_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc convert`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="spec, - for stdin, or word vectors in the text format of GloVe (.txt)",
    )
    output = make_output_option("FILE", "output file (default: stdout)")
    add_option_groups(parser, output={**output, **FORCE_OPTION})


def execute_convert_command(args: Namespace) -> int:
    """Convert DSL to YAML or YAML to DSL. The suffix of the `-o` file selects the output syntax."""
    if args.file.endswith(".txt"):
        return convert_glove_vectors(args.file, args.output, force=args.force)
    tree, source = _read_spec(args.file)
    to_dsl = args.output.endswith(".specc") if args.output else detect_syntax(source) == "yaml"
    text = format_dsl(tree) if to_dsl else format_yaml(tree)
    if args.output:
        inputs = () if args.file == STDIN_NAME else (args.file,)
        write_output(args.output, SPEC_OUTPUT, text.encode(), inputs=inputs, force=args.force)
    files = [args.output] if args.output else []
    result = {"files": files, "text": None if files else text}
    if not print_json_result(result) and not files:
        print(text, end="")
    return 0


def convert_glove_vectors(source: str, target: str, *, force: bool) -> int:
    """Convert GloVe vectors to a tensor `embedding.weight` and a .vocab file with the words."""
    # import lazily, because formatting a spec does not need NumPy
    from specc.weights.formats.glove import DEFAULT_TENSOR, read_glove
    from specc.weights.formats.safetensors import write_safetensors

    if Path(target).suffix != ".safetensors":
        helps = [
            f"specc convert {escape_text(source)} -o {escape_text(Path(source).stem)}.safetensors"
        ]
        raise_error(
            "E0816", "word vectors can be converted only to a .safetensors file", helps=helps
        )
    vectors = read_glove(source)
    vocabulary_path = Path(target).with_suffix(".vocab")
    vocabulary = "".join(f"{word}\n" for word in vectors.words).encode()
    resolve_output_path(target, WEIGHTS_OUTPUT, inputs=[source], force=force)
    write_output(vocabulary_path, VOCABULARY_OUTPUT, vocabulary, inputs=[source], force=force)
    write_safetensors(target, {DEFAULT_TENSOR: vectors.vectors}, force=force)
    shape = list(vectors.vectors.shape)
    if not print_json_result({"files": [target, str(vocabulary_path)], "text": None}):
        print_result_line(
            f"{escape_text(target)}: tensor `{DEFAULT_TENSOR}` {shape}; "
            f"{escape_text(vocabulary_path)}: the words, one per row"
        )
    return 0


def expand_spec(
    spec: LoadedSpec, *, keep_sources: bool = False
) -> tuple[ast.File, tuple[str, ...]]:
    """Return the spec as one standalone file, and notes on renamed or kept names.

    The resulting graphs equal the spec's graphs node for node. Names of the spec that shadow a std
    name are renamed if std blocks use that name. If renaming fails, calls of std blocks are not
    inlined. Fields with an assigned value keep `from` only if `keep_sources` is true. Raise E0982
    for values that only a derived spec can provide.
    """
    expected = _format_graphs(spec)
    for file, notes in _iterate_candidate_files(spec, keep_sources):
        if _build_graphs_of_file(file, spec) == expected:
            return file, (*notes, *([] if keep_sources else _note_dropped_sources(spec)))
    raise AssertionError(f"expansion changes the graphs of {spec.program.name}")


def _note_dropped_sources(spec: LoadedSpec) -> Iterator[str]:
    """Yield a note on the fields with a value in the spec: config.json no longer overrides them."""
    if paths := list_overridden_source_fields(spec.program):
        yield (
            f"config values that the spec sets are no longer read from config.json: "
            f"{', '.join(paths)}; --keep-from keeps their `from`"
        )


def _iterate_candidate_files(
    spec: LoadedSpec, keeps_sources: bool
) -> Iterator[tuple[ast.File, tuple[str, ...]]]:
    """Yield candidate expansions of a spec together with notes, the most self-contained first."""
    program = spec.program
    yield build_standalone_spec(program, keep_sources=keeps_sources), ()
    file, new_names = build_standalone_spec_with_renames(program, keep_sources=keeps_sources)
    yield (
        file,
        tuple(
            f"config value `{old}` is renamed to `{new}`, because std also defines `{old}`"
            for old, new in new_names.items()
        ),
    )
    note = "blocks of std are called, not inlined, because of name conflicts"
    yield merge_extends_chain(program, keep_sources=keeps_sources), (note,)


def _format_graphs(spec: LoadedSpec) -> list[str]:
    """Return the IR of each graph of a spec as a string. If config values are missing, build the
    graphs with symbolic dimensions and trial values, and return outlines of the graphs. Raise the
    same errors as `specc check` if no graph can be built.
    """
    if graphs := list(iterate_sibling_graphs(spec, "")):
        return [*map(format_ir, graphs)]
    trials = check_spec_symbolically(spec.program, "")
    return [_outline_graph(trial.model.graph) for trial in trials]


def _outline_graph(graph: Graph) -> str:
    """Format an outline of a graph with symbolic dimensions: its ops, shapes and weights."""
    weights = [f"{name} {value.type}" for name, value in graph.parameters.items()]
    nodes = [
        f"{node.op.name} {[str(value.type) for value in results]}" for node, results in graph.nodes
    ]
    return "\n".join((*weights, *nodes))


def _build_graphs_of_file(file: ast.File, spec: LoadedSpec) -> list[str]:
    """Return the formatted graphs of `file`, or [] if `file` is invalid. Paths in `file` are
    relative to the path of `spec`.
    """
    path = spec.program.module.path
    try:
        return _format_graphs(open_spec(Source(path, format_dsl(file)), library=spec.library))
    except SpeccError:
        return []


KEEP_FROM_OPTION = {
    "keep_from": Option(
        BOOLEAN_OPTION,
        "",
        "keep `from` of config values that the derived spec sets, so that a value in config.json "
        "takes precedence",
    )
}
"""The option `--keep-from` of `specc expand`, which helps to draft specs for new model types."""


def add_expand_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc expand`."""
    add_spec_arguments(parser)
    output = make_output_option("FILE", "output file, .specc or .yaml (default: stdout, as .specc)")
    add_option_groups(parser, output={**output, **KEEP_FROM_OPTION, **FORCE_OPTION})


def execute_expand_command(args: Namespace) -> int:
    """Print the expanded spec, or write it to the file given by `-o`."""
    spec = open_spec_from_arguments(args)
    file, notes = expand_spec(spec, keep_sources=args.keep_from)
    for note in notes:
        print_note(note)
    is_yaml = args.output.endswith((".yaml", ".yml"))
    text = format_yaml(file) if is_yaml else format_dsl(file)
    if not args.output:
        if not print_json_result({"file": None, "text": text, "notes": notes}):
            print(text, end="")
        return 0
    write_output(
        args.output, SPEC_OUTPUT, text.encode(), inputs=spec.library.modules, force=args.force
    )
    print_json_result({"file": args.output, "text": None, "notes": notes})
    return 0
