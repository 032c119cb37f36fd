"""List built-in specs, supported model types, and everything that a spec can call."""

from argparse import ArgumentParser, Namespace

from specc.cli.terminal import print_json_result
from specc.diagnostics.object_repr import extract_docstring_summary
from specc.frontend.builtins import BUILTINS
from specc.huggingface.model_family import supported_model_types
from specc.library.spec_files import SpecLibrary, list_builtin_specs, read_spec_file
from specc.syntax import ast

PLURALS = {"mask": "masks", "score": "scores", "bias": "biases", "normalizer": "normalizers"}
KINDS = ["specs", "types", "blocks", *PLURALS.values(), "words"]


def add_list_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("kind", nargs="?", choices=KINDS)


def run_list(given: Namespace) -> int:
    """Print one line each."""
    kinds = [given.kind] if given.kind else KINDS
    listed = {kind: dict(sorted(_rows(kind).items())) for kind in kinds}
    items = [
        {"kind": kind, "name": name, "doc": doc}
        for kind, rows in listed.items()
        for name, doc in rows.items()
    ]
    if print_json_result("list", {"items": items}):
        return 0
    for kind, rows in listed.items():
        width = max(map(len, rows), default=0)
        print(f"{kind}:")
        for name, text in rows.items():
            print(f"  {name.ljust(width)}  {text}".rstrip())
    return 0


def _rows(kind: str) -> dict[str, str]:
    if kind == "specs":
        return {
            name: read_spec_file(path, path.name).doc for name, path in list_builtin_specs().items()
        }
    if kind == "types":
        return {kind: f"read by {name}" for kind, name in supported_model_types().items()}
    if kind == "words":
        return {name: extract_docstring_summary(w.doc) for name, w in BUILTINS.items()}
    return _of_std(kind)


def _of_std(kind: str) -> dict[str, str]:
    """The blocks of std, or its definitions of a kind, each with its doc."""
    library = SpecLibrary()
    found = {}
    for name in library.standard_names():
        item = library.standard(name)
        assert item is not None
        is_block = isinstance(item[0], ast.Block)
        if kind == ("blocks" if is_block else PLURALS[item[0].kind]):
            found[name] = item[0].doc
    return found
