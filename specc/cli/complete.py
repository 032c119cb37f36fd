"""What may stand at a place of the command line: asked by completion scripts, a word a line."""

from argparse import ArgumentParser, Namespace

from specc.compiler.spec import open_spec
from specc.library.files import shipped
from specc.text.codes import CODES
from specc.text.diagnostic import Failed

KINDS = ("specs", "codes", "set")


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("spec", nargs="?", default="", metavar="SPEC")


def run(given: Namespace) -> int:
    """Print the words; none where there is no such spec, since nobody sees a message."""
    for word in _words(given.kind, given.spec):
        print(word)
    return 0


def _words(kind: str, spec: str) -> list[str]:
    if kind == "specs":
        return sorted(shipped())
    if kind == "codes":
        return sorted(CODES)
    try:
        fields = open_spec(spec).program.paths() if spec else {}
    except Failed:
        return []
    return [f"{name}=" for name in fields]
