"""Write a spec as one that stands alone: an instance with what it extends, blocks of std
written down.
"""

from argparse import ArgumentParser, Namespace

from specc.cli.messages import answer, remark
from specc.cli.spec_options import FORCE, spec_arguments, spec_of
from specc.compiler.expanding import expanded
from specc.files.place import SPEC, place
from specc.files.write import atomic_write
from specc.lang.dsl.write import write
from specc.lang.yaml.write import write_yaml


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    spec_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="where to, .specc or .yaml; stdout otherwise, as .specc",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def run(given: Namespace) -> int:
    """Print it, or write it with -o."""
    spec = spec_of(given)
    file, told = expanded(spec)
    for line in told:
        remark(line)
    yaml = given.output.endswith((".yaml", ".yml"))
    text = write_yaml(file) if yaml else write(file)
    if not given.output:
        if not answer("expand", {"file": None, "text": text, "notes": told}):
            print(text, end="")
        return 0
    made = text.encode()
    named = [str(path) for path in spec.library.modules]
    target = place(given.output, SPEC, inputs=named, force=given.force, content=made)
    atomic_write(target, [made])
    answer("expand", {"file": given.output, "text": None, "notes": told})
    return 0
