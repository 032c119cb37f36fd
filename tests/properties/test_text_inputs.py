"""Graphs of transformers classes with token id inputs also accept text."""

import pytest
from support.mechanism_sample import sample_mechanisms

from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.spec_modules import build_program
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs
from specc.syntax import ast

SPECS = [name for name, path in find_builtin_specs().items() if path.suffix == ".specc"]


@pytest.mark.parametrize("name", sample_mechanisms(SPECS))
def test_token_ids_are_read_from_text(name: str) -> None:
    """The first input of each graph accepts text if it is `int[batch, seq]`."""
    library = SpecLibrary()
    program = build_program(library.load_spec(name), library)
    read = {
        entry.name
        for item, _ in program.iterate_items(ast.PreprocessingSection)
        for entry in item.entries
        if isinstance(entry, ast.InputPreprocessing)
    }
    # the model provides the prefix of a generated sequence
    generated = {item.input_name for item, _ in program.iterate_items(ast.GenerateSection)} - read
    for graph in list_graph_blocks(program):
        first = graph.params[0]
        if first.name in generated:
            continue
        if graph.architectures and first.type.name == "int":
            assert first.name in read, f"{graph.name} of {name} takes ids only"
