"""Format specs in place."""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.cli.standard_input import STDIN, read_spec_from_stdin
from specc.cli.terminal import output_style, print_done, print_json_result
from specc.diagnostics.codes import compute_exit_status
from specc.diagnostics.diagnostic import Diagnostic, Failed
from specc.diagnostics.machine_formats import diagnostic_to_json
from specc.io.atomic_write import write_file_atomically
from specc.io.safe_read import escape_text
from specc.library.spec_files import read_spec_file
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import detect_syntax, parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml


def add_fmt_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="SPEC",
        help="spec files, .specc or .yaml; - formats the standard input",
    )
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if a file would change"
    )
    parser.add_argument("--diff", action="store_true", help="change nothing; print the differences")


def print_difference(called: str, old: str, new: str) -> None:
    """Print what formatting would change in a file, as a unified diff."""
    lines = (old.splitlines(True), new.splitlines(True))
    sys.stdout.writelines(difflib.unified_diff(*lines, called, called))


def run_fmt(given: Namespace) -> int:
    """Format each file; say which changed. What came by stdin goes out by stdout."""
    changed, text = [], None
    written = not (given.check or given.diff)
    for name in given.files:
        old, new = _formatted(name)
        if name == STDIN and written:
            text = new
        elif new != old:
            changed.append(name)
            _tell(name, old, new, given)
    faults = list(map(_uneven, changed)) if given.check else []
    told = {
        "changed": changed,
        "written": written,
        "text": text,
        "faults": [diagnostic_to_json(fault) for fault in faults],
    }
    if print_json_result("fmt", told):
        return compute_exit_status(fault.code for fault in faults)
    if faults:
        raise Failed(*faults)
    if text is not None:
        sys.stdout.write(text)
    return 0


def _uneven(name: str) -> Diagnostic:
    """What `--check` says of a file that would change: E0984."""
    called = escape_text(name)
    mend = f"run `specc fmt {called}`"
    return Diagnostic("E0984", f"`{called}` is not in its canonical form", helps=(mend,))


def _formatted(name: str) -> tuple[str, str]:
    """The text of a file, and its canonical form."""
    tree = parse_spec(read_spec_from_stdin()) if name == STDIN else read_spec_file(Path(name), name)
    assert tree.span is not None
    source = tree.span.source
    is_dsl = detect_syntax(source) == "specc"
    return source.text, print_dsl(tree) if is_dsl else print_yaml(tree)


def _tell(name: str, old: str, new: str, given: Namespace) -> None:
    """Write a file anew, or show how it would be."""
    called = escape_text(name)
    if given.diff and not output_style().for_programs:
        print_difference(called, old, new)
    elif not (given.check or given.diff):
        write_file_atomically(Path(name), [new.encode()])
        print_done(f"{called} reformatted", aside=True)
