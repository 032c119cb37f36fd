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
    `renamed` maps our input names to those of transformers where they differ. `places`: pass
    position ids that count unpadded tokens, as `generate` does. `sides` are the padding sides that
    the transformers model supports. `louder` scales matrices so that the generated tokens vary,
    `softer` scales those with given name endings. `eager`: use eager attention, because the fused
    kernel ignores a part of the model, such as logit soft-capping; eager attention gives NaN in
    float64 with left padding, so these sequences run one by one. `single`: the transformers code
    supports float32 only. `written` are arguments of `save_pretrained`. `context`: the context
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

    @property
    def test_id(self) -> str:
        """Return the name of the case for test ids."""
        return f"{self.model}-{abs(hash(str(sorted(self.tiny.items())))) % 1000}"

    def save_checkpoint(self, directory: Path) -> Any:
        """Return the transformers model with random weights, and save its checkpoint in
        `directory`.
        """
        config = getattr(transformers, self.config)(**self.tiny)
        kind = getattr(transformers, self.model)
        theirs = randomize_weights(kind(config), self.seed)
        with torch.no_grad():
            for name, weight in theirs.named_parameters():
                # sinusoidal positions are a weight if the transformers class stores them as one
                if weight.dim() > 1 and not is_sinusoidal(theirs, name):
                    weight *= self.weight_scale
                for ending, scale in self.suffix_scales.items():
                    weight *= scale if name.endswith(ending) else 1.0
                if weight.dim() == 3 and "experts" in name:
                    # all experts in one tensor: the same scale as one expert alone
                    weight *= weight.shape[1] ** 0.5
            for name, numbers in theirs.named_buffers():
                if name.endswith("correction_bias"):  # zeros in a new model
                    numbers += torch.linspace(-0.3, 0.3, len(numbers)).sin()
        theirs.save_pretrained(directory, **self.save_options)
        # Read back: a sinusoidal table is not in the file, but was sampled like the weights.
        how = {
            "experts_implementation": "eager"
        }  # the other implementation does not support float64
        how |= {"attn_implementation": "eager"} if self.eager else {}
        return kind.from_pretrained(directory, **how).eval()

    def run_published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs of the transformers model for our inputs."""
        given = {self.renamed.get(name, name): value for name, value in x.items()}
        given = {n: v.long() if v.dtype == torch.bool else v for n, v in given.items()}
        if self.position_ids:
            given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        made = (
            self._one_by_one(theirs, given)
            if self.eager and len(given["input_ids"]) > 1
            else theirs(**given)
        )
        return {name: made[name] for name in self.results}

    def _one_by_one(
        self, theirs: Any, given: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Run each sequence without its padding; padded positions of the result are 0."""
        whole: dict[str, torch.Tensor] = {}
        for row, kept in enumerate(given["attention_mask"].bool()):
            made = theirs(**{n: v[row][kept][None] for n, v in given.items()})
            for name, dim in self.results.items():
                size = given["input_ids"].shape[: 2 if dim else 1]
                shape = (*size, *made[name].shape[len(size) :])
                rows = whole.setdefault(name, torch.zeros(shape, dtype=torch.float64))
                rows[(row, kept) if dim else row] = made[name][0]
        return whole


class SourceHeadCase(ModelCase):
    """A head on a decoder that rereads the source: classification at the last token, spans at all
    positions.

    The transformers model requires the same number of end tokens in each batch element and counts
    those in the padding too, so sequences run one by one.
    """

    def run_published(self, theirs: Any, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        ids, keep = x["source"], x["source_keep"]
        made: dict[str, list[torch.Tensor]] = {name: [] for name in self.results}
        for row, kept in zip(ids, keep, strict=True):
            given = theirs(input_ids=row[kept][None], use_cache=False)
            for name, dim in self.results.items():
                rows = given[name][0]
                # padded positions are 0
                more = [0] * (2 * rows.dim() - 1) + [len(row) - len(rows)]
                padded = torch.nn.functional.pad(rows, more) if dim else rows
                made[name].append(padded)
        return {name: torch.stack(rows) for name, rows in made.items()}


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
    given = make_samples({**source, **(fields or {})}, {"src": lengths})
    for row in given.rows:
        ids = row["source"]
        ids[ids == end] = 7
        # the last end token counts; tokens after it do not
        ids[[0, -2] if len(ids) > 2 else -1] = end
    asked = "Question" in model
    return SourceHeadCase(
        config=config,
        model=model,
        tiny={**tiny, "num_labels": 2 if asked else 4},
        results={"start_logits": "src", "end_logits": "src"} if asked else {"logits": ""},
        samples=given,
        **more,
    )


def check_model_outputs(case: ModelCase, directory: Path) -> None:
    """Check that the compiled checkpoint gives the outputs of transformers within 1e-5: one
    sequence, and a padded batch of 3.
    """
    theirs = case.save_checkpoint(directory)
    ours = open_weighted_spec(str(directory), directory, case.context)
    if not case.float32_only:
        theirs.double()
    assert_matches_float32(
        ours, case.samples, lambda x: case.run_published(theirs, x), case.results, case.sides
    )


def check_generation(
    case: ModelCase, directory: Path, beams: Sequence[int] = (1, 4), *, double: bool = True
) -> None:
    """Check that the compiled checkpoint generates the 20 tokens of transformers, greedily and with
    beam search.

    For one prompt, for a left-padded batch of 3 (as a package), and as a standalone generator.
    Without `double` the transformers model runs in float32.
    """
    theirs = case.save_checkpoint(directory)
    if double:
        theirs.double()
    specc.compile(str(directory), directory / "package", graphs="step")
    package = specc.load(directory / "package", threads=1)
    for count in beams:
        how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
        if count > 1:
            how |= {"strategy": "beam", "num_beams": count, "early_stopping": False}
        one = _compile_generator(directory, how)
        for prompts in ([PROMPTS[0]], PROMPTS):
            parts = [[p] for p in prompts] if case.eager else [prompts]
            wanted = [t for part in parts for t in generate_published(theirs, part, count)]
            ids, keep = pad_left(prompts)
            told = [(package, {"input_ids": ids, "attention_mask": keep})]
            if len(prompts) == 1:
                # A standalone generator gets no padding mask if the spec has token ids only.
                told += [(one, {"input_ids": ids})]
            for ours, given in told:
                made = ours.generate(**given, **how)
                got = [list(row[0].tokens) for row in made.results()]
                assert got == wanted, f"{ours.path.name}, {count} beams, {len(prompts)} texts"
    record_comparison(lambda: elaborate_with_config(str(directory)).model, written=MAX_NEW_TOKENS)


def _compile_generator(directory: Path, how: Mapping[str, Any]) -> Model:
    """Compile a checkpoint directory to a standalone generator with these settings."""
    path = directory / f"one{how.get('num_beams', 1)}.onnx"
    specc.compile(str(directory), path, graphs="generate", generation_config=how)
    return specc.load(path, threads=1)


def check_translation(case: ModelCase, directory: Path) -> None:
    """Check that the compiled checkpoint generates the 20 tokens of transformers for a source,
    greedily and with beam search.

    As a package for sources of different lengths, and as a standalone generator.
    """
    theirs = case.save_checkpoint(directory)
    if not case.float32_only:
        theirs.double()
    together, alone = case.samples.make_batch("right"), case.samples.get_sample(0)
    # the standalone generator finds padding by its id, which is not among these tokens
    pad = theirs.config.pad_token_id
    alone["source"] = np.where(alone["source"] == pad, 3, alone["source"])
    specc.compile(str(directory), directory / "package", graphs="step")
    package = specc.load(directory / "package", threads=1)
    for count in (1, 4):
        how: dict[str, Any] = {"max_tokens": MAX_NEW_TOKENS}
        if count > 1:
            how |= {"strategy": "beam", "num_beams": count, "early_stopping": False}
        one = _compile_generator(directory, how)
        wanted_together, wanted_alone = (_translated(theirs, x, count) for x in (together, alone))
        for ours, given, wanted in (
            (package, together, wanted_together),
            (package, alone, wanted_alone),
            (one, alone, wanted_alone),
        ):
            told = {name: given[name] for name in ("source", "source_keep")}
            made = ours.generate(**told, **how)
            for row, texts in enumerate(made.results()):
                text = list(texts[0].tokens)
                what = f"{ours.path.name}, {count} beams, text {row} of {len(wanted)}"
                # the first token is the start token, which we do not return
                assert text == wanted[row][1 : len(text) + 1].tolist(), what
                ends = [theirs.config.pad_token_id, theirs.config.eos_token_id]
                assert np.isin(wanted[row][len(text) + 1 :], ends).all(), what
    record_comparison(lambda: elaborate_with_config(str(directory)).model, written=MAX_NEW_TOKENS)


def _translated(theirs: Any, given: Mapping[str, Any], beams: int) -> Any:
    """Return the output of transformers' `generate` for each source."""
    with torch.no_grad():
        return theirs.generate(
            torch.tensor(given["source"]),
            attention_mask=torch.tensor(given["source_keep"]).long(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            early_stopping=False,
            use_cache=True,
        ).numpy()


def generate_published(theirs: Any, prompts: Sequence[Sequence[int]], beams: int) -> list[Any]:
    """Return the new tokens of transformers' `generate` for each prompt."""
    ids, keep = pad_left(prompts)
    longest = ids.shape[1]
    with torch.no_grad():
        made = theirs.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(keep).long(),
            do_sample=False,
            num_beams=beams,
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
    stops = theirs.generation_config.eos_token_id
    texts = [cut_at_stop(row[longest:].tolist(), stops) for row in made.sequences]
    if beams == 1:
        best = np.sort(np.stack([step.numpy() for step in made.logits]), axis=-1)
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
