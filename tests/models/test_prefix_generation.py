"""Generation after prefix positions, by a package and a standalone generator: greedy, sampling and
beam search, with prompts of different lengths and without prompt, compared with full passes of the
reference.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.elaborated_specs import (
    Arrays,
    ElaboratedSpec,
    elaborate_with_config,
    sample_spec_weights,
)
from support.generation_models import FullForwardDecoder
from support.small_configs import SMALL_CONFIGS

import specc
from specc.api import Model
from specc.decode.beam_search import run_beam_search
from specc.decode.decode_loop import iterate_decode_steps
from specc.decode.generation_settings import GenerationSettings
from specc.weights.formats.safetensors import write_safetensors

SHIPPED = Path(__file__).parents[2] / "specs/models/prefix_lm.specc"
PICTURE = """specc 1
model pictured "As LLaVA (arXiv:2304.08485, sec. 4.1): rows of a picture before words, turned by their places over the whole"
dims batch, seq
graph g(pixels: float[batch, 3, 4, 4], ids: int[batch, seq], keep: keep[batch, seq] left)
    -> (logits: float[batch, seq + 1, 17]) {
  seen = gelu(linear(patches(pixels, size=2, out=6) @ vision, out=8) @ projector.0)
  seen = linear(seen, out=8) @ projector.2
  m = length(seen, axis=1)
  x = concat([seen, embedding(ids, size=17, dim=8) @ words], axis=1)
  there = pad(keep, before=m, value=true)
  repeat i in 1 under "layers.{i}" {
    x = llama_layer(x, heads=2, kv_heads=1, hidden=12, act=silu, eps=1e-6, mask=causal & visible(there),
                    rope=rope(theta=10000.0), position_ids=positions(there))
  }
  return linear(rms_norm(x[:, m - 1:], eps=1e-6) @ norm, out=17, bias=false) @ head
}
generate text of ids from logits { stop = 0 }
"""
TOLD = """specc 1
model told "As the captioners that show a picture to a recurrent decoder once (arXiv:1411.4555, eq. 10): what is newest is the result"
dims batch, seq
graph g(picture: float[batch, 5], ids: int[batch, seq], keep: keep[batch, seq] left) -> (logits: float[batch, 17]) {
  first = insert(linear(picture, out=8) @ image, axis=1)
  x = concat([first, embedding(ids, size=17, dim=8) @ words], axis=1)
  h = gru(x, hidden=8, reset=after, update=new, keep=pad(keep, before=1, value=true)) @ gru
  return linear(last(h), out=17) @ head
}
generate text of ids from logits { stop = 0 }
"""
FIRST = """specc 1
model first "The first row of a text, mixed into all: added, taken into a loop, attended to beside a window"
dims batch, seq >= 1
graph g(ids: int[batch, seq], keep: keep[batch, seq] right) -> (logits: float[batch, seq, 17]) {
  x = embedding(ids, size=17, dim=8) @ words
  h = gru(x, hidden=8, reset=after, update=new, keep=keep) @ gru
  x = x + tanh(linear(h[:, 0:1], out=8) @ first)
  s = zeros(shape=[batch, 8])
  alone = x[:, 0]
  scan row in x along seq carry s collect t { s = tanh(row + s * alone)  t = s }
  x = x + (attention(t, x[:, 0:1], heads=2, mask=all) @ sink)
  x = x + (attention(x, heads=2, mask=causal & window(3)) @ near)
  return linear(x, out=17) @ head
}
generate text of ids from logits { stop = 0 }
"""
GIVEN: dict[str, Arrays] = {
    "prefix": {
        "prompt": np.array([[3, 5, 7, 2], [0, 0, 4, 6], [0, 9, 8, 8]]),
        "prompt_keep": np.array([[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]], bool),
    },
    "pictured": {"pixels": np.random.default_rng(1).normal(size=(3, 3, 4, 4))},
    "told": {"picture": np.random.default_rng(2).normal(size=(3, 5))},
    "first": {},
}
TOKENS = 4
PROMPTS: dict[str, Sequence[Sequence[int]]] = {
    "none": [[], [], []],
    "some": [[3, 4], [], [5]],
    "all": [[6], [1, 2, 7], [8, 8]],
}
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"seed": 4},
    "beam": {"num_beams": 3, "num_return_sequences": 2},
}


def write_text(name: str) -> str:
    """Return the text of a spec; of the built-in one without defaults, which cannot distinguish
    padding from tokens.
    """
    if name == "prefix":
        plain = SHIPPED.read_text()
        return plain.replace(" = prompt >= 0", "").replace(" = ids >= 0", " left")
    return {"pictured": PICTURE, "told": TOLD, "first": FIRST}[name]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("headed")


@cache
def made(name: str, directory: Path) -> tuple[ElaboratedSpec, Arrays, Path]:
    """Return a spec, its weights, and their file."""
    path = directory / f"{name}.specc"
    path.write_text(write_text(name))
    spec = elaborate_with_config(str(path), **SMALL_CONFIGS.get(f"{name}_lm", {}))
    weights = sample_spec_weights(spec)
    write_safetensors(directory / f"{name}.safetensors", weights)
    return spec, weights, path


@cache
def compiled(name: str, form: str, directory: Path) -> Model:
    """Return a package, or a standalone generator with the strategy `form`."""
    _, _, path = made(name, directory)
    output = directory / f"{name}-{form}{'' if form == 'package' else '.onnx'}"
    specc.compile(
        path,
        output,
        weights=path.with_suffix(".safetensors"),
        set=SMALL_CONFIGS.get(f"{name}_lm", {}),
        graphs=["encode", "step"] if form == "package" else ["generate"],
        generation_config={}
        if form == "package"
        else {"strategy": form, **STRATEGIES[form], "max_tokens": TOKENS},
    )
    return specc.load(output)


def generate_by_full_passes(
    name: str, directory: Path, prompts: Sequence[Sequence[int]], settings: GenerationSettings
) -> list[list[tuple[int, ...]]]:
    """Return the tokens of the reference, padded on the left."""
    spec, weights, _ = made(name, directory)
    longest = max(map(len, prompts))
    ids = np.array([[0] * (longest - len(p)) + [*p] for p in prompts], np.int64)
    there = [[False] * (longest - len(p)) + [True] * len(p) for p in prompts]
    keep = np.array(there, bool)
    full = FullForwardDecoder(spec, weights, GIVEN[name], {"keep": keep})
    if settings.strategy == "beam":
        found = run_beam_search(full, ids, settings, padding_mask=keep)
        return [[h.tokens for h in row] for row in found]
    steps = [s.tokens for s in iterate_decode_steps(full, ids, settings, padding_mask=keep)]
    rows = np.stack(steps, axis=1).tolist()
    return [[_cut_at_stop(row)] for row in rows]


def _cut_at_stop(row: Sequence[int]) -> tuple[int, ...]:
    """Cut at the stop token, which is 0."""
    return tuple(row[: row.index(0) + 1] if 0 in row else row)


QUICK = {("pictured", "greedy"), ("prefix", "beam")}
CASES = [
    pytest.param(name, strategy, marks=[] if (name, strategy) in QUICK else pytest.mark.slow)
    for name in GIVEN
    for strategy in STRATEGIES
]


@pytest.mark.parametrize(("name", "strategy"), CASES)
def test_generated_tokens_equal_those_of_full_passes(
    name: str, strategy: str, directory: Path
) -> None:
    settings = GenerationSettings(
        strategy=strategy,  # type: ignore[arg-type]
        max_tokens=TOKENS,
        stop=(0,),
        **STRATEGIES[strategy],
    )
    for prompts in PROMPTS.values():
        if name == "told" and prompts == PROMPTS["some"]:
            continue  # from one row of logits a full pass cannot determine its position
        if name == "first":
            if not all(prompts):
                continue
            prompts = [[*p, 3, 4][:2] for p in prompts]
        want = generate_by_full_passes(name, directory, prompts, settings)
        for form in ("package", strategy):
            model = compiled(name, form, directory)
            chosen = {"strategy": strategy, "max_tokens": TOKENS, **STRATEGIES[strategy]}
            results = model.generate(**GIVEN[name], ids=[*prompts], **chosen).results()
            assert [[r.tokens for r in row] for row in results] == want, (form, prompts)
    if strategy != "beam" and name != "first":
        begun = compiled(name, strategy, directory)
        chosen = {"max_tokens": TOKENS, **STRATEGIES[strategy]}
        results = begun.generate(**GIVEN[name], **chosen).results()
        want = generate_by_full_passes(name, directory, PROMPTS["none"], settings)
        assert [[r.tokens for r in row] for row in results] == want, "left out"


@pytest.mark.parametrize("tokens", [3])
def test_prefix_positions_use_the_position_table(tokens: int, tmp_path: Path) -> None:
    sets = {**SMALL_CONFIGS["soft_prompt_lm"], "context": 8, "prompt_tokens": tokens, "layers": 1}
    output = tmp_path / "soft"
    specc.compile("soft_prompt_lm", output, init=1, set=sets, graphs=["encode", "step"])
    model = specc.load(output)
    made = model.generate(ids=[[1, 2]], max_tokens=20, stop=[]).results()
    # the last generated token is not an input and needs no position
    assert len(made[0][0].tokens) == 8 - tokens - 2 + 1
    with pytest.raises(specc.SpeccError, match="E0943"):
        model.generate(ids=[[1] * (9 - tokens)])
