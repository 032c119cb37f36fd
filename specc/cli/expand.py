"""Expand a spec into a self-contained one: with its base specs and standard library blocks."""

from argparse import ArgumentParser, Namespace

from specc.cli.common_options import FORCE, add_spec_arguments, open_spec_from_arguments
from specc.cli.terminal import print_json_result, print_note
from specc.driver.expand_spec import expand_spec
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import SPEC_OUTPUT, resolve_output_path
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.yaml.yaml_printer import print_yaml


def add_expand_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    add_spec_arguments(parser)
    parser.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="output file, .specc or .yaml (default: standard output as .specc)",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def run_expand(given: Namespace) -> int:
    """Print it, or write it with -o."""
    spec = open_spec_from_arguments(given)
    file, told = expand_spec(spec)
    for line in told:
        print_note(line)
    yaml = given.output.endswith((".yaml", ".yml"))
    text = print_yaml(file) if yaml else print_dsl(file)
    if not given.output:
        if not print_json_result("expand", {"file": None, "text": text, "notes": told}):
            print(text, end="")
        return 0
    made = text.encode()
    named = [str(path) for path in spec.library.modules]
    target = resolve_output_path(
        given.output, SPEC_OUTPUT, inputs=named, force=given.force, content=made
    )
    write_file_atomically(target, [made])
    print_json_result("expand", {"file": given.output, "text": None, "notes": told})
    return 0
