"""From IR graphs and their weights to files: decide where weights go, lower, pass the
gates, write.

The same graphs, weights and options give the same bytes. Weights stream tensor by
tensor. Nothing is at its final name before everything is written; the `.onnx` comes
last. A model of one file is the case of one graph; `specc_onnx.write.directory` writes
several as a package.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from specc.artifact.external import Beside, of_checkpoint
from specc.artifact.manifest import DOC
from specc.backend import Emitted, How, Texts, Written
from specc.files.ours import parts_beside
from specc.files.write import OutputDirectory, need_space, plain_stem
from specc.ir.derived import Generating, InPlace, Source
from specc.ir.graph import Graph
from specc.ir.target import Target
from specc.weights.external import content
from specc.weights.values import Values
from specc_onnx.emit.build import Built, build
from specc_onnx.emit.caches import build_in_place
from specc_onnx.emit.docs import document
from specc_onnx.gate.check import check
from specc_onnx.generate.build import build_generating
from specc_onnx.generate.ingredients import Ingredients
from specc_onnx.lower import legal
from specc_onnx.write import seal
from specc_onnx.write.weights import Stored, decide, put_inline, put_places


def package(
    graph: Source,
    path: Path,
    values: Values,
    *,
    target: Target,
    opset: int = legal.USUAL,
    weights_as: How = "auto",
    dtype: str = "",
    metadata: Texts | None = None,
    load: bool = True,
    beside: Sequence[tuple[str, bytes]] = (),
) -> Written:
    """Write `graph` as the model `path`. `metadata` makes the texts that the model
    carries, once it is built.

    `load=False` leaves out the last gate, the load in ONNX Runtime. `beside` are
    further files, suffix and content, that appear with the model under its name and
    their content's hash; those of a model that is replaced go. Fails with E0810 to
    E0815 (files), E0821 (opset), E0823, E0824 (weights), E0923 (load), and as `values`
    does.
    """
    prepared = prepare(
        [graph],
        path.parent,
        values,
        target=target,
        opset=opset,
        weights_as=weights_as,
        dtype=dtype,
        load=load,
    )
    stem = plain_stem(path.stem)
    with OutputDirectory(path.parent, superseded=parts_beside(path)) as out:
        others = [out.hashed(stem, suffix, [content]) for suffix, content in beside]
        data = enter(out, stem, prepared, values, [(path.name, metadata)])
    names = [path.name, *([data] if data else []), *others]
    files = tuple((path.parent / n, (path.parent / n).stat().st_size) for n in names)
    return Written(path, data, prepared.stored.plan, files)


@dataclass(frozen=True)
class Prepared:
    """Graphs that have passed the gates, and what becomes of their weights; nothing is
    written yet.
    """

    built: tuple[Built, ...]
    stored: Stored


def prepare(
    graphs: Sequence[Source],
    folder: Path,
    values: Values,
    *,
    target: Target,
    opset: int,
    weights_as: How,
    dtype: str = "",
    load: bool = True,
) -> Prepared:
    """Decide, lower and check graphs that are to be written to `folder` together."""
    legal.check_opset(opset)
    weighed = [_weighed(g) for g in graphs]
    stored = decide(
        weighed,
        values,
        folder,
        weights_as,
        opset,
        alignment=target.alignment,
        store=dtype,
    )
    if stored.plan.copied:
        # the folder is made later: its disk is that of the nearest one that is there
        there = (f for f in (folder, *folder.parents) if f.exists())
        need_space(next(there, folder), stored.plan.size)
    built = tuple(_built(graph, target, opset, stored) for graph in graphs)
    for one in built:
        check(one, load=load)
    return Prepared(built, replace(stored, beside=_linked(stored, values)))


def _linked(stored: Stored, values: Values) -> dict[str, Beside]:
    """What is recorded of the checkpoints that weights stay in, which are looked
    through: a NaN is E0507.
    """
    found = {}
    hashes = values.look_through(stored.plan.linked) if stored.plan.linked else {}
    for name, place in stored.plan.linked.items():
        run = stored.pieces[name].run
        assert run is not None, f"{name} is linked to no file"
        if place.location not in found:
            found[place.location] = of_checkpoint(run.path, hashes[run.path])
    return found


def _weighed(source: Source) -> Graph:
    """The graph whose parameters it needs."""
    match source:
        case Generating():
            return Ingredients.of(source).stored
        case InPlace():
            return source.graph
    return source


def _built(graph: Source, target: Target, opset: int, stored: Stored) -> Built:
    if isinstance(graph, Generating):
        return build_generating(graph, target, opset, stored.dtypes, stored.ties)
    if isinstance(graph, InPlace):
        return build_in_place(graph, target, opset, stored.dtypes, stored.ties)
    return build(graph, target, opset, stored.dtypes, stored.ties)


def enter(
    out: OutputDirectory,
    stem: str,
    prepared: Prepared,
    values: Values,
    entries: Sequence[tuple[str, Texts | None]],
) -> str | None:
    """Write the weights, once, and each graph under its name; gives the name of our own
    file of weights, if any.
    """
    stored = prepared.stored
    data = store(out, stem, stored, values)
    if data:
        facts = out.facts[data]
        own = {data: Beside(facts.bytes, facts.sha256)}
        stored = replace(stored, beside={**stored.beside, **own})
    # Weights first: what a model says of their file is known when that is written.
    for built, (name, metadata) in zip(prepared.built, entries, strict=True):
        place(built, stored, values, data)
        if metadata:
            texts = dict(metadata(_emitted(built, stored)))
            document(built.model, built.graph, texts.pop(DOC, ""))
            describe(built.model, texts)
        out.entry(name, sealed(built.model))
        if len(entries) > 1:
            release(built)
    return data


def _emitted(built: Built, stored: Stored) -> Emitted:
    """What the texts of a model may say of it."""
    held = {}
    for name in built.graph.parameters:
        own = stored.ties.get(name, name)
        # a model that decodes by itself may do without a weight of the whole graph
        if own in built.weights:
            held[name] = built.weights[own].name
    return Emitted(held, built.attentions, stored.beside)


def store(
    out: OutputDirectory, stem: str, stored: Stored, values: Values
) -> str | None:
    """Write the weights that go to a file of our own; its name, if there is one."""
    if stored.inline or not stored.plan.copied:
        return None

    def numbers(name: str) -> Iterator[memoryview]:
        return values.chunks(name, stored.pieces[name].dtype)

    return out.hashed(stem, ".data", content(stored.plan, numbers))


def place(built: Built, stored: Stored, values: Values, data: str | None) -> None:
    """Put the weights into the model, or say there where they lie."""
    if stored.inline:
        put_inline(built, stored, values)
        put_places(built, stored.plan.linked)
    else:
        put_places(built, stored.plan.places(data or ""))


def release(built: Built) -> None:
    """Let go of numbers in a model that has been written, so that those of one graph at
    a time are in memory.
    """
    for tensor in built.weights.values():
        tensor.ClearField("raw_data")


def describe(model: ModelProto, texts: Mapping[str, str]) -> None:
    """Texts that the model carries, by key."""
    for key, value in texts.items():
        model.metadata_props.add(key=key, value=value)


def sealed(model: ModelProto) -> list[bytes | memoryview]:
    """The model's bytes, the same for the same model, with a hash of themselves inside
    (`specc_onnx.write.seal`).
    """
    describe(model, {seal.KEY: seal.BLANK})
    return seal.closed(model.SerializeToString(deterministic=True))
