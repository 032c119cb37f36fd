"""Convert data rows to model inputs, and batch rows by length within memory limits."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

import numpy as np

from specc.analysis.model_cost import count_multiply_adds
from specc.batch_inference.columns_and_parquet import ColumnValues, UnreadableRow
from specc.batch_inference.job_plan_and_part_files import BatchLimits
from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.ir import ops
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim, DimError, multiply_dims, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.preprocessing.array_files import cast_input_array, convert_lists_to_array
from specc.preprocessing.image_prompts import is_multi_image_input
from specc.preprocessing.image_tiles_and_patches import preprocess_image, preprocess_pixels
from specc.preprocessing.images import decode_image
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS, ImageConfig
from specc.preprocessing.text_batches_and_windows import batch_sequences, find_mask_input
from specc.preprocessing.text_codec import (
    encode_text_to_ids,
    encode_texts_to_ids,
    split_by_sequence_lengths,
)
from specc.runtime.model_inputs import ModelInputs

UNREADABLE_ROW_CODE = "E0877"
"""The error code of a row that cannot be read."""


@dataclass(frozen=True, slots=True)
class InputRow:
    """The model inputs of one data row, as arrays without a batch axis. The length of a padded
    input may differ within a batch.
    """

    row_number: int
    arrays: Arrays
    padded_inputs: tuple[str, ...] = ()

    @property
    def padded_length(self) -> int:
        """The maximum length of the padded inputs, i.e. the length to which the row is padded."""
        return max((len(self.arrays[n]) for n in self.padded_inputs), default=1)

    @property
    def unpadded_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the inputs without padded axes, which must be equal within a batch."""
        padded = self.padded_inputs
        return tuple(a.shape[1:] if n in padded else a.shape for n, a in self.arrays.items())


@dataclass(frozen=True)
class RowConverter:
    """A converter from data rows to batches of model inputs. `input_columns` maps inputs to
    columns.
    """

    input_signature: ModelInputs
    input_columns: Mapping[str, str]
    is_generative: bool = False

    @cached_property
    def padded_inputs(self) -> tuple[str, ...]:
        """The model inputs whose length may differ within a batch."""
        graph = self.input_signature.graph
        return tuple(name for name in self.input_columns if find_mask_input(graph, name))

    def _is_prompt(self, name: str) -> bool:
        """Return True if `name` is the generated input, whose padding side the spec declares."""
        return (
            self.is_generative
            and name == self.input_signature.sequence_input
            and self.input_signature.graph.inputs[name].rank == 2
        )

    def convert_rows(self, table: ColumnValues, row_count: int) -> list[InputRow | Diagnostic]:
        """Convert all rows of a table. Return each converted row, or the row's first error."""
        errors = _find_unreadable_rows(table)
        # convert each column for all valid rows at once
        readable_rows = [row_number for row_number in range(row_count) if row_number not in errors]
        columns = {
            name: self._convert_column(
                name, [table[column][row_number] for row_number in readable_rows]
            )
            for name, column in self.input_columns.items()
        }
        converted_rows = {
            row_number: self._make_row(row_number, {n: c[position] for n, c in columns.items()})
            for position, row_number in enumerate(readable_rows)
        }
        return [
            errors.get(row_number) or converted_rows[row_number] for row_number in range(row_count)
        ]

    def _make_row(
        self, row_number: int, values_or_errors: Mapping[str, Array | Diagnostic]
    ) -> InputRow | Diagnostic:
        """Combine the inputs of a row, or return the first error of the row."""
        arrays: dict[str, Array] = {}
        for name, value in values_or_errors.items():
            if isinstance(value, Diagnostic):
                return value
            arrays[name] = value
        return InputRow(row_number, arrays, self.padded_inputs)

    def _convert_column(self, name: str, values: Sequence[object]) -> list[Array | Diagnostic]:
        """Convert a column of a table. For each row, return the converted value or its error."""
        arrays = self._convert_whole_column(name, values)
        if arrays is not None:
            return [*arrays]
        results: list[Array | Diagnostic] = []
        for value in values:
            try:
                results.append(self._convert_array(name, value))
            except SpeccError as failed:
                results.append(failed.diagnostics[0])
        return results

    def _convert_whole_column(self, name: str, values: Sequence[object]) -> list[Array] | None:
        """Convert a whole column at once. Return None if each value must be converted
        separately.
        """
        record = self.input_signature.preprocessing.get_input_config(name)
        input_type = self.input_signature.graph.inputs[name].type
        # compare exact types, because a bool is an int in Python
        value_types = {*map(type, values)}
        with suppress(SpeccError, OverflowError):
            if isinstance(record, TEXT_CONFIGS) and value_types == {str}:
                return encode_texts_to_ids([v for v in values if isinstance(v, str)], record)
            if (
                not isinstance(record, ImageConfig)
                and value_types == {list}
                and input_type.rank == 2
            ):
                return _convert_integer_lists(values, input_type.dtype, name)
        return None

    def _convert_array(self, name: str, value: object) -> Array:
        """Convert the value that a row provides for one model input. Raise E09xx if the value is
        invalid.
        """
        graph, preprocessing = self.input_signature.graph, self.input_signature.preprocessing
        record, column = (
            preprocessing.get_input_config(name),
            f"the column `{self.input_columns[name]}`",
        )
        if value is None:
            raise SpeccError(Diagnostic("E0878", f"{column} is empty here"))
        if isinstance(record, ImageConfig):
            if not is_multi_image_input(graph, preprocessing, name):
                return _decode_pixels(value, record)
            images = value if isinstance(value, list) else [value]
            return np.stack([_decode_pixels(image, record) for image in images or [None]])
        if isinstance(record, TEXT_CONFIGS) and isinstance(value, str):
            return encode_text_to_ids(value, record)
        array, type = convert_lists_to_array(value, column), graph.inputs[name].type
        if array.ndim != type.rank - 1:
            title = f"{column} has {_format_axes(array.ndim)} here"
            note = f"`{name}` needs {_format_axes(type.rank - 1)}"
            raise SpeccError(Diagnostic("E0911", title, notes=(note,)))
        # values are converted separately, because a single array would cast all values to one type
        return cast_input_array(array, type.dtype, name)

    def collate_rows(self, rows: Sequence[InputRow]) -> dict[str, object]:
        """Return the inputs of a batch of rows, with padding masks."""
        graph, inputs = self.input_signature.graph, dict[str, object]()
        for name in self.input_columns:
            arrays = [row.arrays[name] for row in rows]
            if name in self.padded_inputs and self._is_prompt(name):
                inputs[name] = [list(map(int, ids)) for ids in arrays]
            elif name in self.padded_inputs:
                sequence_input = self.input_signature.sequence_input
                inputs |= batch_sequences(graph, name, arrays, generated_input=sequence_input)
            else:
                inputs[name] = np.stack(arrays)
        return inputs


def _find_unreadable_rows(table: ColumnValues) -> dict[int, Diagnostic]:
    """Return an error for each row that cannot be read from the data file, keyed by row index."""
    errors: dict[int, Diagnostic] = {}
    for values in table.values():
        for number, value in enumerate(values):
            if isinstance(value, UnreadableRow) and number not in errors:
                title = f"the row cannot be read: {value.reason}"
                errors[number] = Diagnostic(UNREADABLE_ROW_CODE, title)
    return errors


def _convert_integer_lists(values: Sequence[object], dtype: str, name: str) -> list[Array] | None:
    """Convert lists of integers to arrays. Return None if a list contains other values."""
    lists = [value for value in values if isinstance(value, list)]
    elements = [*chain.from_iterable(lists)]
    if not {*map(type, elements)} <= {int}:
        return None
    return split_by_sequence_lengths(
        cast_input_array(np.array(elements, np.int64), dtype, name), lists
    )


def _format_axes(count: int) -> str:
    return {0: "a number", 1: "a list"}.get(count, f"lists nested {count} levels deep")


def _decode_pixels(value: object, config: ImageConfig) -> Array:
    """Decode an image from a table value: a file path, or bytes."""
    if config.sizing not in ("", "square"):
        title = "images whose number of tokens depends on their size cannot be read from a column"
        raise SpeccError(
            Diagnostic("E0911", title, helps=("pass them to `model.generate` in Python",))
        )
    # the `datasets` library stores images as a dict with bytes or path
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return preprocess_pixels(decode_image(value, "the image"), config).values
    if not isinstance(value, str):
        raise SpeccError(Diagnostic("E0903", "expected a file path or an image"))
    return preprocess_image(value, config, "").values


FLOAT_BYTES = 4
"""Size of a float32 value in bytes."""

MAX_PADDING_RATIO, MAX_ROWS_WITHOUT_CHECK = 1.15, 8
"""Maximum ratio of padded to valid positions, and the batch size up to which any ratio is
allowed."""

EstimateCost = Callable[[int, int], int]
"""A function that estimates the cost (e.g. memory) of a batch from the batch size and length."""


def group_rows_by_shape(rows: Sequence[InputRow]) -> list[list[InputRow]]:
    """Group rows by the shapes of unpadded inputs, and sort each group by padded length."""
    groups: dict[object, list[InputRow]] = {}
    for row in sorted(rows, key=lambda r: (r.padded_length, r.row_number)):
        groups.setdefault(row.unpadded_shapes, []).append(row)
    return list(groups.values())


def make_batches(
    rows: Sequence[InputRow], limits: BatchLimits, estimate_bytes: EstimateCost
) -> list[list[InputRow]]:
    """Return batches of rows whose input shapes are equal except along padded axes. A row that
    alone exceeds a limit forms a batch of one.
    """
    batches = []
    for group in group_rows_by_shape(rows):
        batch: list[InputRow] = []
        valid_positions = 0
        for row in group:  # the last row is the longest row and determines the padded length
            count, length = len(batch) + 1, row.padded_length
            valid_positions += length
            positions = count * length
            has_little_padding = (
                count <= MAX_ROWS_WITHOUT_CHECK or positions <= MAX_PADDING_RATIO * valid_positions
            )
            # this batch also fits in memory if a batch with more rows does
            fits = (
                count <= limits.max_rows
                and positions <= limits.max_tokens
                and has_little_padding
                and any(
                    estimate_bytes(n, length) <= limits.max_bytes for n in (limits.max_rows, count)
                )
            )
            if batch and not fits:
                batches.append(batch)
                batch, valid_positions = [], length
            batch.append(row)
        batches.append(batch)
    return batches


def count_batch_positions(rows: Sequence[InputRow]) -> tuple[int, int]:
    """Return a batch's total number of positions, and its number of padding positions."""
    lengths = [row.padded_length for row in rows]
    positions = len(rows) * max(lengths, default=0)
    return positions, positions - sum(lengths)


@dataclass(frozen=True)
class CostModel:
    """The cost model of a graph: formulas for memory and multiply-adds as functions of the batch
    size and the sequence length. All symbolic dimensions except the batch size are set to the
    sequence length.
    """

    batch_symbol: str
    element_counts: tuple[Dim, ...]
    multiply_adds: Dim
    length_equations: dict[str, Dim] = field(default_factory=dict)
    cache: dict[tuple[str, int, int], int] = field(default_factory=dict, repr=False)
    """Cached costs, keyed by quantity, batch size and length. Caching is effective because a data
    set has few distinct lengths.
    """

    @staticmethod
    def from_graph(graph: Graph) -> "CostModel":
        """Derive the cost formulas of a graph: the operand and result sizes of each node, and the
        total number of multiply-adds.
        """
        batch_size = get_batch_dim(graph)
        sizes = {_count_elements(node, results) for node, results in graph.nodes}
        return CostModel(
            batch_symbol=(batch_size.name or "") if batch_size is not None else "",
            element_counts=tuple(sorted(sizes, key=str)),
            multiply_adds=sum_dims(count_multiply_adds(node) for node, _ in graph.nodes),
            length_equations=dict(graph.length_equations),
        )

    def _evaluate(self, dim: Dim, rows: int, length: int) -> int:
        symbols = dim.symbols()
        lengths = dict.fromkeys(symbols, length) | {self.batch_symbol: rows}
        try:
            derived_lengths = {
                n: self.length_equations[n].evaluate({**lengths})
                for n in symbols & self.length_equations.keys()
            }
            return dim.evaluate(lengths | derived_lengths)
        except (DimError, KeyError):
            return 0

    def estimate_bytes(self, rows: int, length: int) -> int:
        """Estimate the activation bytes of a batch: the maximum total size of any node's operands
        and results.
        """
        return self._get_cached_cost("memory", rows, length)

    def estimate_multiply_adds(self, rows: int, length: int) -> int:
        """Return the number of multiply-adds for a batch."""
        return self._get_cached_cost("multiply_adds", rows, length)

    def _get_cached_cost(self, quantity: str, rows: int, length: int) -> int:
        key = (quantity, rows, length)
        if key not in self.cache:
            dims = (self.multiply_adds,) if quantity == "multiply_adds" else self.element_counts
            cost = max((self._evaluate(d, rows, length) for d in dims), default=0)
            self.cache[key] = cost if quantity == "multiply_adds" else FLOAT_BYTES * cost
        return self.cache[key]


def _count_elements(node: Node, results: Sequence[Value]) -> Dim:
    """Count the elements that a node reads and writes, including attention weights."""
    computed_operands = [operand for operand in node.operands if operand.node is not None]
    counts = [multiply_dims(v.shape) for v in (*computed_operands, *results)]
    if isinstance(node.op, ops.Attend):
        batch, heads, queries, _ = node.op.query(node).shape
        counts.append(batch * heads * queries * node.op.key(node).shape[2])
    return sum_dims(counts)


def get_batch_dim(graph: Graph) -> Dim | None:
    """Return the symbolic batch size: the first dimension of the first non-scalar input."""
    # skip scalar inputs, e.g. the temperature
    return next((v.shape[0] for v in graph.inputs.values() if v.rank), None)
