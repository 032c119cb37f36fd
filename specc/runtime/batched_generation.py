"""Generate sequences for many prompts. The result of a prompt is a sequence or an error."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import SupportsIndex

from specc.decode.generation_settings import GenerationSettings
from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.io.safe_read import escape_text
from specc.runtime.batch_slots import make_batching_key, stack_prompts
from specc.runtime.continuous_batching import (
    ContinuousBatch,
    EndedSequence,
    explain_static_batching,
)
from specc.runtime.generation_stream_and_results import GenerationResult, GenerationStream
from specc.runtime.generator import Generator

MAX_BATCH_SIZE = 4096
"""Maximum number of sequences in a batch."""

IndexedPrompt = tuple[int, GenerationStream]


def generate_each(
    generator: Generator, prompts: object, batch_size: object, settings: GenerationSettings
) -> Iterator[GenerationResult | Diagnostic]:
    """Yield the result or the diagnostic of every prompt, in order. A prompt has no batch axis. The
    prompt is the value of the first required input, or a mapping from input names to values.

    Raise E0891 if the prompts or the batch size are invalid, or if a prompt contains several
    sequences.
    """
    checked_size = _check_batch_size(batch_size)
    if not isinstance(prompts, Iterable) or isinstance(prompts, str | bytes | Mapping):
        raise_error(
            "E0891",
            f"expected a list of prompts, got {escape_text(repr(prompts))[:60]}",
            notes=["each prompt is a string, a list of ids, or inputs by name"],
            helps=["for one prompt: generate_each([prompt])"],
        )
    if settings.num_return_sequences > 1:
        raise_error(
            "E0891",
            "`num_return_sequences` must be 1 for continuous batching, got "
            f"{settings.num_return_sequences}",
            helps=["remove `num_return_sequences`, or call `generate` with a list"],
        )
    return _generate_in_order(generator, prompts, checked_size, settings)


def _generate_in_order(
    generator: Generator, prompts: Iterable[object], batch_size: int, settings: GenerationSettings
) -> Iterator[GenerationResult | Diagnostic]:
    results: dict[int, GenerationResult | Diagnostic] = {}

    def start_streams() -> Iterator[IndexedPrompt]:
        for prompt_index, prompt in enumerate(prompts):
            try:
                yield (
                    prompt_index,
                    generator.start_generation(make_prompt_inputs(generator, prompt), settings),
                )
            except SpeccError as failed:
                results[prompt_index] = _add_prompt_index(failed, prompt_index)

    next_index = 0
    if explain_static_batching(generator, settings):
        ended_sequences = generate_in_batches(generator, start_streams(), batch_size)
    else:
        ended_sequences = make_continuous_batch(generator, batch_size).generate(start_streams())
    for ended_index, result in ended_sequences:
        results[ended_index] = (
            _add_prompt_index(result, ended_index) if isinstance(result, SpeccError) else result[0]
        )
        while next_index in results:
            yield results.pop(next_index)
            next_index += 1
    yield from (results[index] for index in sorted(results))


def make_continuous_batch(
    generator: Generator, batch_size: int
) -> ContinuousBatch[GenerationStream]:
    """Create a continuous batch whose prompts are prepared individually."""
    return ContinuousBatch(
        model=generator,
        batch_size=batch_size,
        prepare=_join_prompts,
        get_shape=lambda stream: make_batching_key(
            generator.input_signature, stream.prepared_inputs
        ),
    )


def generate_in_batches(
    generator: Generator, prompts: Iterable[IndexedPrompt], batch_size: int
) -> Iterator[EndedSequence]:
    """Generate in static batches of prompts with equal shapes. A batch ends with its last
    sequence.
    """
    batch: list[IndexedPrompt] = []
    for prompt_index, stream in prompts:
        if batch and (
            len(batch) == batch_size or not _can_share_batch(generator, batch[0][1], stream)
        ):
            yield from _generate_prompts(batch)
            batch = []
        batch.append((prompt_index, stream))
    yield from _generate_prompts(batch) if batch else ()


def _can_share_batch(
    generator: Generator, first: GenerationStream, second: GenerationStream
) -> bool:
    """Return True if two prompts have equal shapes and equal maximum numbers of new tokens."""
    shapes = {
        make_batching_key(generator.input_signature, t.prepared_inputs) for t in (first, second)
    }
    return len(shapes) == 1 and first.max_new_tokens == second.max_new_tokens


def _generate_prompts(prompts: Sequence[IndexedPrompt]) -> Iterator[EndedSequence]:
    """Generate the sequences of a batch. On an error, retry each sequence individually."""
    indices = [index for index, _ in prompts]
    try:
        results = _join_prompts([stream for _, stream in prompts], indices).results()
    except SpeccError as failed:
        if len(prompts) == 1:
            yield indices[0], failed
            return
        for prompt in prompts:
            yield from _generate_prompts([prompt])
        return
    yield from zip(indices, results, strict=True)


def _join_prompts(
    streams: Sequence[GenerationStream], sample_indices: Sequence[int] = ()
) -> GenerationStream:
    """Merge the streams of individually prepared prompts into the stream of one batch."""
    first = streams[0]
    input_signature = first.model.input_signature
    prepared = stack_prompts(input_signature, [stream.prepared_inputs for stream in streams])
    return replace(
        first,
        prepared_inputs=prepared,
        prompt=prepared[input_signature.sequence_input],
        padding_mask=prepared.get(input_signature.mask_input),
        sample_indices=tuple(sample_indices),
    )


def make_prompt_inputs(generator: Generator, prompt: object) -> dict[str, object]:
    """Convert a prompt to inputs with batch size 1. Raise E0910 if an input name is unknown, or if
    a mapping is required.
    """
    required = generator.input_signature.required_inputs
    if not isinstance(prompt, Mapping) and not required:
        raise_error(
            "E0910",
            "the model has no text input, so each prompt must map input names to values",
            helps=["for example {'ids': [1, 2]}"],
        )
    inputs = prompt if isinstance(prompt, Mapping) else {required[0]: prompt}
    input_names = [*generator.input_signature.graph.inputs]
    for name in (name for name in inputs if name not in input_names):
        raise_error(
            "E0910",
            f"the model has no input `{escape_text(name)[:60]}`",
            helps=[f"its inputs are {', '.join(input_names)}"],
        )
    # a string is one batch element, whatever its length
    return {str(n): v if isinstance(v, str) else [v] for n, v in inputs.items()}


def _check_batch_size(batch_size: object) -> int:
    """Raise E0891 if the batch size is not an integer from 1 to `MAX_BATCH_SIZE`."""
    count = 0
    if isinstance(batch_size, SupportsIndex) and batch_size is not True:
        count = operator.index(batch_size)
    if 0 < count <= MAX_BATCH_SIZE:
        return count
    raise_error(
        "E0891",
        f"`batch_size` must be an integer from 1 to {MAX_BATCH_SIZE}, got "
        f"{escape_text(repr(batch_size))[:60]}",
        helps=[f"use an integer from 1 to {MAX_BATCH_SIZE}"],
    )


def _add_prompt_index(error: SpeccError, prompt_index: int) -> Diagnostic:
    """Return the diagnostic of a failed prompt, with the index of the prompt added."""
    first = error.diagnostics[0]
    return replace(first, notes=(*first.notes, f"prompt {prompt_index + 1}"))
