"""Convert model outputs to table columns with scores, embeddings, labels or text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specc.batch_inference.columns_and_parquet import ColumnType, TableColumn
from specc.batch_inference.row_batches_and_cost_model import InputRow, get_batch_dim
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array, Arrays
from specc.ir.dim import Dim, DimError
from specc.ir.graph import Graph
from specc.ir.types import Type
from specc.preprocessing.predictions import compute_probabilities
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import (
    ArrayConfig,
    ClassificationOutput,
    DetectionOutput,
    ImageOutput,
    OutputFormat,
    SegmentationOutput,
    TextOutput,
)
from specc.preprocessing.result_formatting import format_output
from specc.preprocessing.text_codec import decode_text
from specc.runtime.attention_weights import AttentionNode, find_attention_nodes
from specc.runtime.generation_stream_and_results import GenerationResult, split_by_codebook

ERROR_COLUMN = TableColumn("error", ColumnType("text"))
"""The column that contains the error message of each failed row, and "" for other rows."""

ATTENTION_PREFIX = "attention."
"""Prefix of attention weight column names, before the scope of the attention layer."""


@dataclass(frozen=True)
class GraphOutputColumns:
    """The table columns with the outputs of a graph. `preprocessing` also contains the
    postprocessing of the outputs. Only `raw_outputs` are returned as arrays. Names with the prefix
    `attention.` select attention weights by scope.
    """

    graph: Graph
    preprocessing: PreprocessingConfig
    raw_outputs: tuple[str, ...] = ()

    def list_selected_outputs(self) -> list[tuple[str, OutputFormat]]:
        """Return the selected outputs with their postprocessing formats."""
        # all outputs are selected by default
        outputs = list(self.preprocessing.outputs)
        if not outputs and not self.raw_outputs:
            return [(name, ArrayConfig()) for name in self.graph.outputs]
        return [*outputs, *((name, ArrayConfig()) for name in self.raw_outputs)]

    def iterate_columns(self) -> Iterator[TableColumn]:
        """Yield the result columns. Raise E0879 if an output has no batch axis."""
        for name, record in self.list_selected_outputs():
            if name.startswith(ATTENTION_PREFIX):
                heads, _, _ = self._get_attention_shape(name)
                yield TableColumn(name, ColumnType("f32", (heads.number, None, None)))
                continue
            if name not in self.graph.outputs:
                output_names = ", ".join(self.graph.outputs)
                raise_error(
                    "E0879",
                    f"the model has no output `{escape_text(name)}`",
                    helps=[f"the outputs of the model are {output_names}"],
                )
            type = self.graph.outputs[name].type
            # an output without a batch axis, such as a mean over the batch, has no value per row
            if not type.rank or type.shape[0] != get_batch_dim(self.graph):
                raise_error(
                    "E0879",
                    f"the output `{name}` has no batch axis, so it has no value per row",
                    notes=[f"its type is {type}"],
                    helps=["choose other outputs: --raw NAME"],
                )
            yield from _iterate_columns(name, record, type)

    @property
    def has_attention_columns(self) -> bool:
        """True if attention weights are selected as outputs."""
        return any(name.startswith(ATTENTION_PREFIX) for name in self.raw_outputs)

    @cached_property
    def attention_nodes(self) -> dict[str, AttentionNode]:
        """The attention layers of the graph, keyed by scope."""
        return find_attention_nodes(self.graph)

    def _get_attention_shape(self, name: str) -> tuple[Dim, Dim, Dim]:
        """Return the dimensions (heads, queries, keys) of an attention weight column. Raise E0879
        if the layer does not exist or is inside a loop.
        """
        nodes, scope = self.attention_nodes, name.removeprefix(ATTENTION_PREFIX)
        node = nodes.get(scope)
        if node is None:
            raise_error(
                "E0879",
                f"the model has no attention `{escape_text(scope)}`",
                notes=[f"attention layers: {escape_text(', '.join(nodes))[:600]}"] if nodes else (),
                helps=["select one by its scope: --raw attention.SCOPE"],
            )
        shape = node.value.shape
        if node.loops and shape[-2].number != 1:
            raise_error(
                "E0879",
                f"attention `{escape_text(scope)}` is inside a loop and has weights for each "
                "iteration",
                helps=["plot a single row instead: specc run --attention"],
            )
        heads = shape[-3] if len(shape) > 3 else Dim.from_value(1)
        return heads, node.query_dim, node.key_dim

    def format_rows(
        self, outputs: Arrays, rows: Sequence[InputRow], padding: "BatchPadding"
    ) -> list[dict[str, object]]:
        """Return the results of each row in a batch, keyed by column name."""
        return [
            {
                column: value
                for name, record in self.list_selected_outputs()
                for column, value in _format_values(
                    name, record, self._select_row(name, outputs[name][index], row, padding)
                )
            }
            for index, row in enumerate(rows)
        ]

    def _select_row(self, name: str, value: Array, row: InputRow, padding: "BatchPadding") -> Array:
        """Return the slice of an output for one row of the batch, without padding."""
        if name.startswith(ATTENTION_PREFIX):
            return padding.remove_padding(value, self._get_attention_shape(name), row)
        return padding.remove_padding(value, self.graph.outputs[name].shape[1:], row)


@dataclass(frozen=True)
class BatchPadding:
    """The padding of a batch. The input lengths of a row determine the padding to remove from its
    outputs. `is_left_padded` has one entry per padded input.
    """

    graph: Graph
    is_left_padded: Mapping[str, bool]

    def remove_padding(self, value: Array, shape: Sequence[Dim], row: InputRow) -> Array:
        """Remove the padding of one row along each axis of a result."""
        row_lengths = self._compute_lengths(row)
        for axis, dim in enumerate(shape):
            try:
                length = dim.evaluate(row_lengths)
            except DimError:
                continue  # the size of the axis does not depend on the input lengths of the row
            if length < value.shape[axis]:
                # prompts are padded on the left, i.e. the ends of the sequences are aligned
                is_left_padded = any(self.is_left_padded[n] for n in self._find_padded_inputs(dim))
                start = value.shape[axis] - length if is_left_padded else 0
                value = value.take(range(start, start + length), axis)
        return value

    def _compute_lengths(self, row: InputRow) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions for one row."""
        # each padded input determines the size of its second axis
        lengths = {}
        for name in self.is_left_padded:
            length = self.graph.inputs[name].shape[1].name
            if length is not None:
                lengths[length] = len(row.arrays[name])
        derived_lengths = {}
        for symbol, dim in self.graph.length_equations.items():
            try:
                derived_lengths[symbol] = dim.evaluate(lengths)
            except DimError:
                continue
        return {**derived_lengths, **lengths}

    def _find_padded_inputs(self, dim: Dim) -> list[str]:
        """Return the padded inputs that determine a symbolic dimension."""
        symbols = dim.symbols()
        inputs = self.graph.inputs
        return [n for n in self.is_left_padded if symbols & inputs[n].shape[1].symbols()]


def _iterate_columns(name: str, config: OutputFormat, type: Type) -> Iterator[TableColumn]:
    match config:
        # store a single label as a scalar, because table readers cannot group rows by a list
        case ClassificationOutput():
            list_sizes = () if config.top_k == 1 else (None,)
            yield TableColumn(f"{name}.label", ColumnType("text", list_sizes))
            yield TableColumn(f"{name}.score", ColumnType("f64", list_sizes))
        case TextOutput():
            yield TableColumn(name, ColumnType("text"))
        case ImageOutput() | SegmentationOutput():
            yield TableColumn(name, ColumnType("binary"))
        case ArrayConfig() | DetectionOutput():
            sizes = tuple(d.number for d in type.shape[1:])
            yield TableColumn(name, ColumnType(type.dtype, sizes))


def _format_values(name: str, config: OutputFormat, value: Array) -> Iterator[tuple[str, object]]:
    """Yield the names and values of an output's table columns for one row. Raise E0916 if `value`
    does not match `config`.
    """
    match config:
        case ClassificationOutput():
            labels, scores = _select_best_labels(config, value)
            is_single = config.top_k == 1
            yield f"{name}.label", labels[0] if is_single else labels
            yield f"{name}.score", scores[0] if is_single else scores
        case TextOutput():
            # the output is either scores over the vocabulary, or token ids
            ids = value.argmax(-1) if value.dtype.kind == "f" else value
            yield name, decode_text(np.atleast_1d(ids), config.vocabulary)
        case ImageOutput() | SegmentationOutput():
            yield name, format_output(name, config, value[None]).images[0][1]
        case ArrayConfig() | DetectionOutput():
            yield name, value if value.ndim else value.item()


def _select_best_labels(
    config: ClassificationOutput, value: Array
) -> tuple[list[str], list[float]]:
    """Return the most probable labels of one row, and the probabilities of the labels."""
    scores = value.reshape(-1, value.shape[-1])
    if len(scores) != 1 or (config.labels and len(config.labels) != scores.shape[1]):
        expected = f"{len(config.labels) or 'some'} scores"
        raise_error(
            "E0916",
            "an output cannot be decoded as the spec's `reading` declares",
            notes=[f"its shape per row is {list(value.shape)}, expected {expected}"],
        )
    probabilities = compute_probabilities(scores)[0]
    # use a stable sort, so that every machine selects the same one of several labels with equal
    # scores
    best_indices = np.argsort(-probabilities, kind="stable")[: config.top_k]
    labels = [config.labels[i] if config.labels else str(i) for i in best_indices]
    return labels, [float(probabilities[i]) for i in best_indices]


@dataclass(frozen=True)
class GeneratedResultColumns:
    """The table columns with generated text or tokens."""

    has_text: bool
    has_scores: bool = False
    has_log_probs: bool = False
    returns_several_sequences: bool = False
    num_codebooks: int = 0

    def iterate_columns(self) -> Iterator[TableColumn]:
        """Yield the result columns: generated text, or token ids if the model has no vocabulary. If
        the model has several codebooks, the column contains one list of token ids per codebook.
        """
        list_sizes = (None,) if self.returns_several_sequences else ()
        token_sizes = (
            (*list_sizes, self.num_codebooks, None) if self.num_codebooks else (*list_sizes, None)
        )
        if self.has_text:
            yield TableColumn("generated_text", ColumnType("text", list_sizes))
        else:
            yield TableColumn("tokens", ColumnType("i64", token_sizes))
        yield TableColumn("complete", ColumnType("bool", list_sizes))
        if self.has_scores:
            yield TableColumn("score", ColumnType("f64", list_sizes))
        if self.has_log_probs:
            yield TableColumn("log_probs", ColumnType("f64", token_sizes))

    def format_row(self, results: Sequence[GenerationResult]) -> dict[str, object]:
        """Return the generated sequences of one row, keyed by column name, best sequence first."""
        values: dict[str, list[object]] = {
            "generated_text": [result.text for result in results],
            "tokens": [self._list_values(result.tokens) for result in results],
            "complete": [result.complete for result in results],
            "score": [result.score for result in results],
            "log_probs": [self._list_values(result.log_probs or ()) for result in results],
        }
        names = [c.name for c in self.iterate_columns()]
        return {n: values[n] if self.returns_several_sequences else values[n][0] for n in names}

    def _list_values(self, values: tuple[float, ...]) -> list[object]:
        """Return one value per token, or one list of values per codebook."""
        if self.num_codebooks:
            return [list(codebook) for codebook in split_by_codebook(values, self.num_codebooks)]
        return list(values)
