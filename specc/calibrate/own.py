"""Texts that a model writes by itself, drawn as it would write them: nobody has to have
examples, and they are of the kind that it will be used for.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from specc.calibrate.products import Sample
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.run.inputs import Entrance
from specc.run.opened import open_compiled
from specc.run.random_inputs import random_inputs
from specc.run.writer import Writer
from specc.text.diagnostic import fail

LONG = 128
"""Tokens of a text, if the model can see so many."""
OTHERS = 24
"""Rows of inputs that do not grow, of which nothing is known."""
TOGETHER = 8
"""Texts that are written at once."""


def own_samples(package: Path, entrance: Entrance, count: int) -> Iterator[Sample]:
    """So many texts, each the inputs of one run, written by a package with a step.
    `entrance` is that of the whole graph. E0859 where the package does not write.
    """
    writer = open_compiled(str(package)).writer
    if writer is None:
        no_texts()
    for start in range(0, count, TOGETHER):
        rows = min(TOGETHER, count - start)
        for text in _written(writer, rows, start):
            yield entrance.prepared(text)


def no_texts() -> NoReturn:
    """E0859 for a model that writes nothing to be rounded by."""
    fail(
        "E0859",
        "this model writes no texts of its own to round weights by",
        helps=[
            "give it inputs in a file: `--calibrate FILE`",
            "or leave out --samples",
        ],
    )


def _written(writer: Writer, rows: int, seed: int) -> Iterator[dict[str, Array]]:
    """Texts with the inputs that they stand behind, each a batch of one."""
    growing = writer.entrance.growing
    given = _begun(writer, rows, seed)
    long = min(LONG, writer.context or LONG)
    writing = writer.generate(
        **given,
        strategy="sample",
        temperature=1.0,
        stop=(),
        stop_strings=(),
        max_tokens=long,
        seed=seed,
    )
    texts = [row[0].tokens for row in writing.results()]
    for row, tokens in enumerate(texts):
        prompt = writing.prompt[row]
        whole = np.concatenate([prompt, np.array(tokens, prompt.dtype)])
        # what is written last is never read
        others = {n: v[row : row + 1] for n, v in given.items() if n != growing}
        yield {**others, growing: whole[None, :long]}


def _begun(writer: Writer, rows: int, seed: int) -> dict[str, Array]:
    """Random inputs for so many texts; of the one that grows a first token, where a text
    does not begin by itself.
    """
    entrance, generation = writer.entrance, writer.generation
    graph, growing = entrance.graph, entrance.growing
    bounds = {name: bound.high for name, bound in entrance.bounds.items()}
    sizes = {s: min(OTHERS, bounds.get(s) or OTHERS) for s in _symbols(graph)}
    batch, length, *_ = graph.inputs[growing].type.shape
    sizes |= {batch.name or "": rows, length.name or "": 1}
    drawn = random_inputs(graph, sizes, np.random.default_rng(seed))
    given = {name: drawn[name] for name in entrance.asked}
    # A random first token would be no way in which such a model ever begins.
    if writer.begins or generation.settings.get("start"):
        given.pop(growing, None)
    return given


def _symbols(graph: Graph) -> set[str]:
    """The names of all lengths of the inputs."""
    shapes = [value.type.shape for value in graph.inputs.values()]
    return {s for shape in shapes for d in shape for s in d.symbols()}
