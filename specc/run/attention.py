"""`run --attention`: the weights of a model's attentions on one input, with names for
their rows, and which of them are drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from specc.data.pictures.maps import AttentionMap, Looks
from specc.files.read import shown
from specc.ir.array import Array
from specc.run.attention_axes import Given
from specc.run.attention_choice import Choice, apart, chosen, scopes_chosen
from specc.run.attention_weights import TURN, attentions, hidden_of
from specc.run.generation import Result, Writing
from specc.run.loaded import Loaded
from specc.text.diagnostic import fail

ALIGNMENT = "alignment"
"""A result of this name, [batch, target, source], is drawn where nothing else is asked
for: it is what the author of the spec wants to be seen.
"""

MOST_PANELS = 256
"""Maps in one drawing; a page takes all."""


@dataclass(frozen=True)
class Look:
    """Where a model looked, with the `results` of the same run. `rows` are those of the
    batch, of which the first is drawn.
    """

    looks: Looks
    results: dict[str, Array]
    rows: int = 1

    def drawn(self, choice: Choice, *, every: bool) -> tuple[Looks, str]:
        """The maps that a drawing shows, and what it leaves out. With `every` that is all
        that `choice` picks; else of a choice of nothing it is the last attention.
        """
        maps = chosen(self.looks.maps, choice)
        if not every:
            maps = maps if choice.layers or "*" in choice.scope else maps[-1:]
            maps = _first(maps)
        return replace(self.looks, maps=maps), self._left_out(maps)

    def _left_out(self, maps: tuple[AttentionMap, ...]) -> str:
        """What a drawing of some maps does not show of what the model has."""
        there = {m.scope: m for m in self.looks.maps}
        some = len(maps) < len(there)
        is_, its = ("is", "its") if len(maps) == 1 else ("are", "their")
        said = []
        if some:
            names = shown(", ".join(m.scope for m in maps[:12]))
            said.append(f"drawn {is_} `{names}`")
        heads = sum(len(there[m.scope].heads) for m in maps)
        if (drawn := sum(len(m.heads) for m in maps)) < heads:
            said.append(f"{drawn} of {its} {heads} heads")
        if self.rows > 1:
            verb = "" if some else "drawn is "
            said.append(f"{verb}the first row of the batch of {self.rows}")
        if some:
            others = there.keys() - {m.scope for m in maps}
            left = {name: m for name, m in there.items() if name in others}
            said.append(apart(left, "--scope and --layers draw others:"))
        return "; ".join(said)


def _first(maps: tuple[AttentionMap, ...]) -> tuple[AttentionMap, ...]:
    """The maps that have room in one drawing, at least one."""
    room, kept = MOST_PANELS, []
    for each in maps:
        if room <= 0:
            break
        heads = len(each.heads)
        fits = each.with_heads(
            each.weights[:room], each.hidden[:room], each.heads[:room]
        )
        kept.append(fits)
        room -= heads
    return tuple(kept)


def look(
    model: Loaded,
    inputs: Mapping[str, object],
    *,
    scope: str = "",
    written: Array | None = None,
) -> Look:
    """Runs a model and keeps where it looked: every attention, of which one is to fit
    `scope`; its own alignment, if it gives one and nothing else is asked for.

    `written` i64[batch, target] are the tokens that the rows chose, where the model
    wrote them itself. E0931 where there is nothing to see.
    """
    given = Given(model=model, arrays=model.prepared(inputs), written=written)
    if ALIGNMENT in model.manifest.graph.outputs and not scope:
        results = model.run(**inputs)
        maps = [_alignment(given, results[ALIGNMENT])]
        rows = len(results[ALIGNMENT])
    else:
        results, weights = model.attention(**inputs)
        if not weights:
            fail("E0931", "this model has no attention whose weights can be read")
        maps, rows = _maps(given, weights, scope), len(next(iter(weights.values())))
    answer = given.answer()
    said = f"{given.said()} → {answer}" if answer else given.said()
    looks = Looks(
        model=model.manifest.name, given=said, maps=tuple(maps), picture=given.picture()
    )
    return Look(looks, results, rows)


def look_back(model: Loaded, writing: Writing, best: Result, scope: str = "") -> Look:
    """Where a model looked while it wrote: the whole graph once more, on all that the
    first row read and wrote. The last token was never fed, so nothing looked from it.
    """
    entrance = writing.writer.entrance
    growing, inputs = entrance.growing, entrance.graph.inputs
    batch, length = inputs[growing].type.shape
    tokens = np.array([best.tokens], np.int64)
    # what has an axis of the text itself is computed anew, for the longer text
    fixed = [
        name
        for name in writing.prepared
        if length not in model.manifest.graph.inputs[name].type.shape
    ]
    first: dict[str, object] = {
        name: writing.prepared[name][:1]
        if inputs[name].type.shape[:1] == (batch,)
        else writing.prepared[name]
        for name in fixed
    }
    first[growing] = np.concatenate([writing.prompt[:1], tokens[:, :-1]], axis=1)
    return look(model, first, scope=scope, written=tokens)


def _maps(given: Given, weights: Mapping[str, Array], scope: str) -> list[AttentionMap]:
    """Every attention as a map of the first row of the batch. E0931 where none is called
    as `scope` says, or nothing of that name is a picture.
    """
    graph, model = given.model.manifest.graph, given.model
    asked = scopes_chosen(list(weights), scope)
    shapes = {n: np.shape(w) for n, w in weights.items() if _is_picture(np.shape(w))}
    if not shapes.keys() & {*asked}:
        title = f"the attention `{shown(asked[-1])}` has weights that are no picture"
        fail("E0931", title, notes=[f"{list(np.shape(weights[asked[-1]]))}"])
    hidden = hidden_of(graph, given.arrays, shapes, model.weights)
    places = attentions(graph)
    maps = []
    for name, shape in shapes.items():
        place = places.get(name.partition(TURN)[0])
        lengths = (place.queries, place.keys) if place else (None, None)
        queries, keys = given.axes(lengths, shape)
        values = np.asarray(weights[name][0], np.float64)
        behind = hidden[name][0] if name in hidden else np.zeros(values.shape, np.bool_)
        maps.append(
            AttentionMap(
                scope=name,
                weights=values,
                hidden=behind,
                heads=tuple(range(len(values))),
                queries=queries,
                keys=keys,
            )
        )
    return maps


def _is_picture(shape: tuple[int, ...]) -> bool:
    """Whether weights of that shape are maps, and of more than nothing."""
    return len(shape) == 4 and all(shape)


def _alignment(given: Given, weights: Array) -> AttentionMap:
    """The model's own alignment [batch, target, source], or with heads before the target."""
    maps = np.asarray(weights, np.float64)
    if maps.ndim not in (3, 4) or not maps.size:
        notes = [f"its shape is {list(weights.shape)}"]
        fail("E0931", f"the result `{ALIGNMENT}` holds no weights to draw", notes=notes)
    shape = given.model.manifest.graph.outputs[ALIGNMENT].type.shape
    queries, keys = given.axes((shape[-2], shape[-1]), maps.shape)
    first = maps[0].reshape((-1, *maps.shape[-2:]))
    return AttentionMap(
        scope=ALIGNMENT,
        weights=first,
        hidden=np.zeros(first.shape, np.bool_),
        heads=tuple(range(len(first))),
        queries=queries,
        keys=keys,
    )
