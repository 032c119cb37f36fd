"""`specc run` and `model.generate`: a model that writes, from what it is given to tokens and text.

    model = specc.load("gpt2/")
    for piece in model.generate("Once upon a time", max_tokens=64).pieces():
        print(piece[0], end="", flush=True)

A package goes on with its step graph; a model of one graph runs it again for every token. What is written is the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specc.entrance import Entrance, unread_of
from specc.generation.options import OPTIONS, Vocabulary
from specc.generation.settings import Settings, settings_of
from specc.generation.stepper import Ints
from specc.ir.graph import Graph
from specc.ir.model import Generation
from specc.packages import Package
from specc.reading.batch import keep_of
from specc.reading.check import Bound
from specc.running import Loaded
from specc.text.diagnostic import Failed, fail
from specc.writers.facts import Facts, bounds_from, check_encode
from specc.writers.facts import load as load_facts
from specc.writers.itself import check_fixed
from specc.writers.steppers import FullStepper, StateStepper
from specc.writers.writing import Source, Writing

Array = Any


@dataclass
class Writer(Source):
    """A model that writes: `generate` starts a text."""

    def generate(self, *given: Any, **settings: Any) -> Writing:
        """Begin to write behind what is given: inputs by name, or in the order in which the spec has them.

        An input is an array, a nested list, a text or a list of texts. Other names are settings (docs/generation.md):
        `max_tokens`, `strategy`, `temperature`, `top_k`, `top_p`, `min_p`, `repetition_penalty`, `beams`,
        `length_penalty`, `early_stopping`, `n_best`, `stop`, `stop_strings`, `seed`, `log_probabilities`. Fails with
        E09xx on inputs, E0731 to E0733 on settings, E0943 for prompts longer than the context.
        """
        inputs = {n: settings.pop(n) for n in list(settings) if n in self.entrance.graph.inputs}
        free = [name for name in self.entrance.asked if name not in inputs]
        if len(given) > len(free):
            fail("E0910", f"{len(given)} inputs are given, {len(free)} are open", helps=[f"they are {', '.join(free)}"])
        inputs |= dict(zip(free, given, strict=False))
        asked = settings.get("strategy")
        chosen = settings_of(self.generation.settings, **{**self._settled(asked), **settings})
        if fault := self.vocabulary.beyond("stop", settings.get("stop")):  # of the spec's own, `check` has warned
            raise Failed(fault)
        if self.itself is not None:
            check_fixed(chosen, self.compiled)
            if chosen.log_probabilities and chosen.strategy == "beam":
                fail("E0733", "a model that searches by itself gives scores, no log-probabilities of tokens")
        return self.begin(inputs, chosen)

    @property
    def vocabulary(self) -> Vocabulary:
        """How many tokens there are."""
        below = self.entrance.graph.input_facts[self.entrance.growing].below
        return Vocabulary(below.number if below is not None else None, self.drawn)

    def _settled(self, asked: object) -> dict[str, Any]:
        """Settings that the model was compiled with, which hold unless others are asked for."""
        kind = self.compiled.get("strategy")
        own = asked is None or (isinstance(asked, str) and asked == kind)
        options = [o for o in OPTIONS if not o.strategies or (own and kind in o.strategies)]
        return {o.name: self.compiled[o.name] for o in options if o.name in self.compiled}

    def begin(self, inputs: Mapping[str, Any], settings: Settings) -> Writing:
        """Begin with inputs by name and settings that are checked."""
        growing = self.entrance.growing
        inputs = dict(inputs)
        begun = growing not in inputs and settings.start is not None
        if growing in inputs:
            inputs = {**self._prompts(inputs[growing]), **{n: v for n, v in inputs.items() if n != growing}}
        elif begun:
            first = np.full((self._rows(inputs), 1), settings.start)
            keep = keep_of(self.entrance.graph, growing)  # the first token exists, even where it is the pad's
            inputs = {**({keep: np.ones(first.shape, np.bool_)} if keep else {}), **inputs, growing: first}
        prepared = self.entrance.prepared(inputs)
        prompt = prepared[growing]
        self._check_context(prompt)
        self._check_settings(settings)
        if not prompt.shape[1]:
            fail("E0912", f"`{growing}` is empty: a text begins with at least one token")
        room = settings.max_tokens if self.context is None else self.context - prompt.shape[1] + 1
        keep = keep_of(self.entrance.graph, growing)
        return Writing(self, settings, prepared, prompt, prepared.get(keep) if keep else None, room, begun)

    def _prompts(self, given: Any) -> dict[str, Any]:
        """Prompts of unequal length, lists of ids, padded on the left, with what says so."""
        growing = self.entrance.growing
        if not isinstance(given, list | tuple) or not given or not all(isinstance(r, list | tuple) for r in given):
            return {growing: given}
        longest = max(len(row) for row in given)
        keep = keep_of(self.entrance.graph, growing)
        if all(len(row) == longest for row in given):
            known = not keep or (self.entrance.defaults and keep in self.entrance.defaults.outputs)
            return {growing: given, **({} if known else {keep: np.ones((len(given), longest), np.bool_)})}
        if not keep:
            fail(
                "E0912",
                f"the prompts have {min(len(r) for r in given)} to {longest} tokens, and the model cannot tell padding",
                notes=["it has no `keep` input of the same axes"],
                helps=["run prompts of one length together, or add `keep: keep[batch, n]` to the graph's inputs"],
            )
        padded = [[0] * (longest - len(row)) + list(row) for row in given]
        shown = [[False] * (longest - len(row)) + [True] * len(row) for row in given]
        return {growing: padded, keep: shown}

    def _rows(self, inputs: Mapping[str, Any]) -> int:
        """How many texts are written: how many rows the inputs that are given have."""
        batch = self.entrance.graph.inputs[self.entrance.growing].type.shape[0]
        for name, value in inputs.items():
            known = self.entrance.graph.inputs.get(name)
            if known is not None and batch in known.type.shape[:1] and not isinstance(value, str):
                return len(value) if isinstance(value, list | tuple) else next(iter(np.shape(value)), 1)
        return 1

    def _check_settings(self, settings: Settings) -> None:
        """E0732 and E0733 for what fits no text of this model."""
        grows = self.entrance.graph.inputs[self.entrance.growing].type
        for name in ("pad", "start"):
            if fault := self.vocabulary.beyond(name, getattr(settings, name)):
                raise Failed(fault)
        if settings.strategy == "beam" and grows.shape[0].number is not None:
            fail(
                "E0733",
                f"a search over beams needs a batch of any size, this model has one of {grows.shape[0]}",
                helps=[f"give `{self.entrance.growing}` a run-time length as its first axis", "or write greedily"],
            )

    def _check_context(self, prompt: Ints) -> None:
        if self.context is not None and prompt.shape[1] > self.context:
            fail(
                "E0943",
                f"the prompt has {prompt.shape[1]} tokens, the model can see {self.context}",
                notes=[f"its table `{self.table}` has so many positions"] if self.table else [],
                helps=["give a shorter prompt"],
            )


def writer_of(model: Loaded) -> Writer | None:
    """How a model of one graph writes; None where it says nothing of it."""
    said = model.manifest.generation
    settings = (said or {}).get("settings")
    graph = model.manifest.graph
    if not said or not isinstance(settings, dict):
        return None
    generation = Generation(str(said.get("name")), str(said.get("growing")), str(said.get("source")), settings)
    grows, source = graph.inputs.get(generation.growing), graph.outputs.get(generation.source)
    if grows is None or grows.type.rank != 2:
        return None
    if model.manifest.decodes is None and (source is None or source.type.rank not in (2, 3)):
        return None
    manifest, decodes = model.manifest, model.manifest.decodes
    if decodes is not None:
        context = decodes.get("context")
        most = context if type(context) is int else None
        takes = {generation.growing, *model.session.inputs, *model.session.optional}
        entrance = replace(
            model.entrance,
            bounds={**model.entrance.bounds, **bounds_from(decodes.get("bounds"))},
            unread=unread_of(graph, None, {*takes, *(manifest.defaults.outputs if manifest.defaults else ())}),
        )
        drawn = decodes.get("vocabulary")
        return Writer(
            entrance,
            generation,
            manifest.reading,
            most,
            "",
            manifest.seed,
            _no_stepper,
            model.session,
            decodes,
            drawn if type(drawn) is int else None,
        )
    bound = model.entrance.bounds.get(grows.type.shape[1].name or "", Bound())

    def stepper(prepared: Mapping[str, Array]) -> FullStepper:
        return FullStepper(model.session, model.entrance, generation.source, prepared)

    made = Writer(model.entrance, generation, manifest.reading, bound.high, "", manifest.seed, stepper)
    return replace(made, drawn=drawn_of(graph, generation))


def drawn_of(graph: Graph, generation: Generation) -> int | None:
    """How many tokens are drawn from."""
    return graph.outputs[generation.source].type.shape[-1].number


def _no_stepper(prepared: Mapping[str, Array]) -> FullStepper:
    raise AssertionError("a model that decodes by itself has no steps")


def open_writer(package: Package, *, provider: str = "cpu", threads: int = 0) -> Writer:
    """How a package writes. E0831 or E0832 where it holds no step, E0921 and E0922 for the provider."""
    role = package.role("step")
    graph = package.manifest(role).graph
    facts: Facts = load_facts(package.index.about, graph, str(package.path))
    reading = facts.reading.opened(Path(package.path))
    step = package.session(role, provider=provider, threads=threads)
    encode = package.session("encode", provider=provider, threads=threads) if "encode" in package.roles else None
    check_encode(facts, encode, str(package.path))
    bounds = {**{n: Bound(least) for n, least in facts.signature.least.items()}, **facts.bounds}
    growing = facts.generation.growing
    read = {growing, *graph.inputs, *(package.manifest("encode").graph.inputs if encode is not None else ())}
    unread = unread_of(facts.signature, facts.defaults, read & facts.signature.inputs.keys())
    entrance = Entrance(facts.signature, reading, facts.defaults, growing, bounds, unread)

    def stepper(prepared: Mapping[str, Array]) -> StateStepper:
        return StateStepper(facts, entrance, encode, step, graph, prepared)

    made = Writer(entrance, facts.generation, reading, facts.context, facts.table, facts.seed, stepper)
    return replace(made, drawn=drawn_of(graph, facts.generation))
