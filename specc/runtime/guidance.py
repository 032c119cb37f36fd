"""Classifier-free guidance (Ho and Salimans, 2022, arXiv:2207.12598): run the model with and
without the condition, and extrapolate from the unconditional to the conditional logits.
"""

from dataclasses import dataclass

import numpy as np

from specc.decode.generation_settings import GenerationSettings
from specc.decode.token_selection import DecoderSession, Floats, Ints, compute_log_softmax_f32
from specc.diagnostics.diagnostic import raise_error
from specc.ir.array import Array, Arrays
from specc.ir.input_shapes_and_defaults import find_default_inputs
from specc.runtime.generation_request import GenerativeModel
from specc.runtime.model_inputs import ModelInputs, find_axis_of_length


@dataclass(frozen=True)
class GuidedDecoderSession:
    """A decoder session for a batch of n sequences. `session` has 2 n batch elements: each sequence
    with the condition is followed by the same sequence without the condition. If `uses_log_probs`
    is True, the session extrapolates log-probabilities instead of logits. The tokens may differ
    from those of extrapolated logits if a repetition penalty is applied.
    """

    session: DecoderSession
    scale: float
    uses_log_probs: bool

    def step(self, tokens: Ints) -> Floats:
        """Run the model on new tokens, int64 [n, length, …]. Return the logits
        `unconditional + scale · (conditional − unconditional)`, float32 [n, …, vocab].
        """
        logits = self.session.step(np.repeat(tokens, 2, axis=0))
        if self.uses_log_probs:
            logits = compute_log_softmax_f32(logits)
        conditional, unconditional = logits[0::2], logits[1::2]
        guided: Floats = unconditional + np.float32(self.scale) * (conditional - unconditional)
        return guided

    def reorder(self, indices: Ints) -> None:
        """Reorder the batch elements, and keep both copies of a sequence next to each other."""
        self.session.reorder(np.stack([2 * indices, 2 * indices + 1], axis=1).reshape(-1))


def create_guided_decoder_session(
    model: GenerativeModel, settings: GenerationSettings, prepared_inputs: Arrays
) -> DecoderSession:
    """Create the decoder session for prepared inputs, with guidance unless the guidance scale is 1.
    Raise E0733 if the model has no padding mask that can mask out the condition.
    """
    if settings.guidance_scale == 1:
        return model.create_decoder_session(prepared_inputs)
    inputs = model.input_signature
    unconditional = _remove_condition(inputs, settings, prepared_inputs)
    both = {
        name: _interleave(inputs, name, value, unconditional[name])
        for name, value in prepared_inputs.items()
    }
    # transformers extrapolates logits for MusicGen (which has a start token) and log-probabilities
    # for other models
    session = model.create_decoder_session(both)
    return GuidedDecoderSession(session, settings.guidance_scale, uses_log_probs=not settings.start)


def _remove_condition(
    inputs: ModelInputs, settings: GenerationSettings, prepared: Arrays
) -> Arrays:
    """Return the inputs with padding masks that mask out the condition."""
    masks, defaults = _mask_condition(inputs, settings, prepared), inputs.defaults
    if not masks:
        raise_error(
            "E0733",
            "`guidance_scale` requires a padding mask that excludes the condition, but no input of "
            "the model is a padding mask",
            helps=["declare a padding mask in the spec, such as `mask: keep[batch, n]`"],
        )
    dependent = {
        name
        for name in (defaults.outputs if defaults else ())
        if defaults and name not in masks and find_default_inputs(defaults, name) & masks.keys()
    }
    known = {name: value for name, value in prepared.items() if name not in dependent}
    return inputs.prepare({**known, **masks}) if dependent else {**known, **masks}


def _mask_condition(inputs: ModelInputs, settings: GenerationSettings, prepared: Arrays) -> Arrays:
    """Return padding masks that mask out the condition. If the decoder has a start token, the
    condition is the whole encoder input, as in MusicGen (arXiv:2306.05284, sec. 2.3). Otherwise,
    the condition is the prompt with its images, except the last token (Sanchez et al., 2023,
    arXiv:2306.17806, sec. 3.1).
    """
    facts, types = inputs.graph.input_facts, inputs.graph.inputs
    masks = {
        name: np.zeros_like(value)
        for name, value in prepared.items()
        if settings.start
        and facts[name].padding_side
        and inputs.sequence_length not in types[name].shape
    }
    if masks or inputs.mask_input not in prepared:
        return masks
    mask = prepared[inputs.mask_input]
    return {inputs.mask_input: mask & (np.arange(mask.shape[1]) == mask.shape[1] - 1)}


def _interleave(inputs: ModelInputs, name: str, first: Array, second: Array) -> Array:
    """Interleave the batch elements of two values. Return `first` if there is no batch axis."""
    axis = find_axis_of_length(inputs.graph.inputs[name].type, inputs.batch_size)
    if axis is None:
        return first
    order = np.arange(2 * first.shape[axis]).reshape(2, -1).T.reshape(-1)
    return np.take(np.concatenate([first, second], axis), order, axis)
