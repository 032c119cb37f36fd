"""Small specs as users write them: valid specs pass the check, invalid specs get advice in the
syntax of the file."""

from pathlib import Path

import pytest

from specc.cli import main as cli

HEAD = "specc 1\nmodel m\ndims batch, n\n"
GROWS = "generate text of ids from y { stop = 2 }\n"
WORDS = "  x = embedding(ids, size=9, dim=4) @ words\n"
IDS = "graph g(ids: int[batch, n]) -> (y: float[batch, n, 9]) {\n" + WORDS
OUT = "  return linear(x, out=9) @ out\n}\n"

RIGHT = {
    "a soft prompt": IDS
    + "  x = prepend(x, parameter(shape=[1, 3, 4]) @ prompt)\n"
    + "  x = x + (attention(x, heads=1, mask=causal) @ a)\n"
    + "  x = x[:, 3:]\n"
    + OUT
    + GROWS,
    "a source before its continuation": "dims src\nmask beyond(p, m: int) = p[j] & (j < m | j - m <= i)\n"
    + IDS.replace("ids:", "source: int[batch, src], ids:")
    + "  s = embedding(source, size=9, dim=4) @ sources\n"
    + "  whole = concat([source != 0, expand(insert(positions(x) >= 0, axis=0), axis=0, length=batch)], axis=1)\n"
    + "  x = attend(x, concat([s, x], axis=1), concat([s, x], axis=1), mask=beyond(whole, length(s, axis=1)))\n"
    + OUT
    + GROWS,
    "a memory before the text": "dims m\nmask past(m: int) = j - m <= i\n"
    + IDS.replace("ids:", "memory: float[batch, m, 4], ids:")
    + "  x = x + (attention(x, concat([memory, x], axis=1), heads=1, mask=past(m)) @ a)\n"
    + OUT
    + GROWS,
    "a sum over keys that are hidden": IDS
    + "  z = masked_softmax(grid(dot, x, x), mask=causal)\n  x = x + insert(sum(z, axis=2), axis=2)\n"
    + OUT
    + GROWS,
    "the same sum by einsum": IDS
    + "  z = where(grid(causal, x, x)[:, 0], grid(dot, x, x), 0.0)\n"
    + '  x = x + insert(einsum("b i j, b i j -> b i", z, grid(dot, x, x)), axis=2)\n'
    + OUT
    + GROWS,
    "a threshold by thirty halvings": IDS
    + "  z = grid(dot, x, x)\n  seen = grid(causal, x, x)[:, 0]\n"
    + "  high = insert(max(where(seen, z, -inf), axis=2), axis=2)\n  low = high - 1.0\n"
    + "  repeat t in 30 {\n    middle = (low + high) / 2.0\n"
    + "    over = insert(sum(where(seen, relu(z - middle), 0.0), axis=2), axis=2) >= 1.0\n"
    + "    low = where(over, middle, low)\n    high = where(over, high, middle)\n  }\n"
    + "  x = weigh(where(seen, relu(z - low), 0.0), x)\n"
    + OUT
    + GROWS,
    "every second row of a picture": "graph g(p: float[batch, 3, n, n]) -> (y: float[...]) {\n"
    "  return p[:, :, ::2, 1:n:2]\n}\n",
    "the greatest and their numbers": "graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 3]) {\n"
    "  v, _ = topk(x, 3)\n  return v\n}\n",
    "coverage in a score": "dims m\nscore covered(c) = dot(q, k) + c[j]\n"
    "graph g(x: float[batch, n, 4], y: float[batch, m, 4], c: float[batch, m]) -> (z: float[batch, n, 4]) {\n"
    "  z, _ = attend_by(covered(c), x, y, y, mask=all)\n  return z\n}\n",
    "lengths to keep": "graph g(x: float[batch, n, 8], len: int[batch]) -> (y: float[batch, n, 8]) {\n"
    "  return attention(x, heads=2, mask=visible(positions(x) < insert(len, axis=1))) @ a\n}\n",
}


@pytest.mark.parametrize("what", RIGHT)
def test_valid_specs(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.specc"
    path.write_text(HEAD + RIGHT[what], encoding="utf-8")
    code = cli.main(["check", str(path)])
    said = capsys.readouterr()
    assert not code, said.err
    assert "m: ok" in said.out
    # W0711 is reported for every time axis and proved where the model generates along it
    if "generate" in RIGHT[what]:
        assert "\n  causal along n\n" in said.out


X = "graph g(x: float[batch, n, 8]) -> (y: float[...]) {\n  BODY\n  return x\n}\n"
WRONG = {
    "for": ("for i in range(3) { x = x * 2.0 }", "E0101", "`repeat i in 3 { … }`"),
    "if": ("if n > 2 { x = x * 2.0 }", "E0101", "`when c { … } else { … }`"),
    "and": ("x = x if true and false else neg(x)", "E0101", "unknown operator `and`"),
    "in place": ("x *= 2.0", "E0101", "`x = x * …`"),
    "reshape": ("x = reshape(x, [batch, n, 2, 4])", "E0204", "`split(x, into=[2, 4], axis=2)`"),
    "conv2d": ("x = conv2d(x, out=3, kernel=3) @ c", "E0204", "write `conv`"),
    "drop_path": ("x = drop_path(x, 0.1)", "E0204", "remove this call"),
    "a slip": ("x = layer_nrom(x, eps=1e-5) @ norm", "E0204", "did you mean `layer_norm`?"),
    "a slip of a foreign word": ("x = sofmax(x)", "E0204", "did you mean `softmax`?"),
    "an axis": ("x = x + x[:, 0]", "E0302", "`insert(x[:, 0], axis=1)`"),
    "in the library": ("x = attention(x, heads=3, mask=all) @ a", "E0310", "divisors of 8 near 3: 2, 4"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_invalid_specs(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, code, advice = WRONG[what]
    path = tmp_path / "m.specc"
    path.write_text(HEAD + X.replace("BODY", body), encoding="utf-8")
    assert cli.main(["check", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"error[{code}]" in said
    assert advice in said
    first = next(line for line in said.splitlines() if "-->" in line)
    assert f"{path}:5:" in first


YAML = """\
specc: 1
model: m
dims: [batch, n]
config: {WHAT}
items:
  - graph: g
    in: {x: 'float[batch, n, 8]', len: 'int[batch]'}
    out: {y: 'float[batch, n, 8]'}
    do:
      - keep: positions(x) < len
      - return: x
"""


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        ("image: 8", "`image: {type: int, default: 8}`"),
        ("image: 8.5", "`image: {type: float, default: 8.5}`"),
        ("fast: true", "`fast: {type: bool, default: true}`"),
        ("", "`insert(len, axis=1)`"),
    ],
)
def test_advice_for_yaml_is_yaml(
    config: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(YAML.replace("WHAT", config), encoding="utf-8")
    assert cli.main(["check", str(path)]) == 1
    assert advice in capsys.readouterr().err
