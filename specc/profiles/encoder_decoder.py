"""An encoder and its decoder as three graphs, the form that Optimum's ORTModelForSeq2SeqLM reads.

    encoder_model            input_ids, attention_mask → last_hidden_state
    decoder_model            input_ids, encoder_hidden_states, encoder_attention_mask
                             → logits, present.{i}.decoder.key/.value, present.{i}.encoder.key/.value
    decoder_with_past_model  input_ids, encoder_attention_mask, past_key_values.{i}.decoder/.encoder.key/.value
                             → logits, present.{i}.decoder.key/.value

`decoder_model` is the step at a past of no rows, with the keys and values over the encoder's result projected in it:
once, for the other takes them as they are. No mask of the decoder's own tokens is asked for: all of them are there.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from specc.ir.derived import Derived, State
from specc.ir.dim import Dim
from specc.ir.graph import Graph, Input, Value
from specc.profiles.caches import Layer, inwards, layers_of, outside
from specc.profiles.crossing import crossings, end_of_encoder
from specc.profiles.decoder import (
    LOGITS,
    MASK,
    NEW,
    PAST,
    given_caches,
    given_ids,
    lengths_of,
    others,
    states_of,
)
from specc.profiles.replay import Replay, with_lengths
from specc.profiles.result import READERS, Dressed, cannot

HIDDEN, LAST, CROSS_MASK = "encoder_hidden_states", "last_hidden_state", "encoder_attention_mask"
PAST_OWN, PRESENT_OWN = "past_key_values.{}.decoder.{}", "present.{}.decoder.{}"
PAST_CROSS, PRESENT_CROSS = "past_key_values.{}.encoder.{}", "present.{}.encoder.{}"
SOURCE_ROWS = "encoder_sequence_length"
SOURCES = {("i64", 2): "input_ids", ("f32", 4): "pixel_values", ("f32", 3): "input_features"}
"""What the encoder's input is called, by its element type and number of axes: words, pictures, sound."""


def encoder_decoder(derived: Derived, source: str) -> Dressed:
    """The three graphs. E0752 where something else than keys, values and a mask goes over to the decoder."""
    work = _Work.of(derived, source)
    first, _ = work.decoder("first")
    later, states = work.decoder("later")
    graphs = {"encoder_model": work.encoder(), "decoder_model": first, "decoder_with_past_model": later}
    return Dressed(graphs, states)


@dataclass(frozen=True)
class _Work:
    """What is known of the parts: the encoder's input, its mask (""), its end, and who gets which keys and values."""

    derived: Derived
    source: str
    encode: Graph
    words: str
    mask: str
    end: Value
    layers: tuple[Layer, ...]
    crosses: list[dict[str, str]]
    lengths: dict[str, Dim] = field(default_factory=dict)

    @classmethod
    def of(cls, derived: Derived, source: str) -> "_Work":
        encode = derived.encode
        if encode is None:
            names = ", ".join(f"`{n}`" for n in derived.handed)
            cannot("hf", f"{names} is handed to every step as it is, without an encoder")
        layers = layers_of("hf", derived)
        words, mask = _inputs_of(encode, derived)
        end = end_of_encoder(encode, encode.inputs[words], encode.outputs.values())
        if end is None:
            cannot("hf", "there is no one result of an encoder, with rows of features, that the decoder looks at")
        lengths = lengths_of(derived, layers)
        if rows := end.type.shape[1].name:
            lengths[rows] = Dim.symbol(SOURCE_ROWS)
        work = cls(derived, source, encode, words, mask, end, layers, crossings(derived.step, derived.handed), lengths)
        work.check()
        return work

    def check(self) -> None:
        """Every attention layer has one over the encoder's result, and nothing else hangs on that."""
        for pair in self.crosses:
            if pair.keys() != {"key", "value"} or pair["key"] == pair["value"]:
                cannot("hf", f"`{next(iter(pair.values()))}` is not keys or values alone")
        if len(self.crosses) != len(self.layers):
            own, over = len(self.layers), len(self.crosses)
            cannot(
                "hf",
                f"{own} attentions look at what is written and {over} at the encoder's result",
                [f"one of each in every layer is expected by {READERS['hf']}"],
            )
        named = {n for pair in self.crosses for n in pair.values()}
        for name in self.derived.handed:
            if name not in named and name in self.encode.outputs and self._hangs_on_source(name):
                cannot("hf", f"`{name}` is handed to the decoder and is no key or value of an attention")

    def _hangs_on_source(self, name: str) -> bool:
        source, todo, seen = self.encode.inputs[self.words], [self.encode.outputs[name]], set[Value]()
        while todo:
            value = todo.pop()
            if value is source:
                return True
            if value not in seen and value.node:
                seen.add(value)
                todo += [a for a in value.node.args if a]
        return False

    def encoder(self) -> Graph:
        """`encoder_model`: the part of `encode` up to its end."""
        encode, end = self._renamed(self.encode, self.end)
        replay = Replay()
        value = encode.inputs[self.words]
        facts = encode.input_facts[self.words]
        name = SOURCES[value.type.dtype, value.type.rank]
        replay.now[value] = replay.b.input(name, Input(value.type, below=facts.below, span=facts.span))
        if self.mask in encode.inputs:
            replay.now[encode.inputs[self.mask]] = replay.mask(MASK, encode.inputs[self.mask].type)
        replay.bring(encode, [end])
        return replay.finish(encode.name, {LAST: replay.now[end]})

    def decoder(self, which: Literal["first", "later"]) -> tuple[Graph, tuple[State, ...]]:
        """`decoder_model`, which has no past, or `decoder_with_past_model`."""
        first = which == "first"
        lengths = self.lengths
        if first:
            lengths = {n: Dim.of(0) if d.name == PAST else d for n, d in lengths.items()}
        step = with_lengths(self.derived.step, lengths)
        encode, end = self._renamed(self.encode, self.end)
        replay = Replay()
        given_ids(replay, step, self.derived)
        if first:
            replay.now[end] = replay.b.input(HIDDEN, Input(end.type))
        self._masks(replay, step, encode)
        if first:
            self._no_caches(replay, step)
        else:
            self._later_caches(replay, step)
        for name in self.derived.handed:
            if step.inputs[name] not in replay.now:
                replay.bring(encode, [encode.outputs[name]])
                replay.now[step.inputs[name]] = replay.now[encode.outputs[name]]
        replay.bring(step, step.outputs.values())
        made = {LOGITS: replay.now[step.outputs[self.source]]}
        own = given_caches(replay, step, self.layers, PRESENT_OWN)
        for n, pair in enumerate(self.crosses):
            made |= {name: own[name] for name in (PRESENT_OWN.format(n, "key"), PRESENT_OWN.format(n, "value"))}
            if first:
                made |= {PRESENT_CROSS.format(n, w): replay.now[step.inputs[pair[w]]] for w in ("key", "value")}
        made |= others(replay, step, self.derived, self.source)
        return replay.finish(step.name, made), states_of(replay, step, self.layers, PAST_OWN, PRESENT_OWN)

    def _renamed(self, encode: Graph, end: Value) -> tuple[Graph, Value]:
        """`encode` with the axes' new names, and its end in it."""
        marked = Graph(**{**encode.__dict__, "outputs": {**encode.outputs, _END: end}})
        found = with_lengths(marked, {n: d for n, d in self.lengths.items() if d.name not in (NEW, PAST)})
        outputs = dict(found.outputs)
        end = outputs.pop(_END)
        return Graph(**{**found.__dict__, "outputs": outputs}), end

    def _masks(self, replay: Replay, step: Graph, encode: Graph) -> None:
        """What says which rows of the source are there; of what is written all are."""
        handed = [n for n in self.derived.handed if n in step.inputs and n == self.mask]
        left = [n for n in self.derived.handed if n in encode.outputs and not self._hangs_on_source(n)]
        if self.mask and (handed or left):
            made = replay.mask(CROSS_MASK, encode.inputs[self.mask].type)
            replay.now[encode.inputs[self.mask]] = made
            replay.now |= {step.inputs[n]: made for n in handed}
        for name, value in step.inputs.items():
            keeps = step.input_facts[name].keep and name not in self.derived.handed
            if keeps:
                replay.now[value] = replay.filled(value.type, True)
            elif name not in (self.derived.growing, *self.derived.handed, *(s.name for s in self.derived.states)):
                cannot("hf", f"the decoder's input `{name}` has no place in it")

    def _no_caches(self, replay: Replay, step: Graph) -> None:
        for layer in self.layers:
            for _, state in layer.states:
                value = step.inputs[state.name]
                replay.now[value] = replay.filled(value.type, 0.0)

    def _later_caches(self, replay: Replay, step: Graph) -> None:
        """Of each layer its own keys and values, then those over the encoder's result: the order matters to readers."""
        for n, (layer, pair) in enumerate(zip(self.layers, self.crosses, strict=True)):
            for word, state in layer.states:
                value = step.inputs[state.name]
                now = replace(state, type=value.type)
                given = replay.b.input(PAST_OWN.format(n, word), Input(outside(now)))
                replay.now[value] = inwards(replay, now, given)
            for word in ("key", "value"):
                value = step.inputs[pair[word]]
                replay.now[value] = replay.b.input(PAST_CROSS.format(n, word), Input(value.type))


_END = "the encoder's end"
"""With blanks in it, no output of a graph has this name."""


def _inputs_of(encode: Graph, derived: Derived) -> tuple[str, str]:
    """The input that is encoded, and the mask beside it."""
    masks = [n for n in encode.inputs if encode.input_facts[n].keep]
    masks += [n for n in derived.handed if n in derived.step.inputs and derived.step.input_facts[n].keep]
    masks = list(dict.fromkeys(masks))
    read = [n for n in encode.inputs if n not in masks and n != derived.growing]
    types = [encode.inputs[n].type for n in read]
    if len(masks) > 1:
        cannot("hf", f"there are two masks, `{masks[0]}` and `{masks[1]}`", ["the encoder takes one"])
    if len(read) != 1 or (types[0].dtype, types[0].rank) not in SOURCES:
        names = ", ".join(f"`{n}` {t}" for n, t in zip(read, types, strict=True))
        cannot("hf", f"the encoder reads {names or 'nothing'}", ["it takes words, pictures or sound: one input"])
    for name in derived.handed:
        if name not in encode.outputs and name not in masks:
            cannot("hf", f"the input `{name}` is read at every step", ["only a mask goes to the decoder as it is"])
    return read[0], masks[0] if masks else ""
