"""`specc compile --for`: a package of the graphs derived from one spec, over weights that are stored once."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from specc import backend, readings
from specc.compiling import Compiled, Options, files_of, files_read, remarks_of, values_of, weights_facts, with_taps
from specc.driver import Spec, elaborated
from specc.entrance import bounds_of
from specc.generation.options import Vocabulary
from specc.generation.settings import settings_of
from specc.input import shown
from specc.ir.defaults import closed
from specc.ir.derived import Derived
from specc.ir.graph import Graph
from specc.ir.model import Generation, Model
from specc.manifest import KEY, Manifest
from specc.output import plain_stem
from specc.passes.causality import growing_symbol, prove
from specc.passes.defaults import prove_defaults
from specc.passes.derive import derive
from specc.passes.flow import flow
from specc.passes.fuse_scan import fuse_scan
from specc.passes.inline import inline_defaults
from specc.passes.limits import limits
from specc.passes.plan import Rows
from specc.passes.rewrite import rewrite
from specc.passes.split_scan import split_scan
from specc.place import MODEL, place
from specc.profiles.dress import ROWS, check_profile, dressed
from specc.reading.check import Bound
from specc.reading.record import Reading
from specc.reading.tokenizer import SUFFIX
from specc.text.diagnostic import Failed, fail
from specc.weights.values import Binding, Values
from specc.writers.facts import Facts, bounds_data
from specc.writers.itself import TOLD
from specc.writers.writer import drawn_of

PARTS = ("score", "encode", "step", "generate")
"""What a package can hold: the graph as it is written, what is computed once, one step, and all of it in one file."""


def compile_package(spec: Spec, options: Options) -> Compiled:
    """Derive, bind the weights, lower, write `options.output`, a folder. Fails as `compile_spec` does.

    E0701 where the spec does not generate, E0711 to E0717 where it cannot.
    """
    check_profile(options.names)
    model = elaborated(spec, options.graph)
    graph = with_taps(model.graph, options.taps)
    if options.defaults_inside and model.defaults:
        graph = inline_defaults(graph, model.defaults)
    with closing(values_of(spec, graph, options)) as values:
        return _compiled(spec, options, model, graph, values)


def _compiled(spec: Spec, options: Options, model: Model, graph: Graph, values: Values) -> Compiled:
    given = readings.folders_of(options.weights, spec.config_file)
    reading = readings.reading_of(spec.program, model, given)
    warnings = (*(values.warnings if isinstance(values, Binding) else ()), *model.warnings)
    said = (*spec.remarks, *readings.remarks(model, given))
    inputs = files_read(spec, model, values, given)
    if options.parts == ("generate",) and options.output.endswith(".onnx"):
        path = place(options.output, MODEL, inputs=inputs, force=options.force)
        placed = reading.placed(plain_stem(path.stem))
        one = _Package(spec, options, model, graph, values, placed).write_one(path)
        return Compiled(
            one.path, files_of(one, placed), model, (*said, *_left_out(model), *remarks_of(one, options)), warnings
        )
    reading = reading.named({file.sha256: "tokenizer.json" for file in reading.files})
    written = _Package(spec, options, model, graph, values, reading).write(inputs)
    left_out = _left_out(model) if "generate" in options.parts else ()
    remarks = (*said, *left_out, *remarks_of(written, options))
    return Compiled(written.folder, written.files, model, remarks, warnings)


def _left_out(model: Model) -> tuple[str, ...]:
    """What a spec says of generating that a model which knows only tokens cannot do."""
    if model.generation and model.generation.settings.get("stop_strings"):
        return ("the stop strings are not in the model that decodes by itself: it knows tokens, not text",)
    return ()


def lowered(graph: Graph) -> Graph:
    """The graph as every target gets it: loops that an op does, and out of loops what need not be in them."""
    return rewrite(graph, [fuse_scan, split_scan])


def generation_of(model: Model) -> Generation:
    """What the model says it generates. E0701 where it says nothing."""
    if model.generation is None:
        fail(
            "E0701",
            f"`{model.name}` does not say what it generates",
            notes=["only `--for score` can be made of it"],
            helps=["add `generate NAME of INPUT from RESULT { … }` to the spec"],
        )
    return model.generation


def derived_of(
    graph: Graph, generation: Generation, rows: Rows = "newest", bounded: bool = True, defaults: Graph | None = None
) -> Derived:
    """`encode` and `step` for the result that is drawn from, and for results that can be had beside it.

    Fails with the proof's errors, E0711 to E0718, where the model cannot be generated.
    """
    symbol = growing_symbol(graph, generation.growing)
    if symbol is None:
        fail("E0702", f"`{generation.growing}` cannot grow: it has no axis behind the batch of a run-time length")
    drawn = [generation.source]
    if faults := prove(graph, symbol, generation.growing, drawn):
        raise Failed(*faults)
    if faults := prove_defaults(graph, defaults, symbol, generation.growing, drawn):
        raise Failed(*faults)
    outputs: dict[str, Rows] = {generation.source: rows}
    states = flow(graph, symbol)
    for name, value in graph.outputs.items():
        alone = len(states.state(value).axes) == 1
        if name not in outputs and alone and not prove(graph, symbol, generation.growing, [name]):
            outputs[name] = "new"
    return derive(graph, generation.growing, outputs, bounded=bounded)


def made_of(source: Any) -> Graph:
    """The graph that a part of a package computes."""
    graph: Graph = source if isinstance(source, Graph) else source.graph
    return graph


def parts_of(said: object) -> tuple[str, ...]:
    """The graphs a package is to hold, of names, a text of names with commas, or `all`. E0754 for unknown names."""
    names = list(PARTS) if said == "all" else said.split(",") if isinstance(said, str) else said
    if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(n, str) for n in names):
        _no_part(said)
    for name in names:
        if name not in PARTS:
            _no_part(name)
    return tuple(p for p in PARTS if p in names)


def _no_part(name: object) -> NoReturn:
    fail(
        "E0754",
        f"a package has no part called `{shown(str(name))[:60]}`",
        helps=[f"there are {', '.join(PARTS)}, and `all`"],
    )


def _below(graph: Graph, generation: Generation) -> int | None:
    """How many tokens the growing input takes."""
    below = graph.input_facts[generation.growing].below
    return below.number if below is not None else None


class _Package:
    """One package while it is made."""

    def __init__(
        self, spec: Spec, options: Options, model: Model, graph: Graph, values: Values, reading: Reading
    ) -> None:
        self.spec, self.options, self.model = spec, options, model
        self.source, self.graph = graph, lowered(graph)
        self.values, self.reading = values, reading
        self.onnx = backend.load("onnx")
        self.target = self.onnx.target(options.target)
        self.opset = options.opset or self.onnx.USUAL

    def write(self, inputs: Sequence[Path]) -> Any:
        """The package on disk, over none of the files that it is made from."""
        parts = self._parts()
        sources = {m.path: m.file.span.source.text for m in self.spec.library.modules.values() if m.file.span}
        extras = [self.onnx.Extra(f.name, f.content, role="tokenizer") for f in self.reading.files]
        return self.onnx.package_graphs(
            parts,
            Path(self.options.output),
            self.values,
            target=self.target,
            about=self.onnx.About(self.model.name, self.facts, sources),
            opset=self.opset,
            weights_as=self.options.weights_as or "auto",
            extras=[*extras, *self.extras],
            load=self.options.try_load,
            inputs=inputs,
            force=self.options.force,
            every_load=self.options.hash_full,
        )

    def write_one(self, path: Path) -> Any:
        """One file, tokens in and tokens out."""
        return self.onnx.package(
            self.generating(),
            path,
            self.values,
            target=self.target,
            opset=self.opset,
            weights_as=self.options.weights_as or "auto",
            metadata=self._decodes(),
            load=self.options.try_load,
            beside=[(SUFFIX, file.content) for file in self.reading.files if file.name],
        )

    def _parts(self) -> dict[str, Any]:
        """The graphs that are wanted, by role."""
        wanted = self.options.parts
        self.facts: Mapping[str, Any] = {}
        self.buffers: tuple[str, ...] = ()
        self.extras: list[Any] = []
        graphs: dict[str, tuple[Any, str]] = {}
        if "score" in wanted:
            graphs["score"] = (self.graph, "score.onnx")
        if {"encode", "step", "generate"} & set(wanted):
            generation = generation_of(self.model)
            own = self.options.names == "specc"
            derived = derived_of(self.graph, generation, ROWS[self.options.names], own, self.model.defaults)
            if {"encode", "step"} & set(wanted):
                made = dressed(self.options.names, self.model, derived)
                graphs |= {stem: (graph, f"{stem}.onnx") for stem, graph in made.graphs.items()}
                self._put_in_place(graphs, derived)
                self.extras = [self.onnx.json_extra(name, data) for name, data in made.files.items()]
            if self.options.names == "specc" and self._writes_tokens(generation):
                self.facts = self._facts(generation, derived).dump()
            if "generate" in wanted:
                whole = self.generating(derived if self.options.names == "specc" else None)
                graphs["generate"] = (whole, "generate.onnx")
        return {
            role: self.onnx.Part(g, file, self._decodes() if role == "generate" else self._manifest(made_of(g)))
            for role, (g, file) in graphs.items()
        }

    def _put_in_place(self, graphs: dict[str, tuple[Any, str]], derived: Derived) -> None:
        """A step that our own runner drives has buffers for caches, where the target can write into them."""
        if self.options.names != "specc":
            return
        graph, file = graphs["step"]
        if caches := self.onnx.caches_of(graph, derived.states, self.target, self.opset):
            made = self.onnx.InPlace(graph, caches)
            graphs["step"], self.buffers = (made, file), made.names

    def generating(self, derived: Derived | None = None) -> Any:
        """What the model that decodes by itself is made from."""
        generation = generation_of(self.model)
        graph = self._with_defaults(generation)
        derived = (
            derived if derived and graph is self.graph else derived_of(graph, generation, defaults=self.model.defaults)
        )
        chosen = settings_of(generation.settings, **self.options.settings)
        grows, source = graph.inputs[generation.growing].type, derived.step.outputs[generation.source].type
        if grows.rank != 2 or source.rank not in (2, 3) or source.shape[-1].number is None:
            fail(
                "E0703",
                f"`{generation.growing}` is no text of tokens drawn from `{generation.source}`",
                notes=[f"they are {grows} and {source}"],
                helps=["`--for generate` needs ids [batch, length] and logits [batch, length, vocabulary]"],
            )
        vocabulary = Vocabulary(_below(graph, generation), source.shape[-1].number)
        for word, value in self.options.settings.items():
            if fault := vocabulary.beyond(word, value):
                raise Failed(fault)
        decoding = self.onnx.Decoding(
            generation.source,
            chosen.strategy,
            chosen.start,
            chosen.stop,
            chosen.pad,
            chosen.repetition_penalty != 1,
            chosen.beams,
            chosen.n_best,
            chosen.length_penalty,
            chosen.early_stopping,
        )
        return self.onnx.Generating(graph, derived, decoding, self.model.defaults)

    def _writes_tokens(self, generation: Generation) -> bool:
        """Whether our own runner can drive the step: rows that are tokens, drawn from logits."""
        graph = self.model.graph
        return graph.inputs[generation.growing].type.rank == 2 and graph.outputs[generation.source].type.rank in (2, 3)

    def _with_defaults(self, generation: Generation) -> Graph:
        """The graph with what follows from the growing input inside, but for what says which rows exist."""
        facts, defaults = self.source.input_facts, self.model.defaults
        length = growing_symbol(self.source, generation.growing)
        inside = [
            n
            for n in (defaults.outputs if defaults else ())
            if n in facts and n != generation.growing and not facts[n].keep
            if any(d.name == length for d in facts[n].type.shape)
        ]
        return lowered(inline_defaults(self.source, closed(defaults, inside))) if defaults and inside else self.graph

    def _facts(self, generation: Generation, derived: Derived) -> Facts:
        """What the program that generates has to know."""
        symbol = growing_symbol(self.graph, generation.growing)
        limit = limits(self.model.graph).get(symbol or "")
        return Facts(
            generation,
            self._signature(),
            self.model.defaults,
            self.reading,
            derived.states,
            derived.handed,
            derived.whole,
            limit.most if limit else None,
            limit.table if limit else "",
            self.options.init if not isinstance(self.values, Binding) else None,
            self.buffers,
            self._bounds(symbol),
        )

    def _bounds(self, growing: str | None) -> dict[str, Bound]:
        """What lengths other than the growing one may be."""
        return {name: bound for name, bound in bounds_of(self.model.graph).items() if name != growing}

    def _signature(self) -> Graph:
        """The inputs of the spec and nothing else; what grows may be empty before it is begun."""
        growing = generation_of(self.model).growing
        symbol = growing_symbol(self.graph, growing)
        least = {n: m for n, m in self.model.graph.least.items() if n != symbol}
        return Graph("inputs", self.model.graph.inputs, self.model.graph.input_facts, {}, {}, (), {}, least=least)

    def _decodes(self) -> Any:
        """What a model that decodes by itself says of itself: how it was settled to choose."""
        generation = generation_of(self.model)
        chosen = asdict(settings_of(generation.settings, **self.options.settings))
        symbol = growing_symbol(self.graph, generation.growing)
        limit = limits(self.model.graph).get(symbol or "")
        bounds = bounds_data(self._bounds(symbol))
        decodes = {n: list(v) if isinstance(v, tuple) else v for n, v in chosen.items() if n in TOLD}

        def texts(built: Any, stored: Any) -> Mapping[str, str]:
            made = Manifest(
                self.model.name,
                self.model.doc,
                self._signature(),
                self.model.defaults,
                self.reading,
                self.model.config,
                vars(self.model.generation) if self.model.generation else None,
                {},
                weights_facts(self.values, self.options, stored.beside),
                {},
                self.target.name,
                self.opset,
                decodes={
                    **decodes,
                    "context": limit.most if limit else None,
                    "vocabulary": drawn_of(self.graph, generation),
                    "bounds": bounds,
                },
            )
            return {KEY: made.dump()}

        return texts

    def _manifest(self, graph: Graph) -> Any:
        """What a graph says of itself."""
        score = graph is self.graph

        def texts(built: Any, stored: Any) -> Mapping[str, str]:
            made = Manifest(
                self.model.name,
                self.model.doc,
                self.source if score else graph,
                self.model.defaults if score and not self.options.defaults_inside else None,
                self.reading if score else Reading(),
                self.model.config,
                vars(self.model.generation) if score and self.model.generation else None,
                {},
                weights_facts(self.values, self.options, stored.beside),
                {name: built.weights[stored.ties.get(name, name)].name for name in graph.parameters},
                self.target.name,
                self.opset,
                attentions=built.attentions,
            )
            return {KEY: made.dump()}

        return texts
