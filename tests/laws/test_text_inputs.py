"""Every graph for a published class that takes token ids also takes text."""

import pytest

from specc.elaborate.beside import graphs_of
from specc.elaborate.modules import program_of
from specc.lang import tree
from specc.library.files import Files, shipped


def families() -> list[str]:
    """Return the names of shipped specs whose graphs are for published classes."""
    library = Files()
    return [
        name
        for name, path in shipped().items()
        if path.suffix == ".specc"
        and any(
            graph.made_for
            for graph in graphs_of(program_of(library.open(name), library))
        )
    ]


@pytest.mark.parametrize("name", families())
def test_token_ids_are_read_from_text(name: str) -> None:
    """The first input of each graph is text where it is `int[batch, seq]`."""
    library = Files()
    program = program_of(library.open(name), library)
    read = {
        entry.name
        for item, _ in program.items(tree.Reading)
        for entry in item.entries
        if isinstance(entry, tree.Reads)
    }
    # the prefix of a generated sequence comes from the model itself
    generated = {item.growing for item, _ in program.items(tree.Generate)} - read
    for graph in graphs_of(program):
        first = graph.params[0]
        if first.name in generated:
            continue
        if graph.made_for and first.type.name == "int":
            assert first.name in read, f"{graph.name} of {name} takes ids only"
