"""Standalone generators: models that contain the decode loop and generate all tokens in one run."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import NoReturn

import numpy as np

from specc.artifact.manifest import (
    FIXED_SETTINGS,
    RECORDED_SETTINGS,
    SCALAR_SETTINGS,
    UNSUPPORTED_SETTINGS,
)
from specc.backend import Session
from specc.decode.beam_search import BeamHypothesis
from specc.decode.generation_settings import GenerationSettings
from specc.decode.setting_names_and_limits import GENERATION_OPTIONS, OPTIONS_BY_NAME
from specc.decode.token_selection import (
    DecodeStepOutput,
    Ints,
    StoppingCriterion,
    make_invalid_logits_error,
)
from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import to_json_value
from specc.ir.array import Array, Arrays
from specc.ir.graph import select_entries
from specc.runtime.generation_request import GenerationRequest
from specc.runtime.model_inputs import ModelInputs


@dataclass(frozen=True)
class StandaloneGeneratorOutput:
    """The outputs of a standalone generator.

    `tokens` are int64 [batch, num_return_sequences, length], padded after a stop token. Beam search
    returns `scores` (float32 [batch, num_return_sequences]); other strategies return `log_probs`
    (float32 [batch, length]).
    """

    tokens: Array
    scores: Array | None
    log_probs: Array | None


def run_standalone_generator(
    session: Session, request: GenerationRequest
) -> StandaloneGeneratorOutput:
    """Run a standalone generator. Raise E0912 if the graph cannot detect the padding of the prompt,
    and E0732 or E0733 if a setting is invalid.
    """
    scalars = _make_scalars(session, request.effective_settings, request.prepared_inputs)
    inputs = {**_make_inputs(session, request), **scalars}
    names = list(session.outputs)
    results = session.run_interruptibly(inputs)
    tokens, other = np.asarray(results[names[0]]), np.asarray(results[names[1]])
    # beam search returns tokens [batch, sequences, length] and scores; other strategies return
    # tokens [batch, length] and log-probabilities
    if tokens.ndim == 3:
        return StandaloneGeneratorOutput(tokens, other, None)
    return StandaloneGeneratorOutput(tokens[:, None], None, other)


def _make_inputs(session: Session, request: GenerationRequest) -> Arrays:
    """Return the prepared values of the graph's inputs. The graph computes all other values."""
    input_signature = request.model.input_signature
    known_names = accepted = {*session.inputs, *session.optional_inputs}
    if request.starts_without_prompt and input_signature.sequence_input in session.optional_inputs:
        # the generator inserts the start token, and its position is not padding
        start_names = {input_signature.sequence_input, input_signature.mask_input}
        accepted, known_names = accepted - start_names, accepted | start_names
    _check_computed(known_names, input_signature, request.prepared_inputs)
    return select_entries(request.prepared_inputs, accepted)


def _make_scalars(
    session: Session, settings: GenerationSettings, prepared: Collection[str]
) -> Arrays:
    """Return the generation settings that are inputs of the graph. The name of such an input may
    have a suffix, as in `seed_2`.
    """
    values, scalars = asdict(settings), {}
    for name in SCALAR_SETTINGS:
        input_name = f"{name}_2" if name in prepared else name
        if input_name in session.inputs:
            value = values[name]
            if name == "seed" and value >= 2**63:
                title = f"the seed must be less than 2**63, got {value}"
                raise_error("E0732", title, helps=["use a smaller seed"])
            scalars[input_name] = np.array(value, session.inputs[input_name].dtype)
        elif name == "repetition_penalty" and values[name] != 1:
            _raise_fixed(name, "1", values[name])
    return scalars


def iterate_decode_step_outputs(
    output: StandaloneGeneratorOutput,
    request: GenerationRequest,
    stopping_criterion: StoppingCriterion | None,
) -> Iterator[DecodeStepOutput]:
    """Yield the generated tokens step by step, as a decode loop does."""
    ended = np.zeros(len(request.prompt), np.bool_)
    for step in range(output.tokens.shape[2]):
        tokens = output.tokens[:, 0, step]
        _check_tokens_valid(tokens)
        ended = ended | np.isin(tokens, request.settings.stop)
        if stopping_criterion is not None:
            ended = ended | stopping_criterion(tokens, ended.copy())
        scores = output.log_probs[:, step] if output.log_probs is not None else None
        yield DecodeStepOutput(tokens, scores, ended.copy())
        if ended.all():
            return


def extract_beam_hypotheses(
    output: StandaloneGeneratorOutput, stop_tokens: Collection[int]
) -> list[list[BeamHypothesis]]:
    """Return the hypotheses of a beam search in a standalone generator, without padding."""
    _check_tokens_valid(output.tokens)
    hypotheses: list[list[BeamHypothesis]] = []
    all_scores = np.asarray(output.scores).tolist()
    for sequences, scores in zip(output.tokens.tolist(), all_scores, strict=True):
        hypotheses.append([])
        for tokens, score in zip(sequences, scores, strict=True):
            # tokens after the first stop token are padding
            length = next(
                (n + 1 for n, token in enumerate(tokens) if token in stop_tokens), len(tokens)
            )
            # skip sequences of probability zero, which only fill up the requested number of
            # sequences
            if score > -np.inf:
                ended = tokens[length - 1] in stop_tokens
                hypotheses[-1].append(BeamHypothesis(tuple(tokens[:length]), score, ended))
    return hypotheses


def _check_tokens_valid(tokens: Ints) -> None:
    """Raise E0961 if a standalone generator returned a negative token, i.e. had invalid logits."""
    has_negative = (tokens.reshape(len(tokens), -1) < 0).any(axis=1)
    if (invalid_indices := np.flatnonzero(has_negative)).size:
        raise make_invalid_logits_error(int(invalid_indices[0]))


def _check_computed(
    known_names: Collection[str], input_signature: ModelInputs, prepared: Arrays
) -> None:
    """Raise E0912 if an input differs from the value that the graph computes."""
    facts = input_signature.graph.input_facts
    names = prepared.keys() & facts.keys() - {*known_names} - input_signature.unused_inputs
    computed_names = sorted(names)
    computed = input_signature.prepare({n: v for n, v in prepared.items() if n not in names})
    name = next((n for n in computed_names if not np.array_equal(computed[n], prepared[n])), "")
    if not name:
        return
    package = "use a package: compile with `--graphs step`"
    if not facts[name].padding_side:
        title = f"the model computes `{name}`, and the value passed differs from the computed value"
        raise_error("E0912", title, helps=[package])
    note = f"the mask is computed by `{name}`"
    if name == input_signature.mask_input:
        note += "; prompts of different length are padded with 0"
    raise_error(
        "E0912",
        "the model computes the padding mask, and the mask passed differs from the computed mask",
        notes=[note],
        helps=[f"batch prompts of equal length, or {package}"],
    )


def select_compiled_settings(
    compiled_settings: Mapping[str, object], requested_strategy: object
) -> dict[str, object]:
    """Return the compiled settings, except strategy options if another strategy is requested."""
    strategy = compiled_settings.get("strategy")
    is_compiled_strategy = requested_strategy is None or (
        isinstance(requested_strategy, str) and requested_strategy == strategy
    )
    return {
        option.name: compiled_settings[key]
        for option in GENERATION_OPTIONS
        if (key := RECORDED_SETTINGS.get(option.name, "")) in compiled_settings
        and (not option.strategies or (is_compiled_strategy and strategy in option.strategies))
    }


def check_compiled_settings(
    settings: GenerationSettings, compiled_settings: Mapping[str, object]
) -> None:
    """Raise E0733 if a setting differs from the compiled setting or is not supported."""
    values, defaults = asdict(settings), asdict(GenerationSettings())
    for name in UNSUPPORTED_SETTINGS:
        if values[name] != defaults[name]:
            raise_error(
                "E0733",
                f"`{name}` is not supported by a standalone generator",
                helps=["use a package: compile with `--graphs step`", f"or remove `{name}`"],
            )
    for name in FIXED_SETTINGS:
        compiled_value = compiled_settings.get(FIXED_SETTINGS[name], defaults[name])
        if isinstance(defaults[name], tuple) and not isinstance(compiled_value, list):
            # models compiled by earlier versions have at most one start token
            compiled_value = (
                list(defaults[name]) if compiled_value in (None, ()) else [compiled_value]
            )
        value = to_json_value(values[name])
        strategies = OPTIONS_BY_NAME[name].strategies
        if value != compiled_value and not (
            strategies == ("beam",) and settings.strategy != "beam"
        ):
            _raise_fixed(name, compiled_value, value)


def _raise_fixed(name: str, compiled_value: object, value: object) -> NoReturn:
    raise_error(
        "E0733",
        f"`{name}` must be {compiled_value}, as compiled into this model, got {value}",
        helps=["compile the model with this setting, or use a package: `--graphs step`"],
    )
