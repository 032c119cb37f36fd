"""What an encoder and its decoder are made of, as far as the form for Optimum has places
for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specc.compiler.profiles.caches import Layer, layers_of
from specc.compiler.profiles.crossing import crossings, end_of_encoder
from specc.compiler.profiles.decoder import lengths_of
from specc.compiler.profiles.result import READERS, cannot
from specc.ir.derived import Derived
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Value

SOURCE_ROWS = "encoder_sequence_length"
SOURCES = {
    ("i64", 2): "input_ids",
    ("f32", 4): "pixel_values",
    ("f32", 3): "input_features",
}
"""What the encoder's input is called, by its element type and number of axes: words,
pictures, sound.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is known of the parts: the encoder's input, its mask ("" for none), its end,
    who gets which keys and values, and what its axes are called.
    """

    derived: Derived
    encode: Graph
    words: str
    mask: str
    end: Value
    layers: tuple[Layer, ...]
    crosses: Sequence[Mapping[str, str]]
    lengths: Mapping[str, Dim]


def parts_of(derived: Derived) -> Parts:
    """The parts. E0752 where there is one that the form has no place for."""
    encode = derived.encode
    if encode is None:
        names = ", ".join(f"`{n}`" for n in derived.handed)
        cannot("hf", f"{names} is handed to every step as it is, without an encoder")
    layers = layers_of("hf", derived)
    words, mask = _inputs_of(encode, derived)
    end = end_of_encoder(encode, encode.inputs[words], encode.outputs.values())
    if end is None:
        cannot(
            "hf",
            "there is no one result of an encoder, with rows of features, that "
            "the decoder looks at",
        )
    lengths = lengths_of(derived, layers)
    if rows := end.type.shape[1].name:
        lengths[rows] = Dim.symbol(SOURCE_ROWS)
    parts = Parts(
        derived=derived,
        encode=encode,
        words=words,
        mask=mask,
        end=end,
        layers=layers,
        crosses=crossings(derived.step, derived.handed),
        lengths=lengths,
    )
    _check(parts)
    return parts


def _check(parts: Parts) -> None:
    """Every attention layer has one over the encoder's result, and nothing else hangs
    on that.
    """
    for pair in parts.crosses:
        # One projection for both would be one cache under two names.
        if pair.keys() != {"key", "value"} or len(set(pair.values())) == 1:
            first = next(iter(pair.values()))
            cannot("hf", f"`{first}` is not keys or values alone")
    if len(parts.crosses) != len(parts.layers):
        own, over = len(parts.layers), len(parts.crosses)
        cannot(
            "hf",
            f"{own} attentions look at what is written and {over} at the encoder's result",
            [f"one of each in every layer is expected by {READERS['hf']}"],
        )
    named = {n for pair in parts.crosses for n in pair.values()}
    handed = [n for n in parts.derived.handed if n in parts.encode.outputs]
    for name in handed:
        # What `encode` made of the mask alone can be made again from the mask.
        if name not in named and hangs_on_source(parts, name):
            cannot(
                "hf",
                f"`{name}` is handed to the decoder and is no key or value of an attention",
            )


def hangs_on_source(parts: Parts, name: str) -> bool:
    """Whether what `encode` gives as `name` is made from what is encoded."""
    source = parts.encode.inputs[parts.words]
    todo, seen = [parts.encode.outputs[name]], set[Value]()
    while todo:
        value = todo.pop()
        if value is source:
            return True
        if value not in seen and value.node:
            seen.add(value)
            todo += [a for a in value.node.args if a]
    return False


def _inputs_of(encode: Graph, derived: Derived) -> tuple[str, str]:
    """The input that is encoded, and the mask beside it."""
    mask = _mask_of(encode, derived)
    words = _words_of(encode, derived, mask)
    for name in derived.handed:
        if name not in encode.outputs and name != mask:
            cannot(
                "hf",
                f"the input `{name}` is read at every step",
                ["only a mask goes to the decoder as it is"],
            )
    return words, mask


def _mask_of(encode: Graph, derived: Derived) -> str:
    """The one input that says which rows of the source exist; "" where there is none."""
    # The decoder may read it without the encoder doing so: it then goes to every step.
    masks = [n for n in encode.inputs if encode.input_facts[n].keep]
    facts = derived.step.input_facts
    handed = [n for n in derived.handed if n in derived.step.inputs]
    masks += [n for n in handed if facts[n].keep and n not in masks]
    if len(masks) > 1:
        cannot(
            "hf",
            f"there are two masks, `{masks[0]}` and `{masks[1]}`",
            ["the encoder takes one"],
        )
    return masks[0] if masks else ""


def _words_of(encode: Graph, derived: Derived, mask: str) -> str:
    """The one input that is encoded."""
    # The growing input is the decoder's, even where `encode` reads it too.
    read = [n for n in encode.inputs if n not in (mask, derived.growing)]
    types = [encode.inputs[n].type for n in read]
    if len(read) != 1 or (types[0].dtype, types[0].rank) not in SOURCES:
        names = ", ".join(f"`{n}` {t}" for n, t in zip(read, types, strict=True))
        cannot(
            "hf",
            f"the encoder reads {names or 'nothing'}",
            ["it takes words, pictures or sound: one input"],
        )
    return read[0]
