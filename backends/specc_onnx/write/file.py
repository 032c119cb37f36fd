"""Reading a model file: what it says about itself, its weights, and its attentions'
weights on demand.

A model is parsed as untrusted: its size is capped before it is read, and weights beside
it are read only from regular files in or below its folder.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import onnx
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from specc.backend import Product, Room, Subgraphs
from specc.files.read import Unreadable, read_regular, shown
from specc.ir.array import Array
from specc.text.diagnostic import fail
from specc_onnx.emit.executions import count_executions, subgraphs_of
from specc_onnx.emit.rounding import products_of, shares_scales, without_rounding
from specc_onnx.emit.taps import NO_WEIGHTS, attention_outputs
from specc_onnx.fixed import FixedModel, recordable
from specc_onnx.run import RunningModel, open_bytes
from specc_onnx.write import seal
from specc_onnx.write.room import room

LARGEST = 2**31
"""Bytes of an ONNX file; protobuf can hold no more."""


@dataclass(frozen=True)
class ModelFile:
    """A parsed model and where it lies."""

    path: Path
    model: ModelProto

    @property
    def metadata(self) -> dict[str, str]:
        """The texts the model carries."""
        return {p.key: p.value for p in self.model.metadata_props}

    def outside(self) -> list[tuple[str, int]]:
        """The files beside the model that its tensors lie in, and how many bytes of
        each they need; -1: unclear.
        """
        return _outside(self.model)

    def unbroken(self) -> bool:
        """Whether the file is as it was written, to the last byte."""
        return seal.unbroken(self.path)

    def room(self) -> Room:
        """What its weights take in memory."""
        return room(self.model)

    def weights(self, names: Mapping[str, str]) -> dict[str, Array]:
        """Each parameter's numbers; `names` says which initializer holds it. E0925
        where they cannot be read.
        """
        known = {t.name: t for t in self.model.graph.initializer}
        found = {}
        for parameter, name in names.items():
            if name not in known:
                fail(
                    "E0925",
                    f"`{shown(str(self.path))}` holds no weights called `{shown(name)}`",
                )
            try:
                found[parameter] = onnx.numpy_helper.to_array(
                    known[name], str(self.path.parent)
                )
            except (
                ValueError,
                OSError,
                TypeError,
                onnx.checker.ValidationError,
            ) as error:
                fail(
                    "E0925",
                    f"the weights `{shown(name)}` of `{shown(str(self.path))}` cannot be read",
                    notes=[shown(str(error))[:300]],
                    helps=[
                        "the file beside the model may be missing or cut short: compile again"
                    ],
                )
        return found

    def open(self, provider: str, threads: int = 0) -> RunningModel:
        """The model, ready to run."""
        return self._opened(self.model, provider, threads)

    def open_fixed(
        self,
        provider: str,
        lengths: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> FixedModel:
        """The model for inputs of these lengths alone, recorded where that can be."""
        running = open_bytes(
            self.model.SerializeToString(),
            provider,
            folder=self.path.parent,
            name=str(self.path),
            lengths=lengths,
            recorded=recordable(self.model, provider),
        )
        return FixedModel.of(running, shapes)

    def shares_scales(self) -> bool:
        """Whether rows that are computed together are rounded by one scale."""
        return shares_scales(self.model)

    def open_exact(self, provider: str, threads: int = 0) -> RunningModel:
        """A copy of the model in which rows are not rounded before they meet rounded
        weights.
        """
        copy = _copied(self.model)
        without_rounding(copy)
        return self._opened(copy, provider, threads, exact=True)

    def open_with_products(
        self, provider: str
    ) -> tuple[RunningModel, tuple[Product, ...]]:
        """A copy of the model that also gives what its products by rounded weights read
        and make.
        """
        copy = _copied(self.model)
        products = products_of(copy)
        # a layer that rounds rows together does so for the rows of each thread
        return self._opened(copy, provider, threads=1), products

    def subgraphs(self) -> Subgraphs:
        """The branches and loop bodies of the model."""
        return subgraphs_of(self.model)

    def open_counting(self, provider: str) -> RunningModel:
        """A copy as `open_exact` that also counts executions of subgraphs."""
        copy = _copied(self.model)
        without_rounding(copy)
        count_executions(copy)
        return self._opened(copy, provider, exact=True)

    def _opened(
        self, model: ModelProto, provider: str, threads: int = 0, exact: bool = False
    ) -> RunningModel:
        return open_bytes(
            model.SerializeToString(),
            provider,
            folder=self.path.parent,
            name=str(self.path),
            threads=threads,
            exact=exact,
        )

    def open_with_attention(
        self, provider: str, notes: Iterable[Mapping[str, str]]
    ) -> tuple[RunningModel, dict[str, str]]:
        """A copy of the model that also gives attention weights, and the outputs' names
        by scope.
        """
        copy = _copied(self.model)
        # what is left out whoever asks computes by the reference
        if provider in NO_WEIGHTS:
            notes = [note for note in notes if "weights" in note]
        names = attention_outputs(copy, notes)
        return self._opened(copy, provider), names


def _outside(model: ModelProto) -> list[tuple[str, int]]:
    """The files that tensors of a model lie in, and the bytes needed of each or -1."""
    ends: dict[str, int] = {}
    tensors = [*_tensors(model.graph)]
    for function in model.functions:
        tensors += _in_nodes(function.node)
    for tensor in tensors:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        facts = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = (
            _number(facts.get("offset", "0")),
            _number(facts.get("length", "")),
        )
        location = facts.get("location", "")
        known = ends.get(location, 0)
        ends[location] = (
            -1 if min(known, offset) < 0 or length < 1 else max(known, offset + length)
        )
    return list(ends.items())


def _copied(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def read_model(path: Path) -> ModelFile:
    """A model file. E0802 when it cannot be read, E0926 when it is no ONNX model."""
    try:
        data = read_regular(path, LARGEST)
    except Unreadable as error:
        fail("E0802", f"the model `{shown(str(path))}` cannot be read: {error.reason}")
    return _beside_its_data(parse_model(data, path))


def _beside_its_data(file: ModelFile) -> ModelFile:
    """A model named by a link lies where the link leads, unless the files it needs lie
    beside the link.
    """
    needed = [location for location, _ in file.outside() if "\0" not in location]
    if not file.path.is_symlink() or (
        needed and all((file.path.parent / name).exists() for name in needed)
    ):
        return file
    return replace(file, path=file.path.resolve())


def parse_model(data: bytes, path: Path) -> ModelFile:
    """A model from the bytes of the file `path`. E0926 when they are no ONNX model."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        readable = all(isinstance(text, str) for text in texts(model))
    except (DecodeError, ValueError):
        readable = False
    if not readable:
        model.Clear()
    if not model.graph.node and not model.graph.output:
        fail(
            "E0926",
            f"`{shown(str(path))}` is no ONNX model",
            helps=["`specc compile SPEC -o MODEL.onnx` makes one"],
        )
    return ModelFile(path, model)


def texts(message: Message) -> Iterator[str | bytes]:
    """Every text in a model; bytes for one that is not UTF-8, which protobuf lets pass."""
    for name in _fields(message.DESCRIPTOR):
        value = getattr(message, name)
        if isinstance(value, str | bytes):
            yield value
        elif isinstance(value, Message):
            if message.HasField(name):
                yield from texts(value)
        else:  # several
            for one in value:
                if isinstance(one, Message):
                    yield from texts(one)
                else:
                    yield one


@lru_cache(maxsize=64)
def _fields(kind: Descriptor) -> list[str]:
    """Fields that are texts or hold some. Bytes are not looked at, which may be many."""
    return [
        f.name
        for f in kind.fields
        if f.message_type is not None or f.type == f.TYPE_STRING
    ]


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph: initializers, and those in attributes, at any depth."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _in_nodes(graph.node)


def _in_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _tensors(graph)


def _number(text: str) -> int:
    """A number of bytes as a model writes it; -1 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
