"""An input of one kind has the same name in every built-in spec."""

from collections.abc import Iterator

import pytest

from specc.library.spec_file_lookup import find_builtin_specs, read_spec_file
from specc.syntax import ast
from specc.syntax.ast import walk_tree

PICTURE = "pixel_values"
ONCE = {
    "words_so_far": "ids",
    "sound": "input_values, or input_features where they are rows of numbers",
    "pixels": PICTURE,
}
"""Names that differed elsewhere, and the name of their kind."""


def nodes() -> Iterator[tuple[str, ast.Node]]:
    for spec, path in find_builtin_specs().items():
        for node in walk_tree(read_spec_file(path, spec)):
            yield spec, node


@pytest.mark.parity
def test_inputs_of_one_kind_have_one_name() -> None:
    pictures, others = {}, {}
    for spec, node in nodes():
        match node:
            case ast.InputPreprocessing(value=ast.Call(function=ast.Name("image"))):
                pictures[spec] = node.name
            case ast.Block(kind="graph"):
                found = {param.name for param in node.params} & set(ONCE)
                others.update({(spec, name): ONCE[name] for name in found})
    assert len(pictures) > 20
    assert {spec: n for spec, n in pictures.items() if n != PICTURE} == {}
    assert others == {}
