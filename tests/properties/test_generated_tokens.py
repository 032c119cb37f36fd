"""Packages, standalone generators and full forward passes generate the tokens of plain Python over
the float64 reference, for any settings.

Random specs: heads, widths, loops, windows, sources, and defaults of `keep` that mask out generated
tokens. Random settings: repetition penalty, temperature, top-k, top-p, min-p, beams, stop tokens,
stop strings, maximum length. Sequences are padded batches; the oracle generates each sequence
alone.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep
from support.random_generative_specs import ALPHABET, GenerativeSpec, make_generative_spec
from support.reference_generation import GeneratedText, ReferenceGenerator

import specc
import specc_numpy
from specc.diagnostics.diagnostic import SpeccError

ROWS = 2


def sample_settings(rng: random.Random, spec: GenerativeSpec) -> dict[str, Any]:
    """Return random generation settings."""
    made: dict[str, Any] = {"max_tokens": rng.randint(1, 6)}
    if rng.random() < 0.5:
        made["repetition_penalty"] = rng.choice([1.7, 0.6, 3.0])
    kind = rng.choice(["greedy", "sample", "sample", "beam", "beam"])
    if kind == "sample":
        made |= {"strategy": "sample", "seed": rng.randrange(1000)}
        options = {
            "temperature": [0.3, 0.8, 2.5],
            "top_k": [1, 2, 3],
            "top_p": [0.2, 0.6, 0.95],
            "min_p": [0.05, 0.5],
        }
        made |= {n: rng.choice(v) for n, v in options.items() if rng.random() < 0.5}
    if kind == "beam":
        beams = rng.choice([1, 2, 3, 5])
        made |= {
            "strategy": "beam",
            "num_beams": beams,
            "num_return_sequences": rng.randint(1, beams),
        }
        made["length_penalty"] = rng.choice([0.0, 1.0, 2.0, -1.0])
        made["early_stopping"] = rng.choice([True, False, "never"])
    if rng.random() < 0.3:
        made["stop"] = sorted(rng.sample(range(spec.vocab), rng.randint(1, 3)))
    if kind != "beam" and rng.random() < 0.4:
        letters = ALPHABET[: spec.vocab]
        made["stop_strings"] = [
            "".join(rng.choices(letters, k=rng.randint(1, 2))) for _ in range(2)
        ]
    return made


def decode_tokens(tokens: Any) -> str:
    return "".join(ALPHABET[t] for t in tokens)


def generate_expected(
    spec: GenerativeSpec,
    model: Any,
    prompt: list[int],
    begun: bool,
    memory: Any,
    asked: dict[str, Any],
    row: int,
) -> tuple[list[GeneratedText], bool]:
    """Return one sequence alone, and whether beam search depended on a small gap."""
    graph, weights = model.manifest.graph, model.weights()

    def logits(tokens: Any) -> list[float]:
        given: dict[str, Any] = {"ids": np.array([tokens])}
        if "keep" in graph.inputs:
            given["keep"] = np.array([spec.get_valid_positions(tokens, begun)])
        if memory is not None:
            given["memory"] = memory[row : row + 1]
        made: list[float] = specc_numpy.evaluate_graph(graph, given, weights)["logits"][
            0, -1
        ].tolist()
        return made

    kept = frozenset(
        t for t, k in zip(prompt, spec.get_valid_positions(prompt, begun), strict=True) if k
    )
    stop = frozenset(asked.get("stop", spec.stop))
    plain = ReferenceGenerator(
        logits,
        prompt,
        kept,
        stop,
        asked["max_tokens"],
        asked.get("repetition_penalty", 1.0),
        decode_tokens,
        tuple(asked.get("stop_strings", ())),
    )
    if asked.get("strategy") == "beam":
        return plain.run_beam_search(
            asked["num_beams"],
            asked["num_return_sequences"],
            asked["length_penalty"],
            asked["early_stopping"],
        )
    if asked.get("strategy") == "sample":
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return [
            plain.generate_sampled(
                row, asked["seed"], **{n: asked.get(n, v) for n, v in options.items()}
            )
        ], False
    return [plain.generate_greedy()], False


def find_text_difference(
    name: str, got: list[Any], want: list[GeneratedText], near: bool, beam: bool
) -> str:
    """Return how the sequences of one batch element differ; "" if they do not."""
    if beam:
        if near:
            return ""
        if [list(r.tokens) for r in got] != [t.tokens for t in want]:
            return f"{name} finds {[r.tokens for r in got]}, not {[t.tokens for t in want]}"
        close = np.allclose([r.score for r in got], [t.score for t in want], atol=1e-3, rtol=1e-4)
        return (
            ""
            if close
            else f"{name} scores {[r.score for r in got]}, not {[t.score for t in want]}"
        )
    (text,), (result,) = want, got
    certain = len(text.tokens) if text.uncertain_from is None else text.uncertain_from
    if list(result.tokens[:certain]) != text.tokens[:certain]:
        return f"{name} writes {result.tokens}, not {text.tokens}, certain to {certain}"
    if text.uncertain_from is None and (
        len(result.tokens) != len(text.tokens) or result.complete != text.ended
    ):
        return f"{name} ends with {result.tokens}, {result.complete}"
    if result.log_probs and not np.allclose(
        result.log_probs[:certain], text.log_probabilities[:certain], atol=2e-4, rtol=1e-4
    ):
        return f"{name} has other log-probabilities"
    return ""


def sample_prompts(rng: random.Random, spec: GenerativeSpec) -> tuple[list[list[int]], Any]:
    """Return prompts alone and as given: as an array, in which the first may have left padding, or
    as lists, which the program pads.
    """
    longest = rng.randint(2, 4)
    prompts = [[rng.randrange(spec.vocab) for _ in range(longest)] for _ in range(ROWS)]
    ids = np.array(prompts)
    if spec.is_valid_token is None or rng.random() < 0.3:
        return prompts, ids
    cut = rng.randint(0, longest - 1)
    prompts[0] = prompts[0][cut:]
    if spec.is_valid_token(-1) or rng.random() < 0.5:
        return prompts, prompts
    ids[0, :cut] = -1
    return prompts, ids


def find_difference(seed: int, directory: Path) -> str:
    """Return how generated sequences differ; "" if they do not."""
    rng, made = random.Random(seed), np.random.default_rng(seed)
    spec = make_generative_spec(seed)
    (directory / "m.specc").write_text(spec.text, encoding="utf-8")
    (directory / "letters.vocab").write_text(
        "\n".join(ALPHABET[: spec.vocab]) + "\n", encoding="utf-8"
    )
    asked = sample_settings(rng, spec)
    target = rng.choice(["ort-cpu", "ort-cpu", "onnx"])
    parts = rng.choice(["score,step", "score,step", "score"])
    where = directory / ("p" if "step" in parts else "p.onnx")
    specc.compile(directory / "m.specc", where, init=seed, graphs=parts, target=target)
    fixed = {n: v for n, v in asked.items() if n not in ("max_tokens", "stop_strings", "seed")}
    specc.compile(
        directory / "m.specc",
        directory / "one.onnx",
        init=seed,
        graphs="generate",
        generation_config=fixed,
    )
    package, one = specc.load(where), specc.load(directory / "one.onnx")
    begun = spec.start is not None and rng.random() < 0.6
    prompts, ids = sample_prompts(rng, spec)
    given: dict[str, Any] = {} if begun else {"ids": ids}
    memory = made.normal(size=(ROWS, 3, spec.memory)).astype(np.float32) if spec.memory else None
    if memory is not None:
        given["memory"] = memory
    beam = asked.get("strategy") == "beam"
    more = {} if beam else {"log_probs": True}
    whole = "the package" if "step" in parts else "the whole graph"
    written = {whole: package.generate(**given, **asked, **more).results()}
    said = {n: v for n, v in asked.items() if n not in fixed}
    try:
        written["one file"] = one.generate(**given, **said, **more).results()
    except SpeccError as failed:  # alone it knows neither start token nor padding
        hidden = (
            begun and spec.is_valid_token is not None and not spec.is_valid_token(spec.start or 0)
        )
        padded = isinstance(given.get("ids"), list)
        if not (hidden or padded) or [d.code for d in failed.diagnostics] != ["E0912"]:
            raise
    for row in range(ROWS):
        prompt = [spec.start] if begun else prompts[row]
        want, near = generate_expected(spec, package, prompt, begun, memory, asked, row)
        for name, results in written.items():
            if said := find_text_difference(name, results[row], want, near, beam):
                return f"{seed}, row {row}, {asked}, {parts}: {said}"
    return ""


@pytest.mark.parametrize("seed", sample_sweep(range(8)))
def test_all_generators_return_the_oracle_tokens(seed: int, tmp_path: Path) -> None:
    assert not find_difference(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(8, 408, 20))
def test_all_generators_return_the_oracle_tokens_for_hundreds_of_specs(
    start: int, tmp_path: Path
) -> None:
    found = []
    for seed in range(start, start + 20):
        directory = tmp_path / str(seed)
        directory.mkdir()
        found.append(find_difference(seed, directory))
    assert not [f for f in found if f]


def test_a_standalone_generator_refuses_a_default_over_all_tokens(tmp_path: Path) -> None:
    """A standalone generator gets the latest token only; a package knows all tokens."""
    text = make_generative_spec(9).text
    assert "= ids != 3 &" in text
    spec = tmp_path / "m.specc"
    (tmp_path / "letters.vocab").write_text("\n".join(ALPHABET) + "\n")
    default = "= cumsum(ids == 2, axis=1) <= 1 & ids != 3 &"
    spec.write_text(text.replace("= ids != 3 &", default))
    specc.compile(spec, tmp_path / "p", init=0, graphs="score,step")
    with pytest.raises(SpeccError) as failed:
        specc.compile(spec, tmp_path / "one.onnx", init=0, graphs="generate")
    assert [d.code for d in failed.value.diagnostics] == ["E0944"]


PADDED = """
specc 1
model m
dims batch, seq
graph g(ids: int[batch, seq], keep: keep[batch, seq] {declared}) -> (logits: float[batch, seq, 7]) {{
  x = embedding(max(ids, 0), size=7, dim=8) @ table
  x = x + sinusoid(positions(keep), dim=8, layout=interleaved)
  x = x + (attention(x, heads=2, mask=causal & visible(keep)) @ own)
  x = x + (gru(x, hidden=8, reset=after, keep=keep) @ gru)
  x = x + delay(x * insert(cast(keep, to=float), axis=2))
  return 4.0 * linear(x, out=7) @ head
}}
generate text of ids from logits {{ stop = 6 }}
"""


@pytest.mark.parametrize("declared", sample_sweep(["", "left", "left = ids != 3", "= ids >= 0"]))
@pytest.mark.parametrize("parts", ["score,step", "generate"])
def test_explicit_and_added_padding_change_no_token(
    declared: str, parts: str, tmp_path: Path
) -> None:
    """For any default of `keep`, each prompt is continued as it is alone."""
    (tmp_path / "m.specc").write_text(PADDED.format(declared=declared))
    where = tmp_path / ("m.onnx" if parts == "generate" else "m")
    specc.compile(tmp_path / "m.specc", where, init=2, graphs=parts)
    model = specc.load(where)
    prompts = [[1], [4, 2, 5, 5], [5, 1, 2]]
    keep = np.array([[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1]]) > 0
    hidden = -1 if ">=" in declared else 3
    padded = np.full(keep.shape, hidden)
    padded[keep] = [t for p in prompts for t in p]
    asked: dict[str, Any] = {"max_tokens": 5, "log_probs": True}
    alone = [model.generate([p], **asked).results()[0][0] for p in prompts]
    ways = [model.generate(padded, keep=keep, **asked).results()]
    if parts != "generate" or "=" not in declared:  # it finds padding itself
        ways.append(model.generate(prompts, **asked).results())
    for results in ways:
        for one, (result,) in zip(alone, results, strict=True):
            assert result.tokens == one.tokens
            assert np.allclose(result.log_probs, one.log_probs, atol=1e-4)
