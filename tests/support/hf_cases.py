"""Compare transformers models with their compiled checkpoints: tiny random weights, saved, compiled
from the directory.

The test of a model family is a table of cases: config class, model class, settings, inputs, and the
output names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import specc
from specc.api import Model
from support.elaborated_specs import elaborate_with_config
from support.padded_batches import Field, PaddingMask, Samples, Side, TokenIds, make_samples
from support.published_models import (
    assert_matches_float32,
    is_sinusoidal,
    open_weighted_spec,
    randomize_weights,
    record_comparison,
)

VOCAB = 31
TEXT_SAMPLES = make_samples(
    {"input_ids": TokenIds("seq", VOCAB), "attention_mask": PaddingMask("seq")}, {"seq": (7, 1, 4)}
)
"""Three token sequences of different lengths."""
PROMPTS = [[5, 9, 3, 17, 8, 22, 11], [13, 4], [7, 7, 21, 19]]
MAX_NEW_TOKENS = 20
MIN_LOGIT_GAP = 1e-4
"""Minimum gap of the two largest logits, relative to their range: a seed with a smaller gap is not
usable.
"""


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One head of a model family in one configuration.

    `results` maps an output name, equal on both sides, to its padded axis ("" if it has none).
    `renamed` maps our input names to those of transformers where they differ. `position_ids`: pass
    position ids that count unpadded tokens, as `generate` does. `sides` are the padding sides that
    the transformers model supports. `weight_scale` scales matrices so that the generated tokens vary,
    `suffix_scales` scales those with given name endings. `eager`: use eager attention, because the fused
    kernel ignores a part of the model, such as logit soft-capping; eager attention gives NaN in
    float64 with left padding, so these sequences run one by one. `float32_only`: the transformers code
    supports float32 only. `save_options` are arguments of `save_pretrained`. `context`: the context
    length to compile for.
    """

    config: str
    model: str
    tiny: Mapping[str, Any]
    results: Mapping[str, str] = field(default_factory=lambda: {"logits": "seq"})
    samples: Samples = TEXT_SAMPLES
    renamed: Mapping[str, str] = field(default_factory=dict)
    sides: tuple[Side, ...] = ("right",)
    position_ids: bool = False
    weight_scale: float = 1.0
    suffix_scales: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    eager: bool = False
    float32_only: bool = False
    save_options: Mapping[str, Any] = field(default_factory=dict)
    context: int = 0

    def save_checkpoint(self, directory: Path) -> Any:
        """Return the transformers model with random weights, and save its checkpoint in
        `directory`.
        """
        config = getattr(transformers, self.config)(**self.tiny)
        model_class = getattr(transformers, self.model)
        hf_model = randomize_weights(model_class(config), self.seed)
        with torch.no_grad():
            for name, weight in hf_model.named_parameters():
                # sinusoidal positions are a weight if the transformers class stores them as one
                if weight.dim() > 1 and not is_sinusoidal(hf_model, name):
                    weight *= self.weight_scale
                for ending, scale in self.suffix_scales.items():
                    weight *= scale if name.endswith(ending) else 1.0
                if weight.dim() == 3 and "experts" in name:
                    # all experts in one tensor: the same scale as one expert alone
                    weight *= weight.shape[1] ** 0.5
            for name, buffer in hf_model.named_buffers():
                if name.endswith("correction_bias"):  # zeros in a new model
                    buffer += torch.linspace(-0.3, 0.3, len(buffer)).sin()
        hf_model.save_pretrained(directory, **self.save_options)
        # Read back: a sinusoidal table is not in the file, but was sampled like the weights.
        options = {
            "experts_implementation": "eager"
        }  # the other implementation does not support float64
        options |= {"attn_implementation": "eager"} if self.eager else {}
        return model_class.from_pretrained(directory, **options).eval()

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the outputs of the transformers model for our inputs."""
        inputs = {self.renamed.get(name, name): value for name, value in x.items()}
        inputs = {n: v.long() if v.dtype == torch.bool else v for n, v in inputs.items()}
        if self.position_ids:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        outputs = (
            self._one_by_one(hf_model, inputs)
            if self.eager and len(inputs["input_ids"]) > 1
            else hf_model(**inputs)
        )
        return {name: outputs[name] for name in self.results}

    def _one_by_one(
        self, hf_model: Any, inputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Run each sequence without its padding; padded positions of the result are 0."""
        padded: dict[str, torch.Tensor] = {}
        for row, valid in enumerate(inputs["attention_mask"].bool()):
            outputs = hf_model(**{n: v[row][valid][None] for n, v in inputs.items()})
            for name, dim in self.results.items():
                size = inputs["input_ids"].shape[: 2 if dim else 1]
                shape = (*size, *outputs[name].shape[len(size) :])
                rows = padded.setdefault(name, torch.zeros(shape, dtype=torch.float64))
                rows[(row, valid) if dim else row] = outputs[name][0]
        return padded


class SourceHeadCase(ModelCase):
    """A head on a decoder that rereads the source: classification at the last token, spans at all
    positions.

    The transformers model requires the same number of end tokens in each batch element and counts
    those in the padding too, so sequences run one by one.
    """

    def run_published(
        self, hf_model: Any, x: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        ids, keep = x["source"], x["source_keep"]
        outputs: dict[str, list[torch.Tensor]] = {name: [] for name in self.results}
        for row, valid in zip(ids, keep, strict=True):
            decoded = hf_model(input_ids=row[valid][None], use_cache=False)
            for name, dim in self.results.items():
                rows = decoded[name][0]
                # padded positions are 0
                more = [0] * (2 * rows.dim() - 1) + [len(row) - len(rows)]
                padded = torch.nn.functional.pad(rows, more) if dim else rows
                outputs[name].append(padded)
        return {name: torch.stack(rows) for name, rows in outputs.items()}


def make_source_head_case(
    config: str,
    model: str,
    tiny: Mapping[str, Any],
    end: int,
    lengths: tuple[int, ...] = (7, 1, 4),
    fields: Mapping[str, Field] | None = None,
    **more: Any,
) -> ModelCase:
    """Return a `SourceHeadCase` whose longer sequences contain `end` twice, with tokens after it.

    `fields` are further inputs of ours that the transformers model does not get.
    """
    source = {"source": TokenIds("src", 29), "source_keep": PaddingMask("src")}
    samples = make_samples({**source, **(fields or {})}, {"src": lengths})
    for row in samples.rows:
        ids = row["source"]
        ids[ids == end] = 7
        # the last end token counts; tokens after it do not
        ids[[0, -2] if len(ids) > 2 else -1] = end
    is_question_answering = "Question" in model
    return SourceHeadCase(
        config=config,
        model=model,
        tiny={**tiny, "num_labels": 2 if is_question_answering else 4},
        results={"start_logits": "src", "end_logits": "src"}
        if is_question_answering
        else {"logits": ""},
        samples=samples,
        **more,
    )


def check_model_outputs(case: ModelCase, directory: Path) -> None:
    """Check that the compiled checkpoint gives the outputs of transformers within 1e-5: one
    sequence, and a padded batch of 3.
    """
    hf_model = case.save_checkpoint(directory)
    ours = open_weighted_spec(str(directory), directory, case.context)
    if not case.float32_only:
        hf_model.double()
    assert_matches_float32(
        ours, case.samples, lambda x: case.run_published(hf_model, x), case.results, case.sides
    )


def check_generation(
    case: ModelCase, directory: Path, beams: Sequence[int] = (1, 4), *, double: bool = True
) -> None:
    """Check that the compiled checkpoint generates the 20 tokens of transformers, greedily and with
    beam search.

    For one prompt, for a left-padded batch of 3 (as a package), and as a standalone generator.
    Without `double` the transformers model runs in float32.
    """
    hf_model = case.save_checkpoint(directory)
    if double:
        hf_model.double()
    specc.compile(str(directory), directory / "package", graphs="step")
    package = specc.load(directory / "package", threads=1)
    for count in beams:
        options: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
        if count > 1:
            options |= {"strategy": "beam", "num_beams": count, "early_stopping": False}
        generator = _compile_generator(directory, options)
        for prompts in ([PROMPTS[0]], PROMPTS):
            parts = [[p] for p in prompts] if case.eager else [prompts]
            expected = [t for part in parts for t in generate_published(hf_model, part, count)]
            ids, keep = pad_left(prompts)
            runs = [(package, {"input_ids": ids, "attention_mask": keep})]
            if len(prompts) == 1:
                # A standalone generator gets no padding mask if the spec has token ids only.
                runs += [(generator, {"input_ids": ids})]
            for ours, inputs in runs:
                outputs = ours.generate(**inputs, **options)
                actual = [list(row[0].tokens) for row in outputs.results()]
                assert actual == expected, f"{ours.path.name}, {count} beams, {len(prompts)} texts"
    record_comparison(lambda: elaborate_with_config(str(directory)).model, written=MAX_NEW_TOKENS)


def _compile_generator(directory: Path, options: Mapping[str, Any]) -> Model:
    """Compile a checkpoint directory to a standalone generator with these settings."""
    path = directory / f"one{options.get('num_beams', 1)}.onnx"
    specc.compile(str(directory), path, graphs="generate", generation_config=options)
    return specc.load(path, threads=1)


def check_translation(case: ModelCase, directory: Path) -> None:
    """Check that the compiled checkpoint generates the 20 tokens of transformers for a source,
    greedily and with beam search.

    As a package for sources of different lengths, and as a standalone generator.
    """
    hf_model = case.save_checkpoint(directory)
    if not case.float32_only:
        hf_model.double()
    batch, single = case.samples.make_batch("right"), case.samples.get_sample(0)
    # the standalone generator finds padding by its id, which is not among these tokens
    pad = hf_model.config.pad_token_id
    single["source"] = np.where(single["source"] == pad, 3, single["source"])
    specc.compile(str(directory), directory / "package", graphs="step")
    package = specc.load(directory / "package", threads=1)
    for count in (1, 4):
        options: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
        if count > 1:
            options |= {"strategy": "beam", "num_beams": count, "early_stopping": False}
        generator = _compile_generator(directory, options)
        expected_batch, expected_single = (_translated(hf_model, x, count) for x in (batch, single))
        for ours, inputs, expected in (
            (package, batch, expected_batch),
            (package, single, expected_single),
            (generator, single, expected_single),
        ):
            source_inputs = {name: inputs[name] for name in ("source", "source_keep")}
            outputs = ours.generate(**source_inputs, **options)
            for row, texts in enumerate(outputs.results()):
                text = list(texts[0].tokens)
                message = f"{ours.path.name}, {count} beams, text {row} of {len(expected)}"
                # the first token is the start token, which we do not return
                assert text == expected[row][1 : len(text) + 1].tolist(), message
                ends = np.append(hf_model.config.eos_token_id, hf_model.config.pad_token_id)
                assert np.isin(expected[row][len(text) + 1 :], ends).all(), message
    record_comparison(lambda: elaborate_with_config(str(directory)).model, written=MAX_NEW_TOKENS)


def _translated(hf_model: Any, inputs: Mapping[str, Any], beams: int) -> Any:
    """Return the output of transformers' `generate` for each source."""
    with torch.no_grad():
        return hf_model.generate(
            torch.tensor(inputs["source"]),
            attention_mask=torch.tensor(inputs["source_keep"]).long(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            early_stopping=False,
            use_cache=True,
        ).numpy()


def generate_published(hf_model: Any, prompts: Sequence[Sequence[int]], beams: int) -> list[Any]:
    """Return the new tokens of transformers' `generate` for each prompt."""
    ids, keep = pad_left(prompts)
    longest = ids.shape[1]
    with torch.no_grad():
        outputs = hf_model.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(keep).long(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    stops = hf_model.generation_config.eos_token_id
    texts = [cut_at_stop(row[longest:].tolist(), stops) for row in outputs.sequences]
    if beams == 1:
        best = np.sort(np.stack([step.numpy() for step in outputs.logits]), axis=-1)
        gaps = (best[..., -1] - best[..., -2]) / (best[..., -1] - best[..., 0])
        near = min(gaps[: len(text), n].min() for n, text in enumerate(texts))
        assert near > MIN_LOGIT_GAP, "two tokens are too close: take another seed"
    return texts


def pad_left(prompts: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Return token ids and padding mask, padded on the left."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + list(p) for p in prompts]
    keep = [[False] * (longest - len(p)) + [True] * len(p) for p in prompts]
    return np.array(ids), np.array(keep)


def cut_at_stop(tokens: list[int], stop: int | Sequence[int] | None) -> list[int]:
    """Return a sequence up to and including its stop token."""
    stops = [stop] if isinstance(stop, int) else stop or ()
    ends = [n for n, token in enumerate(tokens) if token in stops]
    return tokens[: ends[0] + 1] if ends else tokens
