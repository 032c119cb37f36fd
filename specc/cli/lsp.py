"""Run the language server over stdin and stdout: diagnostics, hover, completion and more."""

import logging
import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec

from specc.diagnostics.diagnostic import raise_error
from specc.library.spec_files import get_specs_directory


def add_lsp_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc lsp`."""
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of specs in YAML and exit"
    )
    # editors pass `--stdio`, although no other transport is supported
    parser.add_argument(
        "--stdio", action="store_true", help="ignored; the server always uses stdin and stdout"
    )


def execute_lsp(args: Namespace) -> int:
    """Serve until the client disconnects."""
    if args.schema:
        print((get_specs_directory() / "schema.json").read_text(encoding="utf-8"), end="")
        return 0
    if find_spec("pygls") is None:
        raise_error(
            "E0968",
            "the language server needs the package pygls",
            helps=["pip install -e '.[lsp]'"],
        )
    # imported here, because the import takes a third of a second and no other command needs it
    from specc.lsp.server import SpeccLanguageServer

    if sys.stdin.isatty():
        # a user started the server in a terminal: explain that an editor connects to it
        print("waiting for an editor on stdin; Ctrl-D ends it", file=sys.stderr)
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # text on stdout would corrupt the protocol messages
    sys.stdout = sys.stderr
    if error := SpeccLanguageServer().serve(stdin, stdout):
        print(error, file=sys.stderr)
    # the protocol requires this exit status if the client sent no shutdown request
    return 1 if error else 0
