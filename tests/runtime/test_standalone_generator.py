"""Standalone generators: prompts, compiled settings, unused inputs, NaN logits."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.api import Model

PROMPTED = """
specc 1
model m
dims batch, src >= 1, seq >= 1
graph lm(memory: float[batch, src, 4], ids: int[batch, seq], seen: keep[batch, seq] = ids != 1)
    -> (logits: float[batch, seq, 7]) {
  x = embedding(ids, size=7, dim=4) @ table
  x = x + (attention(x, heads=1, mask=causal & visible(seen)) @ own)
  x = x + (attention(x, memory, heads=1, mask=all) @ cross) + 3.0 * cumsum(x)
  return 20.0 * linear(x, out=7) @ head
}
generate text of ids from logits { start = 1  stop = 0 }
"""
BESIDE = """
specc 1
model m
dims batch, src, n
graph main(source: int[batch, src], seen: keep[batch, src] = source != 0, kinds: int[batch, src] = 0 * source,
           ids: int[batch, n]) -> (logits: float[batch, n, 9]) {
  m = (embedding(source, size=9, dim=8) @ words) + (embedding(kinds, size=2, dim=8) @ kinds)
  x = cumsum(embedding(ids, size=9, dim=8) @ targets)
  return linear(x * insert(masked_mean_pool(m, seen), axis=1) * 50.0, out=9) @ out
}
generate text of ids from logits { start = 1  max_tokens = 6 }
"""
PLAIN = """
specc 1
model m
dims batch, src, seq
graph lm(ids: int[batch, seq], memory: float[batch, src, 4], mkeep: keep[batch, src])
    -> (logits: float[batch, seq, 9]) {
  x = embedding(ids, size=9, dim=6) @ table
  return 4.0 * linear(x + tanh(cumsum(x)), out=9) @ head
}
generate text of ids from logits { stop = 0 }
"""
WAYS: dict[str, dict[str, Any]] = {
    "package": {"graphs": "score,step"},
    "one.onnx": {"graphs": "generate"},
}


def made(directory: Path, spec: str, way: str, **more: Any) -> Model:
    (directory / "m.specc").write_text(spec, encoding="utf-8")
    specc.compile(directory / "m.specc", directory / way, init=3, **{**WAYS[way], **more})
    return specc.load(directory / way)


@cache
def compile_package(spec: str) -> Model:
    """Return the package of a spec, compiled once."""
    return made(Path(mkdtemp()), spec, "package")


def tokens(model: Model, *given: Any, **settings: Any) -> list[tuple[int, ...]]:
    return [row[0].tokens for row in model.generate(*given, **settings).results()]


def test_a_prompt_replaces_the_start_token(tmp_path: Path) -> None:
    package, one = compile_package(PROMPTED), made(tmp_path, PROMPTED, "one.onnx")
    memory = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = []
    for prompt in ([[2], [3]], [[3, 4, 2], [5, 5, 6]], [[2, 1], [1, 3]]):
        found.append(tokens(package, memory=memory, ids=prompt, max_tokens=6))
        assert tokens(one, memory=memory, ids=prompt, max_tokens=6) == found[-1]
    assert found[0] != found[1]
    begun = tokens(package, memory=memory, max_tokens=6)
    assert tokens(one, memory=memory, max_tokens=6) == begun


def test_other_programs_may_omit_the_prompt(tmp_path: Path) -> None:
    package = compile_package(PROMPTED)
    made(tmp_path, PROMPTED, "one.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "one.onnx"))
    memory = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    given: dict[str, Any] = {"memory": memory, "max_tokens": np.array(4)}
    assert [i.name for i in session.get_inputs()] == ["memory", "max_tokens"]
    begun = session.run(None, given)[0].tolist()
    for empty in (np.zeros((2, 0), np.int64), np.zeros((1, 0), np.int64)):
        assert session.run(None, {**given, "ids": empty})[0].tolist() == begun
    prompt = np.array([[3, 4, 2], [5, 5, 6]])
    wanted = tokens(package, memory=memory, ids=prompt, max_tokens=4)
    longest = max(len(t) for t in wanted)
    made_of = session.run(None, {**given, "ids": prompt})[0].tolist()
    assert made_of == [[*t, *[0] * (longest - len(t))] for t in wanted]


SETTLED: list[dict[str, Any]] = [
    {"repetition_penalty": 5.0},
    {"strategy": "sample", "temperature": 3.0, "seed": 7},
    {"strategy": "sample", "top_k": 2, "temperature": 2.0},
    {"strategy": "sample", "top_p": 0.4, "seed": 1},
    {"strategy": "sample", "min_p": 0.5, "seed": 2, "repetition_penalty": 3.0},
    {"max_tokens": 3},
    {"stop": [5, 6]},
    {
        "strategy": "beam",
        "num_beams": 3,
        "num_return_sequences": 3,
        "length_penalty": -1.0,
        "early_stopping": True,
        "max_tokens": 5,
    },
    {"strategy": "beam", "num_beams": 2, "early_stopping": "never", "repetition_penalty": 2.0},
]


@pytest.mark.parametrize("settings", sample_sweep([*SETTLED]), ids=str)
def test_compiled_settings_are_the_defaults(settings: dict[str, Any], tmp_path: Path) -> None:
    package = compile_package(PLAIN)
    one = made(tmp_path, PLAIN, "one.onnx", generation_config={"max_tokens": 12, **settings})
    prompt = np.array([[3, 4], [5, 6]])
    want = package.generate(prompt, **{"max_tokens": 12, **settings}).results()
    got = one.generate(prompt).results()
    assert [[r.tokens for r in row] for row in got] == [[r.tokens for r in row] for row in want]
    assert want != package.generate(prompt, max_tokens=12).results(), (
        "the setting changes something"
    )


def test_later_settings_override_earlier_ones(tmp_path: Path) -> None:
    package, one = (
        made(tmp_path, PLAIN, "package"),
        made(tmp_path, PLAIN, "one.onnx", generation_config=SETTLED[0]),
    )
    assert tokens(one, [[3, 4]], max_tokens=9, repetition_penalty=1) == tokens(
        package, [[3, 4]], max_tokens=9
    )


@pytest.mark.parametrize("way", WAYS)
def test_unused_inputs_are_optional(way: str, tmp_path: Path) -> None:
    model = made(tmp_path, PLAIN, way)
    memory, exist = np.zeros((1, 3, 4), np.float32), np.ones((1, 3), bool)
    ways = ({}, {"memory": memory}, {"mkeep": exist}, {"memory": memory, "mkeep": exist})
    assert len({tuple(tokens(model, ids=[[3, 4]], max_tokens=5, **more)) for more in ways}) == 1
    with pytest.raises(specc.SpeccError, match="E0912"):
        tokens(model, ids=[[3, 4]], memory=memory, mkeep=exist[:, :2])


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"kinds": [[1, 1, 1]]}, "the model computes `kinds`"),
        ({"seen": [[True, False, False]]}, "the model computes the padding mask"),
    ],
)
def test_computed_inputs_cannot_be_overridden(
    more: dict[str, Any], what: str, tmp_path: Path
) -> None:
    """The model computes its start and its padding mask; equal values may be given."""
    model = made(tmp_path, BESIDE, "one.onnx")
    agrees = {"kinds": [[0, 0, 0]], "seen": [[True, True, False]]}
    given = {"source": [[3, 4, 0]]}
    assert tokens(model, **given, **agrees) == tokens(model, **given)
    with pytest.raises(specc.SpeccError, match=what):
        tokens(model, **given, **more)


LONGER = """
specc 1
model m
dims batch, seq
graph lm(ids: int[batch, seq], more: float[batch, seq + 1]) -> (logits: float[batch, seq, 7]) {
  x = embedding(ids, size=7, dim=4) @ table
  return linear(x + insert(insert(sum(more, axis=1), axis=1), axis=2), out=7) @ head
}
generate text of ids from logits { stop = 0 }
"""


@pytest.mark.parametrize("parts", ["step", "generate", "all"])
def test_an_input_with_the_time_axis_is_refused(parts: str, tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(LONGER, encoding="utf-8")
    with pytest.raises(specc.SpeccError, match="E0716"):
        specc.compile(tmp_path / "m.specc", tmp_path / "m", init=0, graphs=parts)
    assert not (tmp_path / "m").exists()
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0)
    assert "logits" in specc.load(tmp_path / "m.onnx").run(ids=[[1, 2]], more=[[0.0, 1.0, 2.0]])


BROKEN = """
specc 1
model m
dims batch, seq
graph lm(ids: int[batch, seq], late: float[batch]) -> (logits: float[batch, seq, 5]) {
  x = linear(embedding(ids, size=5, dim=6) @ table, out=4) @ head
  count = insert(float(cumsum(ids * 0 + 1)), axis=2)
  over = relu(count - 4.0 - insert(insert(late, axis=1), axis=2))
  return concat([x WRONG, x[:, :, 0:1] MORE], axis=2)
}
generate text of ids from logits { stop = [] }
"""
EVERY = {
    "nan": "+ sqrt(0.0 - over)",
    "infinite": "+ exp(1000.0 * over)",
    "nothing left": "- 1e30 * exp(1000.0 * over)",
}
ILL = {name: BROKEN.replace("WRONG", how).replace("MORE", how) for name, how in EVERY.items()}
ILL["one of them"] = BROKEN.replace("WRONG", "").replace("MORE", EVERY["nan"])
LATE = np.array([100.0, 0.0, 100.0], np.float32)
PROMPT = np.array([[1, 2, 3], [2, 3, 1], [3, 3, 3]])


@pytest.mark.parametrize("strategy", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("ill", sample_sweep([*ILL]))
def test_nan_logits_end_generation(ill: str, strategy: str, tmp_path: Path) -> None:
    package = compile_package(ILL[ill])
    one = made(tmp_path, ILL[ill], "one.onnx", generation_config={"strategy": strategy})
    for model in (package, one):
        fine = model.generate(
            PROMPT[::2], late=LATE[::2], strategy=strategy, max_tokens=8
        ).results()
        assert [len(row[0].tokens) for row in fine] == [8, 8]
        with pytest.raises(specc.SpeccError, match=r"E0961.*sequence 2"):
            model.generate(PROMPT, late=LATE, strategy=strategy, max_tokens=8).results()
    names = {i.name for i in one.selected_model.session.session.get_inputs()}
    scalars = {"seed": 0, "top_k": 0, "temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    types = {n: np.int64 if isinstance(v, int) else np.float32 for n, v in scalars.items()}
    given = {n: np.array(v, types[n]) for n, v in scalars.items() if n in names}
    raw = one.selected_model.session.run(
        {"ids": PROMPT, "late": LATE, "max_tokens": np.array(8), **given}
    )
    tokens, scores = raw.values()
    assert (tokens[1] == -1).any()
    assert np.isnan(scores[1]).any()
    assert (tokens[::2] >= 0).all()
    assert not np.isnan(scores[::2]).any()
    assert tokens.shape[-1] == 3, "the loop ends there: two tokens, then none"
