"""Generated tokens equal those of transformers' `generate` with the same model.

The models have random weights, scaled up so that outputs vary. Seeds for which two candidate scores
are within 1e-4 of the score range are replaced.
"""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.parameter_sweeps import cover_axes
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from specc.decode.beam_search import BeamHypothesis, run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings, merge_caller_settings
from specc.decode.token_selection import (
    Bools,
    Floats,
    Ints,
    apply_repetition_penalty,
    filter_candidates,
    make_prompt_vocab_mask,
)

pytestmark = pytest.mark.parity

VOCAB, STOP, PAD, START = 23, 2, 1, 0  # a pad of 0 counts as none in their beam search
LONGEST = 14
SOURCE = np.array([[5, 9, 3, 7, 2], [8, 4, 2, 1, 1], [6, 6, 11, 2, 1]])
PROMPT = np.array([[1, 1, 5, 7], [1, 9, 4, 13], [3, 8, 11, 6]])
KEEP = PROMPT != PAD


class FullForwardDecoder:
    """A decoder session that runs the whole torch model on all tokens so far."""

    def __init__(self, model: Any, keep: Bools | None = None, source: Ints | None = None) -> None:
        self.model, self.source = model, source
        self.keep, self.ids = keep, np.zeros((0, 0), np.int64)
        self.closest = np.inf
        """The smallest gap between the two best logits met, as a share of their range."""

    def step(self, tokens: Ints) -> Floats:
        if not self.ids.size:
            self.ids = tokens
            self.keep = np.ones(tokens.shape, np.bool_) if self.keep is None else self.keep
        else:
            assert self.keep is not None
            self.ids = np.concatenate([self.ids, tokens], axis=1)
            self.keep = np.concatenate([self.keep, np.ones(tokens.shape, np.bool_)], axis=1)
        with torch.no_grad():
            made: Floats = self._run().logits[:, -1].float().numpy()
        top = np.sort(made, axis=1)
        self.closest = min(
            self.closest, float(((top[:, -1] - top[:, -2]) / (top[:, -1] - top[:, 0])).min())
        )
        return made

    def _run(self) -> Any:
        ids, keep = torch.tensor(self.ids), torch.tensor(self.keep)
        if self.source is None:
            places = (keep.long().cumsum(-1) - 1).clamp(min=0)
            return self.model(
                input_ids=ids, attention_mask=keep.long(), position_ids=places, use_cache=False
            )
        source = torch.tensor(self.source)
        return self.model(
            input_ids=source,
            attention_mask=(source != PAD).long(),
            decoder_input_ids=ids,
            use_cache=False,
        )

    def reorder(self, rows: Ints) -> None:
        assert self.keep is not None
        self.ids, self.keep = self.ids[rows], self.keep[rows]
        self.source = None if self.source is None else self.source[rows]


def varied(model: Any, by: float) -> Any:
    """Return a model with scaled-up weights, without the generation settings that the library adds."""
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(by)
        model.lm_head.weight[STOP] *= 1.7  # so that some texts end
    model.generation_config = GenerationConfig()
    return model


@cache
def gpt2(seed: int) -> Any:
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=24, n_layer=2, n_head=3, tie_word_embeddings=False
    )
    return varied(GPT2LMHeadModel(config), 8)


@cache
def bart(seed: int) -> Any:
    torch.manual_seed(seed)
    config = BartConfig(
        vocab_size=VOCAB,
        d_model=24,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=40,
        decoder_ffn_dim=40,
        max_position_embeddings=32,
        pad_token_id=PAD,
        bos_token_id=START,
        eos_token_id=STOP,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        tie_word_embeddings=False,
    )
    return varied(BartForConditionalGeneration(config), 10)


def theirs(model: Any, *, stop: Any = STOP, **options: Any) -> Any:
    """Return the tokens of `generate` for a batch, without the prompt, and the scores of a beam
    search.
    """
    source = isinstance(model, BartForConditionalGeneration)
    ids = torch.tensor(SOURCE if source else PROMPT)
    config = GenerationConfig(
        max_new_tokens=LONGEST, eos_token_id=stop, pad_token_id=PAD, decoder_start_token_id=START, do_sample=False,
        return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    made = model.generate(ids, attention_mask=(ids != PAD).long(), generation_config=config)
    return made.sequences[:, 1 if source else ids.shape[1] :].numpy(), made.get("sequences_scores")


def begin(model: Any) -> tuple[FullForwardDecoder, Ints, Bools | None]:
    if isinstance(model, BartForConditionalGeneration):
        return FullForwardDecoder(model, source=SOURCE), np.full((len(SOURCE), 1), START), None
    return FullForwardDecoder(model, KEEP), PROMPT, KEEP


def greedy(model: Any, settings: GenerationSettings) -> tuple[Ints, FullForwardDecoder]:
    decoder_session, prompt, keep = begin(model)
    return np.stack(
        [
            m.tokens
            for m in iterate_decode_steps(decoder_session, prompt, settings, padding_mask=keep)
        ],
        axis=1,
    ), decoder_session


def padded(found: list[list[BeamHypothesis]]) -> Ints:
    """Return i64[rows · num_return_sequences, longest], as `generate` lays its sequences out."""
    texts = [h.tokens for row in found for h in row]
    width = max(map(len, texts))
    return np.array([[*t, *[PAD] * (width - len(t))] for t in texts])


SEEDS = [(gpt2, 2), (gpt2, 4), (gpt2, 6), (gpt2, 8), (bart, 4), (bart, 5), (bart, 6), (bart, 8)]
"""Models whose texts differ, and of which some end."""
MODELS = [pytest.param(make, seed, id=f"{make.__name__}-{seed}") for make, seed in SEEDS]
SEARCHED = [m for m in MODELS if m.id in ("gpt2-2", "gpt2-8", "bart-4", "bart-8")]
"""A beam search takes longer: half of them."""
SEARCHES = cover_axes(
    lambda model, early, search: (model + early + search) % 2 == 0,
    [(gpt2, 2), (gpt2, 8), (bart, 4), (bart, 8)],
    [False, True, "never"],
    [(2, 0.6, 1), (4, 1.0, 3), (4, 2.0, 2)],
)
"""Each search and end with one model of each kind, all under `slow`."""


@pytest.mark.parametrize(("make", "seed"), MODELS)
@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy(make: Any, seed: int, penalty: float) -> None:
    model = make(seed)
    settings = merge_caller_settings(
        {"stop": STOP, "pad": PAD}, max_tokens=LONGEST, repetition_penalty=penalty
    )
    ours, decoder_session = greedy(model, settings)
    published, _ = theirs(model, repetition_penalty=penalty)
    assert decoder_session.closest > 1e-4
    assert np.array_equal(ours, published)


@pytest.mark.parametrize(("made", "early", "search"), SEARCHES)
def test_beam_search(
    made: tuple[Any, int], early: bool | str, search: tuple[int, float, int]
) -> None:
    make, seed = made
    beams, penalty, best = search
    model = make(seed)
    settings = merge_caller_settings(
        {"stop": STOP, "pad": PAD}, max_tokens=LONGEST, num_beams=beams, length_penalty=penalty, early_stopping=early,
        num_return_sequences=best,
    )  # fmt: skip
    decoder_session, prompt, keep = begin(model)
    found = run_beam_search(decoder_session, prompt, settings, padding_mask=keep)
    published, scores = theirs(
        model,
        num_beams=beams,
        length_penalty=penalty,
        early_stopping=early,
        num_return_sequences=best,
    )
    assert np.array_equal(padded(found), published)
    assert [h.score for row in found for h in row] == pytest.approx(
        scores.tolist(), rel=1e-4, abs=1e-5
    )


@pytest.mark.parametrize(("make", "seed"), SEARCHED)
def test_beam_search_with_several_stop_tokens_and_repetition_penalty(make: Any, seed: int) -> None:
    model = make(seed)
    settings = merge_caller_settings(
        {"stop": [STOP, 7, 12], "pad": PAD},
        max_tokens=LONGEST,
        num_beams=3,
        num_return_sequences=2,
        repetition_penalty=1.2,
    )
    decoder_session, prompt, keep = begin(model)
    found = run_beam_search(decoder_session, prompt, settings, padding_mask=keep)
    published, scores = theirs(
        model,
        stop=[STOP, 7, 12],
        num_beams=3,
        num_return_sequences=2,
        repetition_penalty=1.2,
        early_stopping=False,
    )
    assert np.array_equal(padded(found), published)
    assert [h.score for row in found for h in row] == pytest.approx(
        scores.tolist(), rel=1e-4, abs=1e-5
    )


def test_outputs_vary_and_end() -> None:
    """Otherwise the other tests would prove little."""
    settings = merge_caller_settings({"stop": STOP, "pad": PAD}, max_tokens=LONGEST)
    texts = [tuple(row) for make, seed in SEEDS for row in greedy(make(seed), settings)[0]]
    assert len(set(texts)) >= 20
    assert sum(len(set(t)) >= 4 for t in texts) >= 12
    assert sum(STOP in t for t in texts) >= 4


WARPERS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"temperature": 0.7}, [TemperatureLogitsWarper(0.7)]),
    ({"top_k": 5}, [TopKLogitsWarper(5)]),
    ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
    ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
    ({"typical_p": 0.6}, [TypicalLogitsWarper(0.6)]),
    ({"typical_p": 0.95}, [TypicalLogitsWarper(0.95)]),
    ({"epsilon_cutoff": 0.02}, [EpsilonLogitsWarper(0.02)]),
    ({"eta_cutoff": 0.05}, [EtaLogitsWarper(0.05)]),
    (
        {
            "temperature": 1.3,
            "top_k": 30,
            "top_p": 0.95,
            "typical_p": 0.8,
            "epsilon_cutoff": 0.01,
            "eta_cutoff": 0.03,
        },
        [
            TemperatureLogitsWarper(1.3),
            TopKLogitsWarper(30),
            TopPLogitsWarper(0.95),
            TypicalLogitsWarper(0.8),
            EpsilonLogitsWarper(0.01),
            EtaLogitsWarper(0.03),
        ],
    ),
    (
        {"temperature": 1.7, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
        [
            TemperatureLogitsWarper(1.7),
            TopKLogitsWarper(12),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.05),
        ],
    ),
]


@pytest.mark.parametrize(
    ("options", "warpers"), WARPERS, ids=lambda x: "-".join(x) if isinstance(x, dict) else ""
)
@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_sampling_filters(options: dict[str, Any], warpers: list[Any], penalty: float) -> None:
    rng = np.random.default_rng(7)
    logits = rng.normal(0, 2, (200, 40)).astype(np.float32)
    ids = rng.integers(0, 40, (200, 6))
    chain = LogitsProcessorList(
        [*([RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else []), *warpers]
    )
    published = chain(torch.tensor(ids), torch.tensor(logits)).softmax(-1).numpy()
    among = filter_candidates(
        apply_repetition_penalty(logits, make_prompt_vocab_mask(ids, 40), penalty),
        merge_caller_settings({}, strategy="sample", **options),
    )
    ours = np.zeros(logits.shape)
    np.put_along_axis(
        ours,
        among.tokens,
        among.probabilities / among.probabilities.sum(axis=1, keepdims=True),
        axis=1,
    )
    assert np.array_equal(ours > 0, published > 0)
    assert ours == pytest.approx(published, abs=1e-6)
