"""The model of a job, opened once and called per batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.batch_inference.file_format import TableColumn
from specc.batch_inference.result_columns import (
    ATTENTION_PREFIX,
    GeneratedResults,
    GraphResults,
    LengthPadding,
)
from specc.batch_inference.row_batches import CostFormulas, InputRow, RowReader
from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Graph
from specc.preprocessing.records import TEXT_READINGS
from specc.preprocessing.text_batches import find_mask_input
from specc.runtime.continuous_batching import ContinuousBatch, explain_static_batching
from specc.runtime.generation import GenerationStream
from specc.runtime.generator import Generator
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.open_model import OpenedModel, is_single_pass, open_compiled


@dataclass(frozen=True)
class RowGenerator:
    """A model that generates from the rows that `taking` prepares."""

    writer: Generator
    taking: RowReader
    settings: GenerationSettings

    @property
    def waits(self) -> str:
        """Return why continuous batching is not possible; "" if it is."""
        return explain_static_batching(self.writer, self.settings)

    @property
    def results(self) -> GeneratedResults:
        """Return the result columns of generation."""
        chosen = self.settings
        beam = chosen.strategy == "beam"
        return GeneratedResults(
            text=self.writer.decode is not None,
            scores=beam,
            log_probs=chosen.log_probs,
            several=beam and chosen.num_return_sequences > 1,
        )

    def batch(
        self, at_once: int, began: Callable[[Sequence[int]], None]
    ) -> ContinuousBatch[InputRow]:
        """Return a continuous batch; `began` is called with the indices of rows in progress."""
        padded = self.taking.padded
        return ContinuousBatch(
            model=self.writer,
            batch_size=at_once,
            prepare=self.begun,
            get_shape=lambda row: row.shape(padded),
            on_begin=began,
        )

    def begun(self, rows: Sequence[InputRow], first: int = 0) -> GenerationStream:
        """Generate rows together; sampling is seeded by `first` plus the row. Raise E09xx."""
        writing = self.writer.begin(self.taking.inputs(rows), self.settings)
        return replace(writing, sample_indices=[first + row.number for row in rows])


@dataclass
class RowModel:
    """Computes rows: outputs of a graph, or generated text. `columns` is the
    column of each input, `settings` those of generation, `raw` outputs given as numbers.
    """

    opened: OpenedModel
    columns: Mapping[str, str]
    settings: Mapping[str, Any]
    raw: tuple[str, ...] = ()

    @staticmethod
    def open(
        path: str | Path,
        columns: Mapping[str, str],
        *,
        settings: Mapping[str, object] | None = None,
        raw: Sequence[str] = (),
        graph: str = "",
        provider: str = "cpu",
        threads: int = 1,
    ) -> "RowModel":
        """Open a model for rows. Raise E0880 for an input without a column."""
        opened = open_compiled(path, graph=graph, provider=provider, threads=threads)
        made = RowModel(opened, columns, dict(settings or {}), tuple(raw))
        made.check()  # before any row is read
        return made

    @property
    def is_generative(self) -> bool:
        """Return whether the model generates text."""
        return not is_single_pass(self.opened, self.columns, self.settings)

    @cached_property
    def taking(self) -> RowReader:
        """Return the conversion of rows to inputs."""
        return RowReader(self.input_signature, self.columns, self.is_generative)

    @property
    def input_signature(self) -> ModelInputs:
        """Return the inputs that rows provide, with their preprocessing."""
        return (
            self.opened.input_signature
            if self.is_generative
            else self.opened.default_model.input_signature
        )

    def check(self) -> None:
        """Raise E0880 for columns mapped to unknown inputs, and for inputs without a column."""
        input_signature = self.input_signature
        known = input_signature.graph.inputs
        for name in self.columns:
            if name not in known:
                raise_error(
                    "E0880",
                    f"the model has no input `{name}`",
                    helps=[f"its inputs are {', '.join(known)}: --column COLUMN=INPUT"],
                )
        # sequences that begin with a start token need no prompt column
        begins = self.is_generative and self._needs_no_prompt()
        beside = {find_mask_input(input_signature.graph, n) for n in self.columns}
        for name in input_signature.required_inputs:
            first = begins and name == input_signature.sequence_input
            if name not in self.columns and name not in beside and not first:
                raise_error(
                    "E0880",
                    f"the input `{name}` has no column",
                    helps=[f"map one: --column COLUMN={name}"],
                )

    def _needs_no_prompt(self) -> bool:
        """Return whether generation needs no prompt."""
        writer = self.opened.generator
        start = self.settings.get("start")
        return writer is not None and (
            start is not None or writer.generation.settings.get("start") is not None
        )

    @cached_property
    def results(self) -> GraphResults | GeneratedResults:
        """The result columns. Raise E0731 to E0733 for settings, E0879 for outputs of a
        generative model.
        """
        writer = self.opened.generator
        if not self.is_generative or writer is None:
            manifest = self.opened.default_model.manifest
            return GraphResults(manifest.graph, manifest.reading, self.raw)
        if self.raw:
            raise_error(
                "E0879",
                f"the model generates, and has no output `{escape_text(self.raw[0])}`",
                helps=["select a graph that has it: --graph ROLE"],
            )
        return self.texts.results

    @cached_property
    def texts(self) -> RowGenerator:
        """Return the generation settings. Raise E0731 to E0733."""
        writer = self.opened.generator
        assert writer is not None, "it generates"
        return RowGenerator(writer, self.taking, writer.resolve_settings(self.settings))

    @property
    def uses_continuous_batching(self) -> bool:
        """Return whether finished sequences are replaced by new ones (continuous batching)."""
        return self.is_generative and not self.texts.waits

    def result_columns(self) -> tuple[TableColumn, ...]:
        """The columns of the results."""
        return tuple(self.results.columns())

    @cached_property
    def cost_formulas(self) -> CostFormulas:
        """Return the cost of a batch, estimated from the full-forward graph."""
        return CostFormulas.of(self._select_graph)

    @property
    def _select_graph(self) -> Graph:
        scoring = self.opened.scoring
        # a model with the decoding loop has no whole graph to compute costs from
        if scoring is not None and scoring.manifest.decoding is None:
            return scoring.manifest.graph
        return self.input_signature.graph

    def compute(self, rows: Sequence[InputRow], first: int = 0) -> list[dict[str, object]]:
        """Return the results of a batch row by row; `first` as in `begun`. Raise E09xx."""
        if isinstance(self.results, GeneratedResults):
            made = self.texts.begun(rows, first).results()
            return [self.results.values(row) for row in made]
        inputs = self.taking.inputs(rows)
        outputs = self._run_outputs(inputs)
        return self.results.values(outputs, rows, self._find_padding)

    def _run_outputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return all outputs of a batch, with attention weights if requested."""
        whole = self.opened.default_model
        if not (isinstance(self.results, GraphResults) and self.results.has_attentions):
            return whole.run(**inputs)
        outputs, maps = whole.attention(**inputs)
        return {**outputs, **{f"{ATTENTION_PREFIX}{name}": w for name, w in maps.items()}}

    @cached_property
    def _find_padding(self) -> LengthPadding:
        input_signature = self.input_signature
        sides = {name: input_signature.is_left_padded(name) for name in self.taking.padded}
        return LengthPadding(input_signature.graph, sides)


def find_text_inputs(opened: OpenedModel) -> list[str]:
    """Return the inputs that take texts."""
    input_signature = opened.input_signature
    return [
        n
        for n in input_signature.required_inputs
        if isinstance(input_signature.reading.get_input_reading(n), TEXT_READINGS)
    ]
