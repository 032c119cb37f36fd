"""Generation requests: a model, a batch of prompts, chat templates, and length limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial

import numpy as np

from specc import backend
from specc.analysis.length_limits import format_limit_reason
from specc.artifact.generation_metadata import GenerationMetadata
from specc.artifact.manifest import RandomInitMetadata
from specc.backend import Session
from specc.decode.decode_loop import DelayedPrompt, apply_delay_pattern
from specc.decode.generation_settings import GenerationSettings
from specc.decode.setting_validation import VocabularySizes, find_codebook_setting_error
from specc.decode.token_selection import Bools, Ints
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.ir.array import Array, Arrays
from specc.ir.input_shapes_and_defaults import build_input_defaults_graph, find_default_inputs
from specc.ir.model_definition import GenerateSection, count_codebooks
from specc.preprocessing.chat_template import (
    add_image_content_parts,
    list_message_images,
    parse_messages,
    render_chat_template,
)
from specc.preprocessing.image_prompts import find_image_input, prepare_images
from specc.preprocessing.preprocessing_config import PreprocessingConfig
from specc.preprocessing.preprocessing_records import TEXT_CONFIGS, TextConfig, TextOutput
from specc.preprocessing.python_inputs import is_image
from specc.preprocessing.text_codec import decode_text
from specc.preprocessing.tokenizer_files import HfTokenizer
from specc.preprocessing.tokenizer_library import tokenize_text
from specc.runtime.decoder_sessions import FullForwardSession, KVCacheSession
from specc.runtime.model_inputs import ModelInputs

NO_INPUTS: Mapping[str, object] = {}
CreateDecoderSession = Callable[[Arrays], FullForwardSession | KVCacheSession]
"""A function that creates a decoder session for a batch of prepared inputs."""


def find_text_tokenizer(
    preprocessing: PreprocessingConfig, generation: GenerateSection
) -> TextConfig | None:
    """Return the tokenizer of the output or, if the output has none, of the generated input."""
    output_config = dict(preprocessing.outputs).get(generation.logits_output)
    if isinstance(output_config, TextOutput):
        return output_config.vocabulary
    input_config = preprocessing.get_input_config(generation.sequence_input)
    return input_config if isinstance(input_config, TEXT_CONFIGS) else None


@dataclass(kw_only=True)
class GenerativeModel:
    """A generative model. `input_signature` describes the inputs of the model. `max_context` is the
    maximum sequence length, which is the size of the position embedding `length_limiting_table`.
    `create_decoder_session` starts a decode loop in Python. `standalone_session` runs a standalone
    generator with the settings `compiled_settings`. `logits_vocabulary_size` is the number of
    logits per position. `allows_empty_prompt` is true if the first token can be sampled without a
    prompt, e.g. from image embeddings. `continuous_batching_metadata` is set if a decode batch may
    contain sequences of different lengths.
    """

    input_signature: ModelInputs
    generation: GenerateSection
    preprocessing: PreprocessingConfig
    max_context: int | None
    create_decoder_session: CreateDecoderSession
    length_limiting_table: str = ""
    random_init_metadata: RandomInitMetadata | None = None
    standalone_session: Session | None = None
    compiled_settings: Mapping[str, object] = field(default_factory=dict)
    logits_vocabulary_size: int | None = None
    allows_empty_prompt: bool = False
    continuous_batching_metadata: GenerationMetadata | None = None

    @cached_property
    def decode_fn(self) -> Callable[[Sequence[int]], str] | None:
        """The function that decodes ids to text. None if there are codebooks or no tokenizer."""
        if self.num_codebooks:
            return None
        tokenizer = find_text_tokenizer(self.preprocessing, self.generation)
        return partial(decode_text, tokenizer=tokenizer) if tokenizer else None

    @property
    def num_codebooks(self) -> int:
        """The number of codebooks, or 0 if the token input has no codebook axis."""
        return _count_input_codebooks(self.input_signature)

    @property
    def vocabulary_sizes(self) -> VocabularySizes:
        """The vocabulary sizes of the token input and of the logits."""
        signature = self.input_signature
        bound = signature.graph.input_facts[signature.sequence_input].upper_bound
        return VocabularySizes(bound.number if bound else None, self.logits_vocabulary_size)


@dataclass(kw_only=True)
class GenerationRequest:
    """A request to generate at most `max_new_tokens` tokens for each sequence in the batch
    `prompt`, which has the padding mask `padding_mask`. If `starts_without_prompt` is true, the
    caller passed no prompt, and `prompt` is the start token or empty. `sample_indices` determine
    the random numbers of each sequence. By default, `sample_indices` are the batch indices.
    """

    model: GenerativeModel
    settings: GenerationSettings
    prepared_inputs: Arrays
    prompt: Ints
    padding_mask: Bools | None
    max_new_tokens: int
    starts_without_prompt: bool = False
    sample_indices: Sequence[int] = ()

    @property
    def effective_settings(self) -> GenerationSettings:
        """The generation settings, with `max_tokens` limited to the remaining context length."""
        max_tokens = min(self.settings.max_tokens, self.max_new_tokens)
        return replace(self.settings, max_tokens=max_tokens)

    @cached_property
    def delayed_prompt(self) -> DelayedPrompt:
        """The prompt of a model with several codebooks, with the delays that the graph expects."""
        return apply_delay_pattern(self.prompt, self.settings, self.padding_mask)

    @property
    def input_ids(self) -> Ints:
        """The prompt as token ids of the graph, with delays if the model has several codebooks."""
        return self.delayed_prompt.tokens if self.model.num_codebooks else self.prompt

    @property
    def decode_fn(self) -> Callable[[Sequence[int]], str]:
        """The function that decodes ids to text. Raise E0945 if the model has no tokenizer."""
        if self.model.decode_fn is None:
            raise_error(
                "E0945",
                "tokens of this model cannot be decoded to text",
                notes=["its spec does not declare a tokenizer"],
                helps=[
                    "iterate over the tokens instead",
                    "or declare it: add `show logits = text(…)` to the `reading` section of "
                    "the spec",
                ],
            )
        return self.model.decode_fn


def find_chat_tokenizer(input_signature: ModelInputs) -> HfTokenizer | None:
    """Return the tokenizer of the generated input, or None if it has no chat template."""
    tokenizer = input_signature.preprocessing.get_input_config(input_signature.sequence_input)
    return tokenizer if isinstance(tokenizer, HfTokenizer) and tokenizer.chat_template else None


def prepare_chat_inputs(
    input_signature: ModelInputs,
    messages: object,
    inputs: Mapping[str, object] = NO_INPUTS,
    images: Sequence[object] = (),
) -> dict[str, object]:
    """Return `inputs` with the chat as prompt ids and with the images of the chat. The images are
    `images` or, if it is empty, the image files in the messages. Raise E0424 if there is no chat
    template, E0910 if the model has no image input, and E0991 if the number of images differs from
    the number of image parts in the chat.
    """
    sequence_input, preprocessing = input_signature.sequence_input, input_signature.preprocessing
    tokenizer = find_chat_tokenizer(input_signature)
    if tokenizer is None or tokenizer.chat_template is None:
        raise_error("E0424", "this model has no chat template", helps=["pass the formatted prompt"])
    parsed_messages = parse_messages(messages)
    images = [*images] or list_message_images(parsed_messages)
    text = render_chat_template(
        tokenizer.chat_template, add_image_content_parts(parsed_messages, len(images))
    )
    inputs_with_prompt = {**inputs, sequence_input: text}
    if images:
        inputs_with_prompt[find_image_input(input_signature.graph, preprocessing)] = images
    prepared = prepare_images(input_signature.graph, preprocessing, inputs_with_prompt)
    prompt = prepared[sequence_input]
    text = prompt[0] if isinstance(prompt, list) else text
    # the chat template adds the special tokens, so the tokenizer must not add them
    return {
        **prepared,
        sequence_input: [tokenize_text(text, replace(tokenizer, adds_special_tokens=False))],
    }


def prepare_prompt_inputs(
    input_signature: ModelInputs,
    inputs: Mapping[str, object],
    start: Sequence[int],
    allows_empty_prompt: bool = False,
) -> Arrays:
    """Prepare arrays for every input. If the caller passes no prompts, the start tokens serve as
    prompts. Without start tokens, the prompt is empty if `allows_empty_prompt` is true.
    """
    sequence_input = input_signature.sequence_input
    if sequence_input not in inputs:
        return input_signature.prepare(
            _add_start_tokens(input_signature, inputs, start, allows_empty_prompt)
        )
    others = {name: value for name, value in inputs.items() if name != sequence_input}
    prompts = _pad_prompts(input_signature, inputs[sequence_input])
    # a mask from the caller takes precedence over the computed mask
    prepared = input_signature.prepare({**prompts, **others})
    computed_mask = next((n for n in prompts if n not in (sequence_input, *others)), "")
    return _recompute_padding_mask(input_signature, prepared, computed_mask)


def _add_start_tokens(
    input_signature: ModelInputs,
    inputs: Mapping[str, object],
    start: Sequence[int],
    allows_empty_prompt: bool,
) -> dict[str, object]:
    """Return `inputs` with the start tokens of each sequence. If `start` is empty and
    `allows_empty_prompt` is true, the sequences are empty.
    """
    if not start and not allows_empty_prompt:
        return dict(inputs)
    batch_size = _infer_batch_size(input_signature, inputs)
    start_tokens = np.tile(np.array(start, np.int64), (batch_size, 1))
    # start tokens are valid, even if their id is the padding id
    mask_input = input_signature.mask_input
    mask = {mask_input: np.ones(start_tokens.shape, np.bool_)} if mask_input else {}
    if num_codebooks := _count_input_codebooks(input_signature):
        start_tokens = np.repeat(start_tokens[:, :, None], num_codebooks, axis=2)
    return {**mask, **inputs, input_signature.sequence_input: start_tokens}


def _recompute_padding_mask(
    input_signature: ModelInputs, prepared: dict[str, Array], mask_input: str
) -> Arrays:
    """Recompute the default padding mask of each prompt separately, without left padding."""
    defaults, sequence_input = input_signature.defaults, input_signature.sequence_input
    if defaults is None or mask_input not in defaults.outputs:
        return prepared
    if find_default_inputs(defaults, mask_input) != {sequence_input}:
        title = (
            f"the prompts have different lengths, and the default of `{mask_input}` depends on "
            "other inputs"
        )
        raise_error("E0912", title, helps=[f"pass `{mask_input}` with the prompts"])
    mask_defaults = build_input_defaults_graph(defaults, (mask_input,))
    mask, reference = prepared[mask_input].copy(), backend.load_reference_backend()
    for row, tokens in enumerate(prepared[sequence_input]):
        start = len(tokens) - int(mask[row].sum())
        inputs = {sequence_input: tokens[None, start:]}
        mask[row, start:] = reference.evaluate_graph(mask_defaults, inputs, {})[mask_input][0]
    return {**prepared, mask_input: mask}


def _pad_prompts(input_signature: ModelInputs, prompts: object) -> dict[str, object]:
    """Left-pad prompts of different lengths (lists of ids) and add their padding mask."""
    sequence_input = input_signature.sequence_input
    sequences = _list_prompts(prompts)
    if not sequences:
        return {sequence_input: prompts}
    mask_input = input_signature.mask_input
    longest, num_codebooks = max(map(len, sequences)), _count_input_codebooks(input_signature)
    if not longest:
        shape = (len(sequences), 0, num_codebooks) if num_codebooks else (len(sequences), 0)
        prompts = np.zeros(shape, np.int64)
    # prompts of equal length require no padding, but the mask may be a required input
    if min(map(len, sequences)) == longest:
        if not mask_input or mask_input not in input_signature.required_inputs:
            return {sequence_input: prompts}
        return {sequence_input: prompts, mask_input: np.ones((len(sequences), longest), np.bool_)}
    if not mask_input:
        raise_error(
            "E0912",
            f"the prompts have {min(map(len, sequences))} to {longest} tokens, but the model "
            "has no padding mask",
            notes=["no padding mask (`keep` input) has the axes of the prompts"],
            helps=[
                "batch prompts of equal length, or add `keep: keep[batch, n]` to the graph's inputs"
            ],
        )
    # left padding aligns the last tokens of all sequences, and the padding mask excludes the
    # padding
    padding = [0] * num_codebooks if num_codebooks else 0
    padded = [[padding] * (longest - len(sequence)) + list(sequence) for sequence in sequences]
    mask = [[False] * (longest - len(sequence)) + [True] * len(sequence) for sequence in sequences]
    return {sequence_input: padded, mask_input: mask}


def _count_input_codebooks(input_signature: ModelInputs) -> int:
    return count_codebooks(input_signature.graph.inputs[input_signature.sequence_input].type)


def _list_prompts(value: object) -> list[Sequence[object]]:
    """Return a list of prompts if `value` contains lists of ids, or [] for any other value."""
    if not isinstance(value, list | tuple):
        return []
    prompts: list[Sequence[object]] = [r for r in value if isinstance(r, list | tuple)]
    return prompts if len(prompts) == len(value) else []


def _infer_batch_size(input_signature: ModelInputs, inputs: Mapping[str, object]) -> int:
    """Infer the batch size from the first input with a batch axis. Return 1 if there is none."""
    for name, value in inputs.items():
        graph_input = input_signature.graph.inputs.get(name)
        if graph_input is None or input_signature.batch_size not in graph_input.shape[:1]:
            continue
        # a string or image is one batch element
        if is_image(value):
            continue
        if isinstance(value, list | tuple):
            return len(value)
        return next(iter(np.shape(np.asarray(value))), 1)
    return 1


def check_generation_settings(model: GenerativeModel, settings: GenerationSettings) -> None:
    """Raise E0732 or E0733 if the model does not support a setting."""
    if error := find_codebook_setting_error(asdict(settings), model.num_codebooks):
        raise SpeccError(error)
    sequence_input, batch = model.input_signature.sequence_input, model.input_signature.batch_size
    token_settings = ("pad", "start", "begin", "forced_eos_token_id")
    model.vocabulary_sizes.check_token_id_settings(
        {n: getattr(settings, n) for n in token_settings}
    )
    uses_guidance = settings.guidance_scale != 1
    if (uses_guidance or settings.strategy == "beam") and batch.number is not None:
        feature = "guidance" if uses_guidance else "beam search"
        raise_error(
            "E0733",
            f"{feature} requires a dynamic batch size, but the batch size of this model is {batch}",
            helps=[
                f"declare `{sequence_input}` with a dynamic first axis",
                f"or generate without {feature}",
            ],
        )


def check_context_length(model: GenerativeModel, prompt: Ints) -> None:
    """Raise E0943 if the prompt exceeds the maximum context length."""
    if model.max_context is None or prompt.shape[1] <= model.max_context:
        return
    raise_error(
        "E0943",
        f"the prompt has {prompt.shape[1]} tokens, but the model supports at most "
        f"{model.max_context}",
        notes=[format_limit_reason(model.length_limiting_table, model.max_context)]
        if model.length_limiting_table
        else [],
        helps=["use a shorter prompt"],
    )


def compute_max_new_tokens(
    model: GenerativeModel, settings: GenerationSettings, prompt_length: int
) -> int:
    """Return the maximum number of new tokens. Raise E0733 if `max_length` allows no new token."""
    max_tokens = settings.max_tokens
    if model.max_context is not None:
        # the last generated token requires no position, because the model does not process it
        max_tokens = model.max_context - prompt_length + 1
    if settings.max_length is None:
        return max_tokens
    remaining = settings.max_length - prompt_length
    if remaining < 1:
        raise_error(
            "E0733",
            f"the prompt has {prompt_length} tokens, but `max_length` is {settings.max_length}",
            helps=["increase `max_length`, or use `max_tokens`, which does not count the prompt"],
        )
    return min(max_tokens, remaining)
