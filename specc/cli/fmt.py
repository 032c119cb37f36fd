"""Write specs in their canonical form, in place."""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.cli.messages import answer, done, manner
from specc.cli.standard_input import STDIN, spec_text
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.lang.dsl.write import write
from specc.lang.read import read, syntax
from specc.lang.yaml.write import write_yaml
from specc.library.files import read_file
from specc.text.codes import exit_status
from specc.text.diagnostic import Diagnostic, Failed
from specc.text.programs import record


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="SPEC",
        help="a spec file, .specc or .yaml; - for one from stdin to stdout",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit code 1 if a file would change",
    )
    parser.add_argument(
        "--diff", action="store_true", help="change nothing; show what would change"
    )


def print_difference(called: str, old: str, new: str) -> None:
    """Print what formatting would change in a file, as a unified diff."""
    lines = (old.splitlines(True), new.splitlines(True))
    sys.stdout.writelines(difflib.unified_diff(*lines, called, called))


def run(given: Namespace) -> int:
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
        "faults": [record(fault) for fault in faults],
    }
    if answer("fmt", told):
        return exit_status(fault.code for fault in faults)
    if faults:
        raise Failed(*faults)
    if text is not None:
        sys.stdout.write(text)
    return 0


def _uneven(name: str) -> Diagnostic:
    """What `--check` says of a file that would change: E0984."""
    called = shown(name)
    mend = f"run `specc fmt {called}`"
    return Diagnostic(
        "E0984", f"`{called}` is not in its canonical form", helps=(mend,)
    )


def _formatted(name: str) -> tuple[str, str]:
    """The text of a file, and its canonical form."""
    tree = read(spec_text()) if name == STDIN else read_file(Path(name), name)
    assert tree.span is not None
    source = tree.span.source
    is_dsl = syntax(source) == "specc"
    return source.text, write(tree) if is_dsl else write_yaml(tree)


def _tell(name: str, old: str, new: str, given: Namespace) -> None:
    """Write a file anew, or show how it would be."""
    called = shown(name)
    if given.diff and not manner().for_programs:
        print_difference(called, old, new)
    elif not (given.check or given.diff):
        atomic_write(Path(name), [new.encode()])
        done(f"{called} reformatted", aside=True)
