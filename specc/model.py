"""The Python interface of compiled models: the `Model` that `specc.load` returns.

To load models quickly, this module imports no compiler modules.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, Unpack, overload

from specc.decode.generation_settings import GenerationArguments
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.driver.option_kinds import (
    COUNT_OPTION,
    PATH_OPTION,
    STRING_LIST_OPTION,
    STRING_OPTION,
    OptionType,
    check_argument_values,
)
from specc.ir.array import Array
from specc.runtime.attention_weights import AttentionWeights
from specc.runtime.batched_generation import generate_each
from specc.runtime.continuous_batching import DEFAULT_BATCH_SIZE
from specc.runtime.generation_request import prepare_chat_inputs
from specc.runtime.generation_stream_and_results import GenerationResult, GenerationStream
from specc.runtime.generator import Generator
from specc.runtime.inference_model import InferenceModel, get_streaming_model
from specc.runtime.single_model_file import LoadedModel
from specc.runtime.static_shapes import specialize_to_static_shapes
from specc.runtime.streaming_inference import InputStream

if TYPE_CHECKING:
    from specc.batch_inference.job import JobReport

__all__ = ["Diagnostic", "GenerationResult", "Model", "SpeccError"]

OutputArrays: TypeAlias = dict[str, Array]
"""Arrays by output name."""

ENGINES = ("local", "serial", "ray")
"""Batch inference engines of `Model.map`."""
MAP_KINDS = {
    "data": OptionType(
        "one or more paths, as strings",
        lambda value: bool(value) and all(map(PATH_OPTION.accepts, value)),
    ),
    "out": PATH_OPTION._replace(description="the path of a directory"),
    "columns": OptionType(
        "a mapping from input names to column names",
        lambda value: (
            value is None
            or (
                isinstance(value, Mapping) and STRING_LIST_OPTION.accepts([*value, *value.values()])
            )
        ),
    ),
    "keep_columns": OptionType(
        "a list of column names", lambda value: value is None or STRING_LIST_OPTION.accepts(value)
    ),
    "raw": STRING_LIST_OPTION._replace(description="a list of output names"),
    "output_format": STRING_OPTION,
    "engine": OptionType(f"one of {', '.join(ENGINES)}", lambda value: value in ENGINES),
    "workers": COUNT_OPTION._replace(description="an integer >= 0"),
    "max_errors": OptionType(
        "an integer >= 0", lambda value: value is None or COUNT_OPTION.accepts(value)
    ),
}
"""The accepted types of the arguments of `Model.map`."""


class Model(InferenceModel):
    """A compiled model or package that computes full forward passes and generates sequences.

    `with specc.load(…) as model:` closes the model at the end of the block. A model is thread-safe.
    A `GenerationStream` must be iterated by a single thread.
    """

    @overload
    def run(self, batches: Iterable[Mapping[str, object]], /) -> Iterator[OutputArrays]: ...

    @overload
    def run(self, **inputs: object) -> OutputArrays: ...

    def run(self, *batches: object, **inputs: object) -> OutputArrays | Iterator[OutputArrays]:
        """Run the model on inputs (arrays, nested lists, strings, images) and return its outputs,
        keyed by name. For an iterable of batches (mappings from input names to inputs), return an
        iterator that lazily computes the outputs of each batch.

        >>> model = specc.load("xor.onnx")
        >>> model.run(x=[[0, 1], [1, 1]])["y"].tolist()
        [[1.0], [0.0]]
        >>> [made["y"].item() for made in model.run({"x": [[a, 1]]} for a in (0, 1))]
        [1.0, 0.0]

        For a model with a task head (docs/tasks.md), pass the task's inputs, e.g. `text=…` or
        `question=…` and `context=…`. The result is a `specc.runtime.task_runner.Predictions` with
        one prediction per input: a label, spans, an answer, candidates or an embedding.

        Raise an E09xx error if an input is invalid.
        """
        if self.scoring_model is not None and self.scoring_model.manifest.decoding is not None:
            title = "a standalone generator returns only generated token ids"
            raise_error("E0832", title, helps=["use `generate`"])
        # import lazily, because generation does not need the postprocessing of tasks
        from specc.runtime.task_runner import has_task_inputs, run_task

        if not batches and has_task_inputs(self.full_forward_model, inputs):
            return run_task(self.full_forward_model, inputs)
        if batches:
            return run_batches(self.full_forward_model, batches, inputs)
        return self.full_forward_model.run(**inputs)

    def with_static_shapes(self, **lengths: int) -> LoadedModel:
        """Load the full-forward graph with static shapes, as in
        `model.with_static_shapes(batch=8).run(…)` for a batch size of 8.

        Shape computations are folded into constants. With the `cuda` provider, each run replays a
        CUDA graph. Raise E0981 unless `lengths` contains all symbolic dimensions of the inputs.
        """
        return specialize_to_static_shapes(self.full_forward_model, lengths)

    def attention(self, **inputs: object) -> tuple[OutputArrays, AttentionWeights]:
        """Run the model. Return the outputs of the model by name, and the attention weights [batch,
        heads, query, key] of each layer, keyed by scope.
        """
        return self.full_forward_model.attention(**inputs)

    def generate(self, *values: object, **settings: object) -> GenerationStream:
        """Generate sequences from prompts (`specc.runtime.generator.Generator.generate`).

        Raise E0701 if the spec has no `generate` section.
        """
        return _require_generator(self).generate(*values, **settings)

    def generate_each(
        self,
        prompts: Iterable[object],
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **settings: Unpack[GenerationArguments],
    ) -> Iterator[GenerationResult | Diagnostic]:
        """Generate a sequence for each prompt with continuous batching. The results are in the
        order of the prompts.

        Up to `batch_size` sequences are decoded together. When a sequence ends, its batch slot
        becomes free for the next prompt. For an invalid prompt, yield a diagnostic
        (`specc.runtime.batched_generation`). Raise E0701 if the spec has no `generate` section, and
        E0891 if `batch_size` is invalid.
        """
        generator = _require_generator(self)
        return generate_each(generator, prompts, batch_size, generator.resolve_settings(settings))

    def stream(self, **constant_inputs: object) -> InputStream:
        """Start streaming inference. Pass chunks of the streamed input to the `push` method of the
        returned stream. `constant_inputs` are the inputs without a time axis.

        Raise E0977 if the spec has no `stream` section.
        """
        return get_streaming_model(self).start_stream(**constant_inputs)

    def map(
        self,
        *data: str | Path,
        out: str | Path,
        columns: Mapping[str, str] | None = None,
        keep_columns: Sequence[str] | None = None,
        raw: Sequence[str] = (),
        output_format: str = "",
        engine: str = "local",
        workers: int = 0,
        max_errors: int | None = None,
        **settings: Unpack[GenerationArguments],
    ) -> "JobReport":
        """Run batch inference over files, like the command `specc map` (docs/batch-inference.md).

        `columns` maps input names to column names. `settings` are generation settings. To resume an
        interrupted job, call `map` again with the same arguments. Raise E0870 to E0888 if the job
        fails, and E0970 if an argument is invalid.
        """
        check_argument_values(MAP_KINDS, locals(), "E0970")
        from specc.batch_inference import job, job_planner

        request = job_planner.JobRequest(
            model=str(self.path),
            data=[os.fspath(path) for path in data],
            out=os.fspath(out),
            input_columns=dict(columns or {}),
            copied_columns=keep_columns,
            settings=dict(settings),
            raw_outputs=tuple(raw),
            graph=self.graph,
            provider=self.provider,
            output_format=output_format,
            workers=workers,
            engine=engine,
            max_errors=max_errors,
        )
        return job.run_job(request)

    def chat(
        self,
        messages: object,
        *,
        images: Sequence[object] = (),
        **settings: Unpack[GenerationArguments],
    ) -> GenerationStream:
        """Generate the next turn of a chat. `messages` is a string or a list of mappings with the
        keys `role` and `content`.

        `images` are paths or Pillow images, in the order of the image parts in the messages. If no
        message has a content part `{"type": "image"}`, the images precede the last message. An
        image part may also contain the `path` of an image file. Raise E0423 to E0426 if the model
        has no usable chat template, and E0991 if the number of images differs from the number of
        image parts.
        """
        inputs = prepare_chat_inputs(self.input_signature, messages, images=images)
        return self.generate(**inputs, **settings)


def run_batches(
    model: LoadedModel, args: tuple[object, ...], inputs: Mapping[str, object]
) -> Iterator[dict[str, Array]]:
    """Run the model on each batch, and yield the outputs lazily. Raise E0910 unless `args` is an
    iterable of mappings. A list or tuple is checked immediately, and other iterables are checked
    during iteration. Error messages contain the index of the batch.
    """
    batches: Any = args[0]
    is_single_argument = len(args) == 1 and not inputs
    # an array is iterable, but is not a collection of batches
    is_iterable = isinstance(batches, Iterable) and "__array__" not in dir(type(batches))
    if not is_single_argument or isinstance(batches, Mapping | str) or not is_iterable:
        _raise_not_batches(model)
    if isinstance(batches, list | tuple) and not all(isinstance(b, Mapping) for b in batches):
        _raise_not_batches(model)
    return _run_batches(model, batches)


def _run_batches(
    model: LoadedModel, batches: Iterable[Mapping[str, object]]
) -> Iterator[dict[str, Array]]:
    for number, batch in enumerate(batches, start=1):
        if not isinstance(batch, Mapping):
            _raise_not_batches(model)
        try:
            results = model.run(**batch)
        except SpeccError as failed:
            first, *others = failed.diagnostics
            notes = (*first.notes, f"in batch {number}")
            raise SpeccError(replace(first, notes=notes), *others) from None
        yield results


def _raise_not_batches(model: LoadedModel) -> NoReturn:
    title = "positional arguments must be batches (mappings of input names to arrays)"
    text_help = [f'model.run({name}=["a text"])' for name in _list_text_inputs(model)[:1]]
    example = 'for several batches: model.run({"x": array} for array in arrays)'
    raise_error("E0910", title, helps=[*text_help, "model.run(x=array)", example])


def _list_text_inputs(model: LoadedModel) -> list[str]:
    """Return the names of inputs that accept text, starting with the task input `text`, if any."""
    task, specs = model.manifest.preprocessing.task, model.input_signature.input_specs
    task_inputs = [task_input.name for task_input in task.inputs] if task else []
    text_inputs = [spec.name for spec in specs if spec.accepts_text]
    return ["text", *text_inputs] if "text" in task_inputs else text_inputs


def _require_generator(model: Model) -> Generator:
    """Return the generator of a model. Raise E0701 if the model is not generative."""
    if model.generator is None:
        helps = ["compile a spec that has a `generate` section"]
        raise_error("E0701", "this model is not a generative model", helps=helps)
    return model.generator
