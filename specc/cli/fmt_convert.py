"""Rewrite specs: `specc fmt` and `specc convert`, which also converts GloVe word vectors."""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from specc.cli.options import FORCE_OPTION, add_option_groups, make_output_option
from specc.cli.terminal import (
    STDIN_NAME,
    get_output_style,
    print_done,
    print_json_result,
    read_spec_from_stdin,
)
from specc.diagnostics.codes import compute_exit_status
from specc.diagnostics.diagnostic import Diagnostic, Failed, raise_error
from specc.diagnostics.machine_formats import diagnostic_to_json
from specc.driver.option_kinds import BOOLEAN_OPTION, Option
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import (
    SPEC_OUTPUT,
    VOCABULARY_OUTPUT,
    WEIGHTS_OUTPUT,
    resolve_output_path,
)
from specc.io.safe_read import escape_text
from specc.library.spec_reader import read_spec_file
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import detect_syntax, parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml

FMT_OPTIONS = {
    "check": Option(BOOLEAN_OPTION, "", "change nothing; exit status 1 if a file would change"),
    "diff": Option(BOOLEAN_OPTION, "", "change nothing; print the differences"),
}


def add_fmt_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc fmt`."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="SPEC",
        help="spec files, .specc or .yaml; - formats the standard input",
    )
    add_option_groups(parser, output=FMT_OPTIONS)


def print_difference(name_shown: str, old: str, new: str) -> None:
    """Print what formatting would change in a file, as a unified diff."""
    lines = (old.splitlines(True), new.splitlines(True))
    sys.stdout.writelines(difflib.unified_diff(*lines, name_shown, name_shown))


def run_fmt(args: Namespace) -> int:
    """Format each file; print which changed. Standard input is formatted to standard output."""
    changed, text = [], None
    written = not (args.check or args.diff)
    for name in args.files:
        old, new = _format_file(name)
        if name == STDIN_NAME and written:
            text = new
        elif new != old:
            changed.append(name)
            _write_or_diff(name, old, new, args)
    errors = list(map(_build_format_error, changed)) if args.check else []
    result = {
        "changed": changed,
        "written": written,
        "text": text,
        "diagnostics": [*map(diagnostic_to_json, errors)],
    }
    if print_json_result("fmt", result):
        return compute_exit_status(fault.code for fault in errors)
    if errors:
        raise Failed(*errors)
    if text is not None:
        sys.stdout.write(text)
    return 0


def _build_format_error(name: str) -> Diagnostic:
    """Return the E0984 diagnostic of `--check` for a file that would change."""
    name_shown = escape_text(name)
    fix = f"run `specc fmt {name_shown}`"
    return Diagnostic("E0984", f"`{name_shown}` is not in its canonical form", helps=(fix,))


def _format_file(name: str) -> tuple[str, str]:
    """Return the text of a file, and its canonical form."""
    tree = (
        parse_spec(read_spec_from_stdin())
        if name == STDIN_NAME
        else read_spec_file(Path(name), name)
    )
    assert tree.span is not None
    source = tree.span.source
    is_dsl = detect_syntax(source) == "specc"
    return source.text, print_dsl(tree) if is_dsl else print_yaml(tree)


def _write_or_diff(name: str, old: str, new: str, args: Namespace) -> None:
    """Rewrite a file, or print its formatted content."""
    name_shown = escape_text(name)
    if args.diff and not get_output_style().is_machine_readable:
        print_difference(name_shown, old, new)
    elif not (args.check or args.diff):
        write_file_atomically(Path(name), [new.encode()])
        print_done(f"{name_shown} reformatted", aside=True)


def add_convert_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc convert`."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a spec, - for the standard input, or word vectors in GloVe's text format (.txt)",
    )
    output = make_output_option("FILE", "output file (default: standard output)")
    add_option_groups(parser, output={**output, **FORCE_OPTION})


def run_convert(args: Namespace) -> int:
    """Convert DSL to YAML and back; with -o, by the file suffix."""
    if args.file.endswith(".txt"):
        return convert_glove_vectors(args.file, args.output, force=args.force)
    from_stdin = args.file == STDIN_NAME
    tree = (
        parse_spec(read_spec_from_stdin())
        if from_stdin
        else read_spec_file(Path(args.file), args.file)
    )
    assert tree.span is not None
    is_dsl = detect_syntax(tree.span.source) == "specc"
    target = args.output or ("x.yaml" if is_dsl else "x.specc")
    text = print_dsl(tree) if target.endswith(".specc") else print_yaml(tree)
    if args.output:
        inputs = () if from_stdin else (args.file,)
        _write_spec(text.encode(), args.output, inputs, force=args.force)
    files = [args.output] if args.output else []
    result = {"files": files, "text": None if files else text}
    if not print_json_result("convert", result) and not files:
        print(text, end="")
    return 0


def _write_spec(content: bytes, output: str, inputs: Sequence[str], *, force: bool) -> None:
    """Write a spec to its output, never over its source."""
    path = resolve_output_path(output, SPEC_OUTPUT, inputs=inputs, force=force, content=content)
    write_file_atomically(path, [content])


def convert_glove_vectors(source: str, target: str, *, force: bool) -> int:
    """Write the tensor `embedding.weight`, and its words to a .vocab file, one per line."""
    # imported here: formatting a spec needs no arrays
    from specc.weights.formats.glove import DEFAULT_TENSOR, read_glove
    from specc.weights.formats.safetensors import write_safetensors

    if Path(target).suffix != ".safetensors":
        helps = [
            f"specc convert {escape_text(source)} -o {escape_text(Path(source).stem)}.safetensors"
        ]
        raise_error("E0816", "word vectors are converted to a safetensors file", helps=helps)
    vectors = read_glove(source)
    words = Path(target).with_suffix(".vocab")
    vocabulary = "".join(f"{word}\n" for word in vectors.words).encode()
    resolve_output_path(target, WEIGHTS_OUTPUT, inputs=[source], force=force)
    list_of_words = resolve_output_path(
        words, VOCABULARY_OUTPUT, inputs=[source], force=force, content=vocabulary
    )
    write_file_atomically(list_of_words, [vocabulary])
    write_safetensors(target, {DEFAULT_TENSOR: vectors.array}, force=force)
    shape = list(vectors.array.shape)
    if not print_json_result("convert", {"files": [target, str(words)], "text": None}):
        print_done(
            f"{escape_text(target)}: `{DEFAULT_TENSOR}` {shape}; "
            f"{escape_text(words)}: the word of each row"
        )
    return 0
