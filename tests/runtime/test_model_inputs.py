"""Per-token inputs other than the token ids: their defaults are computed from the whole sequence at
every step.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specc
from specc.api import Model
from specc.runtime.generator import make_generator

HEAD = """specc 1
model m
config { vocab: int = 11  d: int = 16 }
require d % 2 == 0
dims batch, n

graph g(ids: int[batch, n], INPUTS) -> (logits: float[batch, n, vocab]) {
  x = (embedding(ids, size=vocab, dim=d) @ words) * 30.0
"""
TAIL = """  return linear(x, out=vocab) @ out
}

generate text of ids from logits { max_tokens = 7 }
"""
PLACED = "  x = x + 30.0 * (embedding(at, size=50, dim=d) @ places)\n"
SPECS = {
    "documents in one text": (
        "doc: int[batch, n] = cumsum(cast(ids > 4, to=int))",
        "  x = x + (attention(x, x, heads=2, mask=causal & same(doc, doc)) @ attn)\n",
    ),
    "positions of what is kept": (
        "keep: keep[batch, n] = ids >= 0, at: int[batch, n] = positions(keep)",
        PLACED + "  x = x + (attention(x, x, heads=2, mask=causal & visible(keep)) @ attn)\n",
    ),
    "positions without a batch": ("at: int[n] = cumsum(ids[0] * 0 + 1, axis=0) - 1", PLACED),
    "positions by length alone": ("at: int[n] = range(n)", PLACED),
    "one by way of another": (
        "at: int[batch, n] = sum_of + 1, sum_of: int[batch, n] = cumsum(cast(ids > 4, to=int))",
        PLACED,
    ),
    "one by way of another, the other way around": (
        "sum_of: int[batch, n] = cumsum(cast(ids > 4, to=int)), at: int[batch, n] = sum_of + 1",
        PLACED + "  x = x + insert(sin(float(sum_of)), axis=2)\n",
    ),
    "kinds row by row": (
        "kind: int[batch, n] = cast(ids > 5, to=int)",
        "  x = x + cumsum(30.0 * (embedding(kind, size=2, dim=d) @ kinds), axis=1)\n",
    ),
}
IDS = np.array([[3, 5, 7], [1, 2, 8]])


def compiled(tmp_path: Path, inputs: str, body: str, **options: Any) -> Model:
    (tmp_path / "m.specc").write_text(
        HEAD.replace("INPUTS", inputs) + body + TAIL, encoding="utf-8"
    )
    options = {"graphs": ["score", "step"], **options}
    specc.compile(tmp_path / "m.specc", tmp_path / "m", init=3, **options)
    return specc.load(tmp_path / "m")


@pytest.mark.parametrize("name", SPECS)
def test_generation_uses_defaults_of_the_whole_sequence(tmp_path: Path, name: str) -> None:
    model = compiled(tmp_path, *SPECS[name])
    text = IDS
    for _ in range(7):
        best = model.run(ids=text)["logits"][:, -1].argmax(axis=1)
        text = np.concatenate([text, best[:, None]], axis=1)
    assert model.scoring_model
    found = []
    for writer in (model.generator, make_generator(model.scoring_model)):
        assert writer
        assert [list(row[0].tokens) for row in writer.generate(ids=IDS).results()] == text[
            :, 3:
        ].tolist()
        found.append(
            [
                [h.tokens for h in row]
                for row in writer.generate(ids=IDS, num_beams=3, num_return_sequences=3).results()
            ]
        )
    assert found[0] == found[1]


def test_a_standalone_generator_refuses_defaults_of_uncached_values(tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError) as raised:
        compiled(
            tmp_path,
            "extra: float[batch, n, 3]",
            "  x = x + (linear(extra, out=d) @ e)\n",
            graphs=["generate"],
        )
    assert raised.value.diagnostics[0].code == "E0944"


def test_right_padded_prompts_are_refused(tmp_path: Path) -> None:
    body = "  x, rest = gru(x, hidden=d, reset=after, keep=keep) @ rnn\n"
    model = compiled(tmp_path, "keep: keep[batch, n] right", body)
    with pytest.raises(specc.SpeccError, match="padded on the right"):
        model.generate(ids=[[3, 5, 7], [1, 2]]).results()


def test_attention_with_used_weights_has_no_kv_buffers(tmp_path: Path) -> None:
    split = "transpose(split(linear(x, out=d) @ {}, into=[2, d / 2]), order=[0, 2, 1, 3])"
    body = "".join(f"  {n} = {split.format(n)}\n" for n in "qkvu")
    body += "  mixed, w = attend(q, k, v, mask=causal)\n"
    body += "  x = x + merge(transpose(mixed + matmul(w, u), order=[0, 2, 1, 3]))\n"
    model = compiled(tmp_path, "keep: keep[batch, n] = ids >= 0", body)
    assert model.scoring_model
    one, other = (
        w.generate(ids=IDS).results()
        for w in (model.generator, make_generator(model.scoring_model))
        if w
    )
    assert [r[0].tokens for r in one] == [r[0].tokens for r in other]


@pytest.mark.parametrize("given", [(), ("keep",), ("at",), ("keep", "at")])
def test_a_default_reads_inputs_and_other_defaults(tmp_path: Path, given: tuple[str, ...]) -> None:
    model = compiled(tmp_path, *SPECS["positions of what is kept"], graphs=["score"])
    values = {"keep": np.ones((2, 3), bool), "at": np.array([[0, 1, 2]] * 2)}
    got = model.run(ids=IDS, **{n: values[n] for n in given})["logits"]
    np.testing.assert_allclose(got, model.run(ids=IDS, **values)["logits"], atol=1e-6)


def test_defaults_in_the_graph_read_each_other(tmp_path: Path) -> None:
    inputs, body = SPECS["positions of what is kept"]
    want = compiled(tmp_path, inputs, body, graphs=["score"]).run(ids=IDS)["logits"]
    inside = compiled(tmp_path, inputs, body, graphs=["score"], inline_defaults=True)
    assert [s.name for s in inside.selected_model.inputs] == ["ids"]
    np.testing.assert_allclose(inside.run(ids=IDS)["logits"], want, atol=1e-6)


def test_circular_defaults_are_refused(tmp_path: Path) -> None:
    with pytest.raises(specc.SpeccError) as raised:
        compiled(
            tmp_path,
            "a: int[batch, n] = b + 1, b: int[batch, n] = a - 1",
            PLACED.replace("at", "a"),
        )
    assert raised.value.diagnostics[0].code == "E0210"
    assert raised.value.diagnostics[0].primary


@pytest.mark.parametrize("graphs", ["score", "score,step", "generate"])
def test_recurrent_layers_reject_padding_before_a_token(graphs: str, tmp_path: Path) -> None:
    path = tmp_path / ("p" if "," in graphs else "m.onnx")
    specc.compile("luong", path, init=0, set={"source_vocab": 13, "hidden": 6}, graphs=graphs)
    model = specc.load(path)

    def run(source: list[list[int]]) -> Any:
        if graphs == "score":
            return model.run(source=source, target=[[1]] * len(source))
        return model.generate(source=source, max_tokens=2).results()

    for padded in ([[5, 6, 7], [5, 0, 0]], [[0, 0, 0]], [[5, 6, 7]]):
        assert len(run(padded)) == (2 if graphs == "score" else len(padded))
    for row in ([0, 5, 6], [5, 0, 6]):
        with pytest.raises(specc.SpeccError, match=r"E0912.*`source_keep`.*precedes a token"):
            run([[5, 6, 7], row])


def test_a_model_without_generation_rejects_padding_before_a_token(tmp_path: Path) -> None:
    text = """specc 1
model tagger
dims batch, n
graph tag(x: float[batch, n, 4], keep: keep[batch, n] right) -> (y: float[batch, n, 6]) {
  y, _ = gru(x, hidden=3, direction=both, reset=after, keep=keep) @ layer
  return y
}
"""
    (tmp_path / "tagger.specc").write_text(text)
    specc.compile(tmp_path / "tagger.specc", tmp_path / "m.onnx", init=0)
    model, x = specc.load(tmp_path / "m.onnx"), np.ones((2, 3, 4), np.float32)
    assert model.run(x=x, keep=[[True, True, False], [False] * 3])["y"].shape == (2, 3, 6)
    with pytest.raises(
        specc.SpeccError, match=r"`keep\[1, 0\]` is false, and the next position is true"
    ):
        model.run(x=x, keep=[[True] * 3, [False, True, True]])


TEXT_HELPS = {
    "graph g(x: float[batch, n])": "",
    "graph g(x: int[batch, n])": "`reading { x = text(bytes()) }`",
    "graph g(x: int[batch, n, 2])": "",
    "# reading { x = text(tokenizer()) }\ngraph g(x: int[batch, n])": "text(bytes())",
    "reading { x = text(tokenizer()) }\ngraph g(x: int[batch, n])": "tokenizer.json",
    "reading { x=text( tokenizer( special=false )) }\ngraph g(x: int[batch, n])": "tokenizer.json",
}
"""What the help for a text says besides passing numbers, by the start of the graph."""


@pytest.mark.parametrize("graphs", [None, ["score"]])
@pytest.mark.parametrize("head", TEXT_HELPS)
def test_help_for_text_as_numbers(head: str, graphs: list[str] | None, tmp_path: Path) -> None:
    spec = f"specc 1\nmodel m\ndims batch, n\n{head} -> (y: int[batch]) {{\n  return x[:, 0]\n}}\n"
    if "n, 2" in head:
        spec = spec.replace("int[batch])", "int[batch, 2])")
    spec = spec.replace("y: int", "y: float") if "float" in head else spec
    (tmp_path / "m.specc").write_text(spec)
    output = tmp_path / ("m" if graphs else "m.onnx")
    specc.compile(tmp_path / "m.specc", output, init=0, **({"graphs": graphs} if graphs else {}))
    with pytest.raises(specc.SpeccError, match="expects numbers, not text") as raised:
        specc.load(output).run(x="hello")
    (diagnostic,) = raised.value.diagnostics
    assert diagnostic.helps[0] == "pass an array or a list of numbers"
    assert len(diagnostic.helps) == 1 + bool(TEXT_HELPS[head])
    assert TEXT_HELPS[head] in diagnostic.helps[-1]


def test_help_for_text_as_token_ids_of_a_generator(tmp_path: Path) -> None:
    model = compiled(tmp_path, "at: int[n] = range(n)", PLACED)
    with pytest.raises(specc.SpeccError, match="expects numbers, not text") as raised:
        model.generate(ids="hello")
    assert "reading { ids = text(bytes()) }" in raised.value.diagnostics[0].helps[-1]
