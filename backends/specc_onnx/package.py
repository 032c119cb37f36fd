"""From an IR graph and its weights to files: decide where weights go, lower, pass the gates, write.

The same graph, weights and options give the same bytes. Weights stream tensor by tensor. Nothing is at
its final name before everything is written; the `.onnx` comes last.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from specc.ir.graph import Graph
from specc.output import OutputDirectory, need_space
from specc.weights.external import Plan, content
from specc.weights.values import Values
from specc_onnx import legal
from specc_onnx.build import Built, build
from specc_onnx.check import check
from specc_onnx.targets import Target
from specc_onnx.weights import How, Stored, decide, put_inline, put_places

Metadata = Callable[[Built, Stored], Mapping[str, str]]


@dataclass(frozen=True)
class Written:
    """A model on disk. `data` is the file of ours that holds weights, if there is one.

    `plan.linked` are the weights that stayed in the checkpoint, `plan.reasons` why others did not.
    """

    path: Path
    data: str | None
    built: Built
    plan: Plan


def package(
    graph: Graph,
    path: Path,
    values: Values,
    *,
    target: Target,
    opset: int = legal.USUAL,
    weights_as: How = "auto",
    metadata: Metadata | None = None,
    load: bool = True,
) -> Written:
    """Write `graph` as the model `path`. `metadata` makes the texts that the model carries, once it is built.

    `load=False` leaves out the last gate, the load in ONNX Runtime. Fails with E0810 to E0815 (files),
    E0821 (opset), E0823, E0824 (weights), E0923 (load), and as `values` does.
    """
    legal.check_opset(opset)
    stored = decide(graph, values, path.parent, weights_as, opset, alignment=target.alignment)
    if stored.plan.copied:
        need_space(path.parent, stored.plan.size)
    built = build(graph, target, opset, stored.dtypes, stored.ties)
    check(built, load=load)
    for name in stored.plan.linked:  # what stays where it is is looked at too: a NaN stops the work (E0507)
        deque(values.chunks(name, stored.pieces[name].dtype), maxlen=0)
    with OutputDirectory(path.parent) as out:
        data = store(out, path.stem, built, stored, values)
        describe(built.model, metadata(built, stored) if metadata else {})
        out.entry(path.name, [serialized(built.model)])
    return Written(path, data, built, stored.plan)


def store(out: OutputDirectory, stem: str, built: Built, stored: Stored, values: Values) -> str | None:
    """Put the weights where they belong and say so in the model; the name of our own file, if it got one."""
    if stored.inline:
        put_inline(built, stored, values)
        put_places(built, stored.plan.linked)
        return None
    data = None
    if stored.plan.copied:
        chunks = content(stored.plan, lambda name: values.chunks(name, stored.pieces[name].dtype))
        data = out.hashed(stem, ".data", chunks)
    put_places(built, stored.plan.places(data or ""))
    return data


def describe(model: ModelProto, texts: Mapping[str, str]) -> None:
    """Texts that the model carries, by key."""
    for key, value in texts.items():
        model.metadata_props.add(key=key, value=value)


def serialized(model: ModelProto) -> bytes:
    """The model's bytes, the same for the same model."""
    made: bytes = model.SerializeToString(deterministic=True)
    return made
