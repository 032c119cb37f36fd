"""Open the model of a batch inference job once, and run the model on batches of rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.batch_inference.result_columns import (
    ATTENTION_PREFIX,
    BatchPadding,
    GeneratedResultColumns,
    GraphOutputColumns,
)
from specc.batch_inference.row_batches_and_cost_model import CostModel, InputRow, RowConverter
from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS
from specc.preprocessing.text_batches_and_windows import find_mask_input
from specc.runtime.continuous_batching import ContinuousBatch, explain_static_batching
from specc.runtime.generation_stream_and_results import GenerationStream
from specc.runtime.generator import Generator
from specc.runtime.inference_model import InferenceModel, open_compiled_model, runs_full_forward
from specc.runtime.model_inputs import ModelInputs


@dataclass(frozen=True)
class GenerativeBatchModel:
    """A generative model that runs on data rows. `row_converter` converts the rows to model
    inputs.
    """

    generator: Generator
    row_converter: RowConverter
    settings: GenerationSettings

    @property
    def static_batching_reason(self) -> str:
        """The reason why continuous batching is not supported, or "" if it is supported."""
        return explain_static_batching(self.generator, self.settings)

    @property
    def result_columns(self) -> GeneratedResultColumns:
        """The table columns that contain the generated text or tokens."""
        settings = self.settings
        is_beam_search = settings.strategy == "beam"
        return GeneratedResultColumns(
            has_text=self.generator.decode_fn is not None,
            has_scores=is_beam_search,
            has_log_probs=settings.log_probs,
            returns_several_sequences=is_beam_search and settings.num_return_sequences > 1,
            num_codebooks=self.generator.num_codebooks,
        )

    def make_continuous_batch(
        self, batch_size: int, on_start: Callable[[Sequence[int]], None]
    ) -> ContinuousBatch[InputRow]:
        """Create a continuous batch that calls `on_start` with the indices of rows in progress."""
        return ContinuousBatch(
            model=self.generator,
            batch_size=batch_size,
            prepare=self.start_generation,
            get_shape=lambda row: row.unpadded_shapes,
            on_start=on_start,
        )

    def start_generation(self, rows: Sequence[InputRow], first_row: int = 0) -> GenerationStream:
        """Start generation for a batch of rows. The random seed of a row is derived from
        `first_row` plus the row's index in the block. Raise E09xx if an input is invalid.
        """
        stream = self.generator.start_generation(
            self.row_converter.collate_rows(rows), self.settings
        )
        return replace(stream, sample_indices=[first_row + row.row_number for row in rows])


@dataclass
class BatchInferenceModel:
    """A model that computes one output row per input row: outputs of a graph, or generated text.
    `input_columns` maps each model input to its column. `settings` are the generation settings.
    `raw_outputs` names the outputs that are returned as arrays.
    """

    model: InferenceModel
    input_columns: Mapping[str, str]
    settings: Mapping[str, Any]
    raw_outputs: tuple[str, ...] = ()

    @staticmethod
    def open(
        path: str | Path,
        input_columns: Mapping[str, str],
        *,
        settings: Mapping[str, object] | None = None,
        raw_outputs: Sequence[str] = (),
        graph: str = "",
        provider: str = "cpu",
    ) -> "BatchInferenceModel":
        """Open a model for batch inference. Raise E0880 if a model input has no column."""
        model = open_compiled_model(path, graph=graph, provider=provider, threads=1)
        batch_model = BatchInferenceModel(
            model, input_columns, dict(settings or {}), tuple(raw_outputs)
        )
        batch_model.check_input_columns()  # check the columns before rows are read
        return batch_model

    @property
    def is_generative(self) -> bool:
        """True if the model generates text."""
        return not runs_full_forward(self.model, self.input_columns, self.settings)

    @cached_property
    def row_converter(self) -> RowConverter:
        """The converter from data rows to model inputs."""
        return RowConverter(self.input_signature, self.input_columns, self.is_generative)

    @property
    def input_signature(self) -> ModelInputs:
        """The model inputs that rows provide, and the preprocessing of these inputs."""
        model = self.model if self.is_generative else self.model.selected_model
        return model.input_signature

    def check_input_columns(self) -> None:
        """Raise E0880 if a column is mapped to an unknown input, or if an input has no column."""
        input_signature = self.input_signature
        graph_inputs = input_signature.graph.inputs
        for name in self.input_columns:
            if name not in graph_inputs:
                raise_error(
                    "E0880",
                    f"the model has no input `{name}`",
                    helps=[f"the inputs are {', '.join(graph_inputs)}: --column COLUMN=INPUT"],
                )
        # generation from a start token needs no prompt column
        has_start_token = self.is_generative and self._needs_no_prompt()
        mask_inputs = {find_mask_input(input_signature.graph, n) for n in self.input_columns}
        for name in input_signature.required_inputs:
            is_optional = has_start_token and name == input_signature.sequence_input
            if not (name in self.input_columns or name in mask_inputs or is_optional):
                raise_error(
                    "E0880",
                    f"no column is mapped to the input `{name}`",
                    helps=[f"add --column COLUMN={name}"],
                )

    def _needs_no_prompt(self) -> bool:
        """Return True if generation can start without a prompt, i.e. from a start token."""
        generator = self.model.generator
        settings = (self.settings, generator.generation.settings if generator else {})
        return generator is not None and any(s.get("start") is not None for s in settings)

    @cached_property
    def result_columns(self) -> GraphOutputColumns | GeneratedResultColumns:
        """The result columns. Raise E0731 to E0733 or E0879 if settings or outputs are invalid."""
        if not self.is_generative:
            manifest = self.model.selected_model.manifest
            return GraphOutputColumns(manifest.graph, manifest.preprocessing, self.raw_outputs)
        if self.raw_outputs:
            raise_error(
                "E0879",
                f"the generative model has no output `{escape_text(self.raw_outputs[0])}`",
                helps=["select a graph with this output: --graph ROLE"],
            )
        return self.generative_model.result_columns

    @cached_property
    def generative_model(self) -> GenerativeBatchModel:
        """The generative model of the job. Raise E0731 to E0733 for invalid settings."""
        generator = self.model.generator
        assert generator is not None, "only a generative model has a row generator"
        settings = generator.resolve_settings(self.settings)
        return GenerativeBatchModel(generator, self.row_converter, settings)

    @property
    def uses_continuous_batching(self) -> bool:
        """True if new sequences replace finished sequences in a batch (continuous batching)."""
        return self.is_generative and not self.generative_model.static_batching_reason

    @cached_property
    def batch_cost_model(self) -> CostModel:
        """The cost model of a batch, derived from the full-forward graph of the model."""
        scoring_model = self.model.scoring_model
        # costs are derived from the full-forward graph, which a standalone generator does not have
        if scoring_model is not None and scoring_model.manifest.decoding is None:
            return CostModel.from_graph(scoring_model.manifest.graph)
        return CostModel.from_graph(self.input_signature.graph)

    def run_batch(self, rows: Sequence[InputRow], first_row: int = 0) -> list[dict[str, object]]:
        """Compute the results of each row of a batch. Raise E09xx if an input is invalid."""
        if isinstance(self.result_columns, GeneratedResultColumns):
            results = self.generative_model.start_generation(rows, first_row).results()
            return [self.result_columns.format_row(sequences) for sequences in results]
        inputs = self.row_converter.collate_rows(rows)
        outputs = self._run_outputs(inputs)
        return self.result_columns.format_rows(outputs, rows, self._length_padding)

    def _run_outputs(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Return the graph outputs of a batch, including attention weights if requested."""
        model = self.model.selected_model
        formatter = self.result_columns
        if not (isinstance(formatter, GraphOutputColumns) and formatter.has_attention_columns):
            return model.run(**inputs)
        outputs, weights = model.attention(**inputs)
        return outputs | {f"{ATTENTION_PREFIX}{scope}": w for scope, w in weights.items()}

    @cached_property
    def _length_padding(self) -> BatchPadding:
        input_signature, padded_inputs = self.input_signature, self.row_converter.padded_inputs
        sides = {name: input_signature.is_left_padded(name) for name in padded_inputs}
        return BatchPadding(input_signature.graph, sides)


def find_text_inputs(model: InferenceModel) -> list[str]:
    """Return the names of the model inputs that accept text."""
    input_signature = model.input_signature
    return [
        n
        for n in input_signature.required_inputs
        if isinstance(input_signature.preprocessing.get_input_config(n), TEXT_CONFIGS)
    ]
