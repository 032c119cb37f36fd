"""Write specs in their canonical form, in place."""

import difflib
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.files.read import shown
from specc.files.write import atomic_write
from specc.lang.dsl.write import write
from specc.lang.yaml.write import write_yaml
from specc.library.files import read_file


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files", nargs="+", metavar="SPEC", help="a spec file, .specc or .yaml"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit code 1 if a file would change",
    )
    parser.add_argument(
        "--diff", action="store_true", help="change nothing; show what would change"
    )


def run(given: Namespace) -> int:
    """Format each file; say which changed."""
    changed = 0
    for name in given.files:
        path = Path(name)
        tree = read_file(path, name)
        text = write(tree) if path.suffix == ".specc" else write_yaml(tree)
        assert tree.span is not None
        old = tree.span.source.text
        if text == old:
            continue
        changed += 1
        if given.diff:
            called = shown(name)
            sys.stdout.writelines(
                difflib.unified_diff(
                    old.splitlines(True), text.splitlines(True), called, called
                )
            )
        elif given.check:
            print(f"{shown(name)} would be reformatted", file=sys.stderr)
        else:
            atomic_write(path, [text.encode()])
            print(f"{shown(name)} reformatted", file=sys.stderr)
    return 1 if changed and given.check else 0
