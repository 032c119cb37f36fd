"""Convert a spec from one syntax to the other, nothing lost; or GloVe's word vectors to
safetensors.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from specc.cli.messages import answer, done
from specc.cli.spec_options import FORCE
from specc.cli.standard_input import STDIN, spec_text
from specc.files.place import SPEC, WEIGHTS, WORDS, place
from specc.files.read import shown
from specc.files.write import atomic_write
from specc.lang.dsl.write import write
from specc.lang.read import read, syntax
from specc.lang.yaml.write import write_yaml
from specc.library.files import read_file
from specc.text.diagnostic import fail
from specc.weights.formats.glove import TENSOR, read_glove
from specc.weights.formats.safetensors import write_safetensors


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a spec, - for one from stdin, or word vectors in GloVe's text format (.txt)",
    )
    parser.add_argument(
        "-o", "--output", default="", metavar="FILE", help="where to; stdout otherwise"
    )
    parser.add_argument("--force", action="store_true", help=FORCE)


def run(given: Namespace) -> int:
    """Write DSL as YAML, YAML as DSL; with -o, what the file name says."""
    if given.file.endswith(".txt"):
        return vectors(given.file, given.output, force=given.force)
    from_stdin = given.file == STDIN
    tree = read(spec_text()) if from_stdin else read_file(Path(given.file), given.file)
    assert tree.span is not None
    is_dsl = syntax(tree.span.source) == "specc"
    target = given.output or ("x.yaml" if is_dsl else "x.specc")
    text = write(tree) if target.endswith(".specc") else write_yaml(tree)
    if given.output:
        inputs = () if from_stdin else (given.file,)
        _write(text.encode(), given.output, inputs, force=given.force)
    files = [given.output] if given.output else []
    told = {"files": files, "text": None if files else text}
    if not answer("convert", told) and not files:
        print(text, end="")
    return 0


def _write(made: bytes, output: str, inputs: Sequence[str], *, force: bool) -> None:
    """Leave a spec where it is wanted; never over the one that it is made of."""
    path = place(output, SPEC, inputs=inputs, force=force, content=made)
    atomic_write(path, [made])


def vectors(source: str, target: str, *, force: bool) -> int:
    """Write the tensor `embedding.weight`, and beside it the words, one a line, in the
    order of its rows.
    """
    if Path(target).suffix != ".safetensors":
        helps = [
            f"specc convert {shown(source)} -o {shown(Path(source).stem)}.safetensors"
        ]
        fail(
            "E0816",
            "word vectors become a safetensors file, so they need a name for one",
            helps=helps,
        )
    found = read_glove(source)
    words = Path(target).with_suffix(".vocab")
    said = "".join(f"{word}\n" for word in found.words).encode()
    place(target, WEIGHTS, inputs=[source], force=force)
    list_of_words = place(words, WORDS, inputs=[source], force=force, content=said)
    atomic_write(list_of_words, [said])
    write_safetensors(target, {TENSOR: found.array}, force=force)
    shape = list(found.array.shape)
    if not answer("convert", {"files": [target, str(words)], "text": None}):
        done(
            f"{shown(target)}: `{TENSOR}` {shape}; {shown(str(words))}: the word of each row"
        )
    return 0
