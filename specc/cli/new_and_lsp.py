"""The commands `specc new` and `specc lsp`. `specc new` writes a commented spec that extends a
built-in spec, or a draft spec for a checkpoint directory. `specc lsp` runs the language server over
stdin and stdout.
"""

import logging
import re
import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path

from specc.cli.options import FORCE_OPTION, add_option_groups
from specc.cli.terminal import print_json_result, print_result_line, write_output
from specc.diagnostics.diagnostic import raise_error
from specc.driver.option_kinds import BOOLEAN_OPTION, STRING_OPTION, Option
from specc.driver.spec_draft import (
    SCHEMA_FILE,
    DerivedSpec,
    SpecDraft,
    build_derived_spec_ast,
    draft_spec,
)
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import NEW_SPEC_OUTPUT, resolve_output_path
from specc.io.safe_read import escape_text, quote_argument
from specc.library.spec_file_lookup import get_specs_directory
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.yaml.yaml_printer import format_yaml

SCHEMA_MODELINE = f"yaml-language-server: $schema=./{SCHEMA_FILE}"
REMOVE_FIELD_COMMENT = (
    "These values are the defaults. Change the values that you need and delete the others."
)
UNCOMMENT_FIELD_COMMENT = (
    "Commented-out values are computed from other fields. Remove the # to override them."
)

INPUT_OPTIONS = {
    "directory": Option(
        STRING_OPTION,
        "DIR",
        "draft a spec from the config.json and the tensor names of a checkpoint",
        "--from-checkpoint",
    )
}
OUTPUT_OPTIONS = {
    "no_schema": Option(
        BOOLEAN_OPTION,
        "",
        f"do not add the schema comment for editors, and do not write {SCHEMA_FILE}",
    ),
    **FORCE_OPTION,
}


def add_new_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc new`."""
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SPEC FILE",
        help="built-in spec to extend (see `specc list specs`), and the file to write (.yaml "
        "or .specc); with --from-checkpoint only the file",
    )
    add_option_groups(parser, input=INPUT_OPTIONS, output=OUTPUT_OPTIONS)


def execute_new_command(args: Namespace) -> int:
    """Write the new spec, and print the command to run next."""
    *names, path = args.words
    _check_argument_count(len(names), args.directory)
    # first check whether the output can be written
    resolve_output_path(path, NEW_SPEC_OUTPUT, force=args.force)
    is_yaml = not path.lower().endswith(".specc")
    name = sanitize_spec_name(Path(path).stem)
    schema_comments = (SCHEMA_MODELINE,) if is_yaml and not args.no_schema else ()
    draft = None
    if args.directory:
        draft = draft_spec(args.directory, name, schema_comments)
        file = draft.file
    else:
        base = names[0]
        comments = (f"Derived from {base}.", REMOVE_FIELD_COMMENT, UNCOMMENT_FIELD_COMMENT)
        derived_spec = DerivedSpec(
            name=name,
            extends=base,
            header_comments=(*schema_comments, *comments),
            footer_comments=_format_next_steps(is_yaml),
            comment_separator=": " if is_yaml else " = ",
        )
        file = build_derived_spec_ast(derived_spec)
    text = format_yaml(file) if is_yaml else format_dsl(file)
    write_output(path, NEW_SPEC_OUTPUT, text.encode(), force=args.force)
    if schema_comments:
        _write_schema(Path(path).parent / SCHEMA_FILE)
    if print_json_result({"file": path, "extends": file.extends, "draft": draft_to_json(draft)}):
        return 0
    print_result_line(f"{escape_text(path)}: a spec derived from {file.extends}")
    if draft is not None:
        _print_draft(draft)
    if draft is not None and not draft.is_known_model_type:
        print_result_line(
            f"next: specc expand {quote_argument(path)} --keep-from -o FILE, then follow "
            'docs/families.md, "Adding a model type"'
        )
    else:
        print_result_line(f"next: specc check {quote_argument(path)}")
    return 0


def _write_schema(path: Path) -> None:
    """Write the JSON Schema of YAML specs unless the file exists."""
    if not path.exists():
        write_file_atomically(path, [(get_specs_directory() / "schema.json").read_bytes()])


def _check_argument_count(name_count: int, directory: str | None) -> None:
    """Raise E0407 unless the arguments are SPEC and FILE, or FILE with `--from-checkpoint`."""
    if name_count == (0 if directory else 1):
        return
    expected = (
        "one argument with --from-checkpoint, the file to write"
        if directory
        else "two arguments, a built-in spec and the file to write"
    )
    raise_error(
        "E0407",
        f"`specc new` expects {expected}",
        helps=["specc new vit my.yaml", "specc new my.yaml --from-checkpoint checkpoint/"],
    )


def draft_to_json(draft: SpecDraft | None) -> dict[str, object] | None:
    """Return the properties of a draft spec as a JSON object, or None if there is no draft."""
    if draft is None:
        return None
    return {
        "graph": draft.graph_name,
        "changed_values": draft.value_count,
        "is_supported": draft.is_known_model_type,
        "unmapped": [*draft.unmapped],
    }


def sanitize_spec_name(stem: str) -> str:
    """Convert the stem of a file name to a valid spec name."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    return name if name[:1].isalpha() else f"my_{name}"


def _format_next_steps(is_yaml: bool) -> tuple[str, ...]:
    """Return comments that describe the next steps after `specc new`."""
    comment = "Trained weights for `specc compile` (path relative to this file):"
    if is_yaml:
        return (comment, "weights:", "  - from: my.safetensors")
    return (comment, 'weights { from "my.safetensors" }')


def _print_draft(draft: SpecDraft) -> None:
    """Print the graph of a draft and the number of its config values, and list the unmapped config
    keys and tensors.
    """
    count = f"{draft.value_count} config values differ from the defaults"
    print_result_line(f"graph: {draft.graph_name}; {count}")
    if not draft.is_known_model_type:
        print_result_line(
            "no built-in spec supports this model type; this draft is based on the most "
            "similar spec, so review it"
        )
    unmapped = [f"  {escape_text(line)}" for line in draft.unmapped]
    heading = "unmapped keys and tensors:" if unmapped else "every key and tensor is mapped"
    print_result_line("\n".join([heading, *unmapped]))


def add_lsp_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc lsp`."""
    parser.add_argument(
        "--schema", action="store_true", help="print the JSON Schema of specs in YAML and exit"
    )
    # editors pass `--stdio` by convention, and the server supports no other transport
    parser.add_argument(
        "--stdio", action="store_true", help="ignored; the server always uses stdin and stdout"
    )


def execute_lsp_command(args: Namespace) -> int:
    """Run the language server until the client disconnects."""
    if args.schema:
        print((get_specs_directory() / "schema.json").read_text(encoding="utf-8"), end="")
        return 0
    if find_spec("pygls") is None:
        raise_error(
            "E0968",
            "the language server requires the package pygls",
            helps=["pip install -e '.[lsp]'"],
        )
    # import lazily, because the import takes a third of a second
    from specc.lsp.server import SpeccLanguageServer

    if sys.stdin.isatty():
        # if a user starts the server in a terminal, print a note that it waits for an editor
        print("waiting for an editor on stdin; press Ctrl-D to exit", file=sys.stderr)
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    # text on stdout would corrupt the protocol messages
    sys.stdout = sys.stderr
    if error := SpeccLanguageServer().serve(stdin, stdout):
        print(error, file=sys.stderr)
    # the protocol requires exit status 1 if the client sent no shutdown request
    return 1 if error else 0
