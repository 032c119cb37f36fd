"""Convert a spec from .specc to YAML or back without loss, or GloVe word vectors to safetensors."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from specc.cli.common_options import FORCE
from specc.cli.standard_input import STDIN, read_spec_from_stdin
from specc.cli.terminal import print_done, print_json_result
from specc.diagnostics.diagnostic import raise_error
from specc.io.atomic_write import write_file_atomically
from specc.io.output_paths import (
    SPEC_OUTPUT,
    VOCABULARY_OUTPUT,
    WEIGHTS_OUTPUT,
    resolve_output_path,
)
from specc.io.safe_read import escape_text
from specc.library.spec_files import read_spec_file
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.syntax.parse import detect_syntax, parse_spec
from specc.syntax.yaml.yaml_printer import print_yaml
from specc.weights.formats.glove import TENSOR, read_glove
from specc.weights.formats.safetensors import write_safetensors


def add_convert_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a spec, - for the standard input, or word vectors in GloVe's text format (.txt)",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE", help="output file (default: standard output)"
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def run_convert(given: Namespace) -> int:
    """Write DSL as YAML, YAML as DSL; with -o, what the file name says."""
    if given.file.endswith(".txt"):
        return convert_glove_vectors(given.file, given.output, force=given.force)
    from_stdin = given.file == STDIN
    tree = (
        parse_spec(read_spec_from_stdin())
        if from_stdin
        else read_spec_file(Path(given.file), given.file)
    )
    assert tree.span is not None
    is_dsl = detect_syntax(tree.span.source) == "specc"
    target = given.output or ("x.yaml" if is_dsl else "x.specc")
    text = print_dsl(tree) if target.endswith(".specc") else print_yaml(tree)
    if given.output:
        inputs = () if from_stdin else (given.file,)
        _write(text.encode(), given.output, inputs, force=given.force)
    files = [given.output] if given.output else []
    told = {"files": files, "text": None if files else text}
    if not print_json_result("convert", told) and not files:
        print(text, end="")
    return 0


def _write(made: bytes, output: str, inputs: Sequence[str], *, force: bool) -> None:
    """Leave a spec where it is wanted; never over the one that it is made of."""
    path = resolve_output_path(output, SPEC_OUTPUT, inputs=inputs, force=force, content=made)
    write_file_atomically(path, [made])


def convert_glove_vectors(source: str, target: str, *, force: bool) -> int:
    """Write the tensor `embedding.weight`, and beside it the words, one a line, in the
    order of its rows.
    """
    if Path(target).suffix != ".safetensors":
        helps = [
            f"specc convert {escape_text(source)} -o {escape_text(Path(source).stem)}.safetensors"
        ]
        raise_error(
            "E0816",
            "word vectors become a safetensors file, so they need a name for one",
            helps=helps,
        )
    found = read_glove(source)
    words = Path(target).with_suffix(".vocab")
    said = "".join(f"{word}\n" for word in found.words).encode()
    resolve_output_path(target, WEIGHTS_OUTPUT, inputs=[source], force=force)
    list_of_words = resolve_output_path(
        words, VOCABULARY_OUTPUT, inputs=[source], force=force, content=said
    )
    write_file_atomically(list_of_words, [said])
    write_safetensors(target, {TENSOR: found.array}, force=force)
    shape = list(found.array.shape)
    if not print_json_result("convert", {"files": [target, str(words)], "text": None}):
        print_done(
            f"{escape_text(target)}: `{TENSOR}` {shape}; {escape_text(str(words))}: "
            f"the word of each row"
        )
    return 0
