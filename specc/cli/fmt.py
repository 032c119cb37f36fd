"""Write specs in their canonical form, in place."""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.cli.messages import done
from specc.cli.standard_input import STDIN, spec_text
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.lang.dsl.write import write
from specc.lang.read import read, syntax
from specc.lang.yaml.write import write_yaml
from specc.library.files import read_file


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
    """Format each file; say which changed."""
    changed = 0
    for name in given.files:
        path = Path(name)
        from_stdin = name == STDIN
        tree = read(spec_text()) if from_stdin else read_file(path, name)
        assert tree.span is not None
        source = tree.span.source
        text = write(tree) if syntax(source) == "specc" else write_yaml(tree)
        old = source.text
        if from_stdin and not (given.check or given.diff):
            sys.stdout.write(text)
            continue
        if text == old:
            continue
        changed += 1
        if given.diff:
            print_difference(shown(name), old, text)
        elif given.check:
            done(f"{shown(name)} would be reformatted", aside=True)
        else:
            atomic_write(path, [text.encode()])
            done(f"{shown(name)} reformatted", aside=True)
    return 1 if changed and given.check else 0
