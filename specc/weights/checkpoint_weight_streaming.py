"""Stream the values of parameters that are bound to checkpoint tensors. Read stored bytes, evaluate
weight expressions in chunks of rows, check the values, and hash the files.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

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
    slice_expression_rows,
    split_concatenation,
)
from specc.weights.formats.safetensors import CHUNK_BYTES, TensorFile
from specc.weights.formats.safetensors_header import NUMPY_DTYPES
from specc.weights.parameter_name_patterns import ParameterNaming
from specc.weights.parameter_sources import ByteRange, RandomInitWeights
from specc.weights.weight_expressions import Expr, Shape, TransposeExpr, iterate_tensor_names
from specc.weights.weight_rules_and_initializers import ModelParameter, ParameterMap
from specc.weights.weight_value_checks import check_finite, convert_dtype, to_little_endian_bytes


@dataclass(frozen=True, slots=True)
class BoundParameter:
    """A parameter with either an expression over tensors or the name of the parameter that it is
    `tied_to`. A randomly initialized parameter has neither an expression nor a tie.
    """

    parameter: ModelParameter
    expr: Expr | None
    tied_to: str | None
    dtype: str


CheckedRange: TypeAlias = tuple[TensorByteRange, str, str]
"""A byte range whose values must be checked, with the dtype and a description of the values."""


@dataclass(frozen=True, kw_only=True)
class CheckpointWeights:
    """The parameters of a model, bound to a checkpoint by `bind_parameters`. The class implements
    `ParameterSource`. `head_weights` are the values of a new task head, i.e. of parameters that are
    not in the checkpoint.
    """

    checkpoint: Checkpoint
    bound_parameters: Mapping[str, BoundParameter]
    naming: ParameterNaming = field(default_factory=ParameterNaming)
    ignored_tensors: tuple[str, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()
    head_weights: "RandomInitWeights | None" = None

    @property
    def parameters(self) -> ParameterMap:
        """All parameters, keyed by name."""
        return {name: b.parameter for name, b in self.bound_parameters.items()}

    def get_tied_source(self, name: str) -> str | None:
        """Return the untied source of a tied parameter, or None for an untied parameter."""
        return self.bound_parameters[name].tied_to

    def get_stored_dtype(self, name: str) -> str:
        """Return the dtype of a parameter's tensor in the file, or of its expression."""
        return self.get_untied_parameter(name).dtype

    def find_byte_range(self, name: str) -> ByteRange | None:
        """Return a parameter's byte range in the checkpoint, or None if its values must be
        converted.
        """
        view = self._find_parameter_bytes(name)
        if view is None:
            return None
        file = self.checkpoint.get_file(view.tensor)
        return ByteRange(file.path, file.tensors[view.tensor].offset + view.offset, view.nbytes)

    def iterate_chunks(self, name: str, dtype: str) -> Iterator[memoryview]:
        """Yield checked values of dtype `dtype`. Raise E0507, E0512 or E0517 on failure."""
        bound = self.get_untied_parameter(name)
        if self.head_weights is not None and bound.parameter.name in self.head_weights.parameters:
            yield from self.head_weights.iterate_chunks(bound.parameter.name, dtype)
            return
        assert bound.expr is not None, f"{name} is tied to a tied parameter"
        # read concatenated tensors in order
        for piece in split_concatenation(bound.expr):
            view = self.find_tensor_byte_range(piece)
            location = self._describe_location(bound, piece)
            if view is None:
                blocks = self._compute_values(piece)
            else:
                blocks = self._read_stored(view, bound.dtype)
            for block in blocks:
                check_finite(block, location)
                yield to_little_endian_bytes(convert_dtype(block, dtype, location))

    def validate_and_hash_files(self, names: Iterable[str]) -> dict[Path, str]:
        """Return the SHA-256 of each file with parameters. Raise E0507 or E0512 on failure."""
        ranges_by_file: dict[TensorFile, dict[str, list[CheckedRange]]] = {}
        for name in names:
            view, bound = self._find_parameter_bytes(name), self.get_untied_parameter(name)
            assert view is not None, f"{name} is not stored unchanged in a file"
            file_ranges = ranges_by_file.setdefault(self.checkpoint.get_file(view.tensor), {})
            checked_range = view, bound.dtype, self._describe_location(bound)
            file_ranges.setdefault(view.tensor, []).append(checked_range)
        return {file.path: self._check_file(file, r) for file, r in ranges_by_file.items()}

    def _check_file(self, file: TensorFile, ranges: Mapping[str, list[CheckedRange]]) -> str:
        digest = hashlib.sha256()
        # Hashing dominates the run time and releases the GIL. A second thread therefore hashes a
        # chunk while this thread checks the chunk and reads the next one.
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

    def get_untied_parameter(self, name: str) -> BoundParameter:
        """Return a parameter, or the parameter that it is tied to."""
        bound = self.bound_parameters[name]
        return self.bound_parameters[bound.tied_to] if bound.tied_to is not None else bound

    def _find_parameter_bytes(self, name: str) -> TensorByteRange | None:
        expr = self.get_untied_parameter(name).expr
        # the parameters of a new task head are not in a file
        return self.find_tensor_byte_range(expr) if expr is not None else None

    def find_tensor_byte_range(self, expr: Expr) -> TensorByteRange | None:
        """Return the stored bytes that equal the value of `expr`, or None if there are none."""
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
        """Describe, for error messages, a parameter and the tensors that the parameter (or the
        expression `piece`) reads.
        """
        expr = piece or bound.expr
        assert expr is not None
        first = next(iterate_tensor_names(expr))
        file = escape_text(str(self.checkpoint.get_file(first).path))
        name = bound.parameter.name
        suffix = "" if first == name else f", for `{escape_text(name)}`"
        return f"`{escape_text(first)}` in `{file}`{suffix}"


def _split_rows(expr: Expr, shapes: Mapping[str, Shape]) -> list[Expr]:
    """Split an expression into chunks of rows. Return [`expr`] if its rows cannot be sliced."""
    rows, *rest = infer_expression_shape(expr, shapes) or (1,)
    step = max(1, MAX_DECODED_ELEMENTS // max(1, math.prod(rest)))
    parts = [
        slice_expression_rows(expr, start, min(start + step, rows), shapes)
        for start in range(0, rows, step)
    ]
    chunks = [part for part in parts if part is not None]
    return chunks if len(chunks) == len(parts) else [expr]


MAX_DECODED_ELEMENTS = 1 << 20
"""Maximum number of elements of a decoded tensor in memory, unless a single row has more."""


def _iterate_blocks(array: Array) -> Iterator[Array]:
    """Yield the elements of an array in blocks, in C order, without copying the whole array."""
    # slice contiguous arrays as flat arrays, and other arrays by rows, to copy only a few rows at a
    # time
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        step = CHUNK_BYTES // array.itemsize
        for start in range(0, flat.size, step):
            yield flat[start : start + step]
    elif array.size:
        rows = max(1, CHUNK_BYTES // (array.nbytes // array.shape[0]))
        for start in range(0, array.shape[0], rows):
            yield np.ascontiguousarray(array[start : start + rows]).reshape(-1)


def find_transposed_parameters(weights: CheckpointWeights) -> frozenset[str]:
    """Return the names of parameters that are stored transposed, except sources of ties."""
    # tied parameters read their source in the spec's layout
    tie_sources = {b.tied_to for b in weights.bound_parameters.values() if b.tied_to is not None}
    return frozenset(
        name
        for name, bound in weights.bound_parameters.items()
        if name not in tie_sources and _find_transposed_operand(weights, bound) is not None
    )


def _find_transposed_operand(weights: CheckpointWeights, bound: BoundParameter) -> Expr | None:
    """Return the operand of a transpose, or None if the operand is not stored in a file."""
    expr = bound.expr
    if not isinstance(expr, TransposeExpr) or len(bound.parameter.shape) != 2:
        return None
    # an identity transpose, or a transpose of a single row or column, does not change the stored
    # bytes
    if expr.axes == (0, 1) or weights.find_tensor_byte_range(expr) is not None:
        return None
    return expr.x if weights.find_tensor_byte_range(expr.x) is not None else None


def remove_weight_transposes(
    weights: CheckpointWeights, names: Collection[str]
) -> CheckpointWeights:
    """Return `weights` with the parameters `names` in the file's layout, `[in, out]`."""
    bound = dict(weights.bound_parameters)
    for name in names:
        source = bound[name]
        stored = replace(source.parameter, shape=source.parameter.shape[::-1])
        operand = _find_transposed_operand(weights, source)
        bound[name] = replace(source, parameter=stored, expr=operand)
    return replace(weights, bound_parameters=bound)
