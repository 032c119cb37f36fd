"""Define `ParameterSource`, an interface for streaming parameter values, and its implementations
for checkpoints, random initialization and overridden parameters.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import Diagnostic
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.weights.checkpoint_files import Checkpoint
from specc.weights.expression_evaluation import (
    TensorByteRange,
    evaluate_weight_expression,
    find_stored_byte_range,
    infer_expression_shape,
    slice_expression,
    split_concatenation,
)
from specc.weights.formats.safetensors import CHUNK_BYTES, TensorFile
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.initializers import Initializer, parse_initializer
from specc.weights.random_stream import (
    BLOCK_WORDS,
    Floats,
    fill_array,
    iterate_normals,
    iterate_uniforms,
)
from specc.weights.weight_expressions import Expr, Shape, iterate_tensor_names
from specc.weights.weight_rules import ModelParameter, ParameterMap, ParameterNaming
from specc.weights.weight_value_checks import check_finite, convert_dtype, to_little_endian


def iterate_initial_values(
    initializer: Initializer, seed: int, name: str, shape: Shape
) -> Iterator[Floats]:
    """Yield the float32 initial values of a parameter in blocks, in C order."""
    count = math.prod(shape)
    match initializer.kind:
        case "zeros" | "ones" | "constant":
            value = 1.0 if initializer.kind == "ones" else initializer.value
            return _iterate_constant(value, count)
        case "normal":
            return iterate_normals(seed, name, count, initializer.value)
    bound = initializer.compute_bound(shape)
    return iterate_uniforms(seed, name, count, -bound, bound)


def make_initial_values(initializer: Initializer, seed: int, name: str, shape: Shape) -> Floats:
    """Return a parameter's float32 initial values, which depend only on `seed` and `name`."""
    return fill_array(shape, iterate_initial_values(initializer, seed, name, shape))


def _iterate_constant(value: float, count: int) -> Iterator[Floats]:
    for start in range(0, count, BLOCK_WORDS):
        yield np.full(min(BLOCK_WORDS, count - start), value, np.float32)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The byte range of a parameter in a file. `offset` is relative to the start of the file."""

    path: Path
    offset: int
    nbytes: int


class ParameterSource(Protocol):
    """A source that streams parameter values. A tied parameter has the values of the parameter that
    it is tied to.
    """

    @property
    def parameters(self) -> ParameterMap:
        """All parameters by name."""
        ...

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied parameter that a parameter is tied to, or None."""
        ...

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype in which the source stores a parameter."""
        ...

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in a file, or None if it needs a conversion."""
        ...

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield values as little-endian bytes in C order. A chunk is valid until the next
        iteration.
        """
        ...

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Check parameters that remain in checkpoint files. Return the SHA-256 of each file."""
        ...


def read_parameter(values: ParameterSource, name: str, dtype: str | None = None) -> Array:
    """Read a whole parameter in `dtype`, by default in its stored dtype."""
    stored_dtype = dtype or values.get_stored_dtype(name)
    shape = values.parameters[name].shape
    raw = np.empty(math.prod(shape) * NUMPY_DTYPES[stored_dtype].itemsize, np.uint8)
    position = 0
    for chunk in values.iterate_chunks(name, stored_dtype):
        raw[position : position + len(chunk)] = chunk
        position += len(chunk)
    assert position == raw.size, f"{name}: {position} bytes where {raw.size} are due"
    return raw.view(NUMPY_DTYPES[stored_dtype]).reshape(shape)


def find_tied_parameters(values: ParameterSource) -> dict[str, str]:
    """Map each tied parameter to the parameter that it is tied to."""
    tied = {name: values.get_tied_source(name) for name in values.parameters}
    return {name: source for name, source in tied.items() if source is not None}


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """A parameter with either an expression over tensors or the name of the parameter that it is
    `tied_to`. A randomly initialized parameter has neither.
    """

    parameter: ModelParameter
    expr: Expr | None
    tied_to: str | None
    dtype: str


CheckedRange: TypeAlias = tuple[TensorByteRange, str, str]
"""A byte range whose values must be checked, the dtype of the values, and a description."""


@dataclass(frozen=True, kw_only=True)
class CheckpointBinding:
    """The parameters of a model, bound to a checkpoint by `bind_parameters`. The class implements
    `ParameterSource`. `head_weights` are the values of a new task head, whose parameters are not in
    the checkpoint.
    """

    checkpoint: Checkpoint
    bound_parameters: Mapping[str, BoundParameter]
    naming: ParameterNaming = field(default_factory=ParameterNaming)
    ignored_tensors: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    head_weights: "RandomInitWeights | None" = None

    @property
    def parameters(self) -> ParameterMap:
        """All parameters by name."""
        return {name: b.parameter for name, b in self.bound_parameters.items()}

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied parameter that a parameter is tied to, or None."""
        return self.bound_parameters[name].tied_to

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype of a parameter's tensor in the file, or of its expression."""
        return self.resolve_tie(name).dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in the checkpoint, or None if it needs a conversion."""
        view = self._find_parameter_bytes(name)
        if view is None:
            return None
        file = self.checkpoint.get_file(view.tensor)
        return ByteRange(file.path, file.tensors[view.tensor].offset + view.offset, view.nbytes)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the checked values in `dtype`. Raise E0507, E0512 or E0517 on failure."""
        bound = self.resolve_tie(name)
        if self.head_weights is not None and bound.parameter.name in self.head_weights.parameters:
            yield from self.head_weights.iterate_chunks(bound.parameter.name, dtype)
            return
        assert bound.expr is not None, f"{name} is tied to a tied parameter"
        # concatenated tensors are read one after another
        for piece in split_concatenation(bound.expr):
            view = self.find_tensor_byte_range(piece)
            location = self._describe_location(bound, piece)
            if view is None:
                blocks = self._compute_values(piece)
            else:
                blocks = self._read_stored(view, bound.dtype)
            for block in blocks:
                check_finite(block, location)
                yield to_little_endian(convert_dtype(block, dtype, location))

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return the SHA-256 of each file that contains the parameters. Raise E0507 or E0512."""
        ranges_by_file: dict[TensorFile, dict[str, list[CheckedRange]]] = {}
        for name in names:
            view, bound = self._find_parameter_bytes(name), self.resolve_tie(name)
            assert view is not None, f"{name} is not stored unchanged in a file"
            file_ranges = ranges_by_file.setdefault(self.checkpoint.get_file(view.tensor), {})
            checked_range = view, bound.dtype, self._describe_location(bound)
            file_ranges.setdefault(view.tensor, []).append(checked_range)
        return {file.path: self._check_file(file, r) for file, r in ranges_by_file.items()}

    def _check_file(self, file: TensorFile, ranges: Mapping[str, list[CheckedRange]]) -> str:
        digest = hashlib.sha256()
        # Hashing takes most of the time and releases the GIL, so a second thread hashes a chunk
        # while this thread checks the chunk and reads the next one.
        hash_task: Future[None] | None = None
        with ThreadPoolExecutor(1) as hashing:
            for name, position, chunk in file.iterate_all_bytes():
                previous_task, hash_task = hash_task, hashing.submit(digest.update, chunk)
                for view, dtype, location in ranges.get(name, ()):
                    begin = view.offset - position
                    values = chunk[max(begin, 0) : max(begin + view.nbytes, 0)]
                    check_finite(np.frombuffer(values, NUMPY_DTYPES[dtype]), location)
                if previous_task is not None:
                    previous_task.result()
        return digest.hexdigest()

    def close(self) -> None:
        """Close the files of the checkpoint."""
        self.checkpoint.close()

    def resolve_tie(self, name: str) -> BoundParameter:
        """Return a parameter, or the parameter that it is tied to."""
        bound = self.bound_parameters[name]
        return self.bound_parameters[bound.tied_to] if bound.tied_to is not None else bound

    def _find_parameter_bytes(self, name: str) -> TensorByteRange | None:
        expr = self.resolve_tie(name).expr
        # the parameters of a new task head are not in a file
        return self.find_tensor_byte_range(expr) if expr is not None else None

    def find_tensor_byte_range(self, expr: Expr) -> TensorByteRange | None:
        """Return the stored bytes that equal the value of `expr`, or None if the value must be
        computed.
        """
        view, checkpoint = find_stored_byte_range(expr, self.checkpoint.tensors), self.checkpoint
        computed_tensors = checkpoint.adapted_tensors | checkpoint.decoded_tensors
        return None if view and view.tensor in computed_tensors else view

    def _compute_values(self, expr: Expr) -> Iterator[Array]:
        """Yield the values of an expression in blocks. To bound memory, an expression over decoded
        tensors is evaluated in chunks of rows.
        """
        get, tensors = self.checkpoint.read_tensor, self.checkpoint.tensors
        shapes = {name: tensors[name].shape for name in iterate_tensor_names(expr)}
        pieces = [expr]
        if not self.checkpoint.decoded_tensors.isdisjoint(shapes):
            pieces = _split_rows(expr, shapes)
        for piece in pieces:
            yield from _iterate_blocks(evaluate_weight_expression(piece, get, get))

    def _read_stored(self, tensor_view: TensorByteRange, dtype: str) -> Iterator[Array]:
        name, offset, nbytes = tensor_view.tensor, tensor_view.offset, tensor_view.nbytes
        for chunk in self.checkpoint.get_file(name).iterate_chunks(name, offset, nbytes):
            yield np.frombuffer(chunk, NUMPY_DTYPES[dtype])

    def _describe_location(self, bound: BoundParameter, piece: Expr | None = None) -> str:
        """Describe a parameter and the tensors that the parameter (or the expression `piece`)
        reads, for error messages.
        """
        expr = piece or bound.expr
        assert expr is not None
        first = next(iterate_tensor_names(expr))
        file = escape_text(str(self.checkpoint.get_file(first).path))
        name = bound.parameter.name
        suffix = "" if first == name else f", for `{escape_text(name)}`"
        return f"`{escape_text(first)}` in `{file}`{suffix}"


@dataclass(frozen=True)
class RandomInitWeights:
    """Randomly initialized parameters, whose values depend on a seed and the parameter name.
    The class implements `ParameterSource`.

    `initializers` maps each name to the text of its initializer. `ties` maps tied parameters to the
    parameters that they are tied to.
    """

    seed: int
    parameters: ParameterMap
    initializers: Mapping[str, str]
    ties: Mapping[str, str] = field(default_factory=dict)

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied parameter that a parameter is tied to, or None."""
        root = name
        while root in self.ties:
            root = self.ties[root]
        return None if root == name else root

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype of a parameter. Values are generated in float32 and then rounded."""
        return self.parameters[name].dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return None, because no file stores the values."""
        return None

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return {}, because there are no files to check."""
        return {}

    def close(self) -> None:
        """Do nothing, because there are no files to close."""

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the initial values in `dtype`. Raise E0516 or E0517 on failure."""
        parameter = self.parameters[self.get_tied_source(name) or name]
        initializer = parse_initializer(self.initializers[parameter.name], parameter.span)
        location = f"`{escape_text(parameter.name)}`, started as {initializer}"
        root, shape = parameter.name, parameter.shape
        for block in iterate_initial_values(initializer, self.seed, root, shape):
            yield to_little_endian(convert_dtype(block, dtype, location))


def _split_rows(expr: Expr, shapes: Mapping[str, Shape]) -> list[Expr]:
    """Split an expression into chunks of rows. Return [`expr`] if a chunk cannot be sliced."""
    rows, *rest = infer_expression_shape(expr, shapes) or (1,)
    step = max(1, MAX_DECODED_ELEMENTS // max(1, math.prod(rest)))
    parts = [
        slice_expression(expr, start, min(start + step, rows), shapes)
        for start in range(0, rows, step)
    ]
    chunks = [part for part in parts if part is not None]
    return chunks if len(chunks) == len(parts) else [expr]


MAX_DECODED_ELEMENTS = 1 << 20
"""Maximum number of elements of a decoded tensor in memory, unless a single row has more."""


def _iterate_blocks(array: Array) -> Iterator[Array]:
    """Yield the elements of an array in blocks, in C order, without copying the whole array."""
    # contiguous arrays are sliced as flat arrays, other arrays by rows, so that only a few rows are
    # copied at a time
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        step = CHUNK_BYTES // array.itemsize
        for start in range(0, flat.size, step):
            yield flat[start : start + step]
    elif array.size:
        rows = max(1, CHUNK_BYTES // (array.nbytes // array.shape[0]))
        for start in range(0, array.shape[0], rows):
            yield np.ascontiguousarray(array[start : start + rows]).reshape(-1)


@dataclass(frozen=True)
class ParameterOverrides:
    """The parameters of `base`, with the values of some parameters replaced. The class implements
    `ParameterSource`.
    """

    base: ParameterSource

    @property
    def parameters(self) -> ParameterMap:
        """All parameters by name."""
        return self.base.parameters

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied parameter that a parameter is tied to, or None."""
        return self.base.get_tied_source(name)

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype in which `base` stores a parameter."""
        return self.base.get_stored_dtype(name)

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in a file, or None if the parameter is overridden."""
        return None if self.is_overridden(name) else self.base.find_byte_range(name)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of a parameter as bytes. Raise the errors of the base source."""
        if self.is_overridden(name):
            return self.iterate_replacement_chunks(name, dtype)
        return self.base.iterate_chunks(name, dtype)

    def is_overridden(self, name: str) -> bool:
        """Return True if the values of a parameter differ from those in `base`."""
        return False

    def iterate_replacement_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield the values of an overridden parameter as bytes."""
        return self.base.iterate_chunks(name, dtype)

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return the SHA-256 of each checkpoint file that still stores parameters."""
        return self.base.validate_and_hash_files(names)
