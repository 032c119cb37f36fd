"""Several texts as one array, with the input that says which places are padding."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from specc.data.reading import Reading
from specc.data.record import TextBytes, TextCharacters
from specc.data.text import encode, pad
from specc.data.tokenizer import TextTokenizer
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.text.diagnostic import fail

TEXT = (TextCharacters, TextBytes, TextTokenizer)


def with_texts(
    graph: Graph, reading: Reading, given: Mapping[str, object], growing: str = ""
) -> dict[str, object]:
    """`given` with every text, or list of texts, as ids: a text for an input that reads
    text.

    The keep input that belongs to it is filled in too where it is not given and the
    graph has one.
    """
    found: dict[str, object] = {}
    for name, value in given.items():
        if (
            name not in graph.inputs
            or not isinstance(reading.of_input(name), TEXT)
            or not _is_text(value)
        ):
            found[name] = value
            continue
        texts = (
            [value] if isinstance(value, str) else [str(text) for text in _items(value)]
        )
        for key, array in text_inputs(
            graph, reading, name, texts, growing=growing
        ).items():
            if key == name or key not in given:
                found[key] = array
    return found


def text_inputs(
    graph: Graph,
    reading: Reading,
    name: str,
    texts: Sequence[str],
    *,
    growing: str = "",
) -> dict[str, Array]:
    """The input `name` for these texts, `i64[batch, longest]`, and the keep input
    beside it, `bool[batch, longest]`.

    Shorter texts are padded on the side that the keep input declares; where it takes
    either, a text that grows is padded on the left, so that all end where the next
    token comes, and any other on the right. Zeros stand there, which most models know
    as padding by themselves: one that decodes by itself may lack the keep input. Fails
    with E0912 for texts of unequal length where the model has no input that says what
    is padding.
    """
    record = reading.of_input(name)
    assert isinstance(record, TEXT), f"`{name}` is not read as text"
    return row_inputs(
        graph, name, [encode(text, record) for text in texts], growing=growing
    )


def row_inputs(
    graph: Graph, name: str, rows: Sequence[Array], *, growing: str = ""
) -> dict[str, Array]:
    """`text_inputs` of texts that are ids already, or of sounds that are samples."""
    keep = keep_of(graph, name)
    if not keep:
        if len({len(row) for row in rows}) > 1:
            _uneven(name, sorted({len(row) for row in rows}))
        return {name: np.stack(rows) if rows else np.zeros((0, 0), np.int64)}
    side = graph.input_facts[keep].keep
    ids, exist = pad(
        rows, 0, left=side == "left" or (side == "any" and name == growing)
    )
    return {name: ids, keep: exist}


def keep_of(graph: Graph, name: str) -> str:
    """The keep input whose axes are those of the input `name`, or nothing."""
    shape = graph.inputs[name].type.shape
    inputs = graph.inputs.items()
    return next(
        (
            n
            for n, v in inputs
            if graph.input_facts[n].keep and v.type.shape == shape and n != name
        ),
        "",
    )


def _uneven(name: str, lengths: Sequence[int]) -> NoReturn:
    fail(
        "E0912",
        f"the rows of `{name}` are {lengths[0]} to {lengths[-1]} long, and the model "
        "cannot tell padding from what is meant",
        notes=["it has no `keep` input of the same axes"],
        helps=[
            "run rows of one length together, or add `keep: keep[batch, n]` to the graph's inputs"
        ],
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) or (
        bool(_items(value)) and all(isinstance(item, str) for item in _items(value))
    )


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()
