"""Several images per text."""

from collections.abc import Mapping, Sequence

import numpy as np

from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.records import ImageRecord

AXES = 5
"""Of an input that takes several pictures a text; one picture by itself has three."""
SAY = 'say which are whose: [["a.png", "b.png"], ["c.png"]]'


def is_multi_image_input(graph: Graph, reading: PreprocessingConfig, name: str) -> bool:
    """Whether an input takes several pictures for each text."""
    pictures = isinstance(reading.of_input(name), ImageRecord)
    return pictures and graph.inputs[name].type.rank == AXES


def merge_images(graph: Graph, name: str, texts: Sequence[Array]) -> Array:
    """Stack the images `f32[images, …]` of every text. Raise E0912 for unequal counts without a
    mask input.
    """
    counts = {len(pictures) for pictures in texts}
    shape = graph.inputs[name].type.shape
    told = any(v.type.shape == shape[:2] for v in graph.inputs.values())
    if len(counts) > 1 and not told:
        raise_error(
            "E0912",
            f"the texts have {min(counts)} to {max(counts)} pictures in `{name}`, and "
            "the model cannot tell which are there",
            notes=["it has no input that says so"],
            helps=["run texts with as many pictures together"],
        )
    most = max(counts, default=0)
    rest = [(0, 0)] * (AXES - 2)
    return np.stack([np.pad(p, [(0, most - len(p)), *rest]) for p in texts])


def split_images(
    graph: Graph, reading: PreprocessingConfig, given: Mapping[str, Array]
) -> dict[str, Array]:
    """Return `given` with images grouped by text. Raise E0912 if counts of images and texts
    differ.
    """
    made = dict(given)
    for name, array in given.items():
        if name not in graph.inputs or not is_multi_image_input(graph, reading, name):
            continue
        if array.ndim == AXES - 1:
            made[name] = _of_texts(array, _texts(graph, given, name), name)
    return made


def _texts(graph: Graph, given: Mapping[str, Array], name: str) -> int | None:
    """How many texts there are, by what else is given; None where nothing says so."""
    batch = graph.inputs[name].type.shape[:1]
    for other, array in given.items():
        value = graph.inputs.get(other)
        if other != name and value and value.type.shape[:1] == batch and array.ndim:
            return len(array)
    return None


def _of_texts(pictures: Array, texts: int | None, name: str) -> Array:
    if texts == 1:
        return pictures[None]
    if texts not in (None, len(pictures)):
        raise_error(
            "E0912",
            f"`{name}` is given {len(pictures)} pictures for {texts} texts",
            notes=["pictures in a row belong to the only text, or one to each"],
            helps=[SAY],
        )
    return pictures[:, None]
