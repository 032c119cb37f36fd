"""Convert a spec from one syntax to the other; nothing is lost."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.lang.write import write
from specc.lang.write_yaml import write_yaml
from specc.library import read_file
from specc.output import atomic_write, refuse_overwriting


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("file", metavar="SPEC")
    parser.add_argument("-o", "--output", default="", metavar="FILE", help="where to; stdout otherwise")


def run(given: Namespace) -> int:
    """Write DSL as YAML, YAML as DSL; with -o, what the file name says."""
    tree = read_file(Path(given.file), given.file)
    target = given.output or ("x.yaml" if given.file.endswith(".specc") else "x.specc")
    text = write(tree) if target.endswith(".specc") else write_yaml(tree)
    if given.output:
        refuse_overwriting(given.output, [given.file])
        atomic_write(given.output, [text.encode()])
    else:
        print(text, end="")
    return 0
