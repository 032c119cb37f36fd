"""Mistakes of newcomers: the help names a fix, and the fixed spec passes `check`."""

from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

HEAD = """specc 1
model m
config { d: int = 8  layers: int = 2 }
dims batch, n
"""
GRAPH = """
graph g(x: float[batch, n, d], ids: int[batch, n], keep: keep[batch, n]) -> (y: float[...]) {
  BODY
}
"""
ATTENTION = "return attention(x, heads=2, mask=MASK) @ a"
LOOP = "repeat i in layers under PATTERN { x = linear(x, out=d) @ w }\n  return x"

IN_BODY = [
    ("return self.norm(x)", "`layer_norm(x, eps=1e-5) @ norm`", "layer_norm(x, eps=1e-5) @ norm"),
    ("return linear(x, d, d) @ w", "`out=…`", "return linear(x, out=d) @ w"),
    ("return logsumexp(ids)", "cast(", "return logsumexp(cast(ids, to=float))"),
    ("return exp(ids)", "cast(", "return exp(cast(ids, to=float))"),
    ("return mean(ids)", "cast(", "return mean(cast(ids, to=float))"),
    ("return hard(ids, keep)", "cast(", "return hard(cast(ids, to=float), keep)"),
    ("return x + ids", "`cast(ids, to=float)`", "return x + cast(ids, to=float)[..., none]"),
    ("// a comment\n  return x", "`#`", "# a comment\n  return x"),
    ("return x  /* done */", "`#`", "return x  # done"),
    ("print(x)\n  return x", "--tap", "return x"),
    ("return x[:, 1:].mean(dim=1)", "operations are functions", "return mean(x[:, 1:], axis=1)"),
    ("return relu(x).unsqueeze(1)", "operations are functions", "return relu(x)[:, none]"),
    ("return x if d is 8 else tanh(x)", "`==`", "return x if d == 8 else tanh(x)"),
    ("return ones(shape=(1, 2))", "in brackets: `[1, 2]`", "return ones(shape=[1, 2])"),
    (
        "return x * sum(x, axis=-1, keepdim=true)",
        "`insert(sum(x, axis=-1), axis=-1)`",
        "return x * insert(sum(x, axis=-1), axis=-1)",
    ),
    ("return softmax(x, axis=3)", "from -3 to 2", "return softmax(x, axis=2)"),
    (
        'repeat layers under "l.{i}" { x = linear(x, out=d) @ w }\n  return x',
        "`repeat i in layers",
        'repeat i in layers under "l.{i}" { x = linear(x, out=d) @ w }\n  return x',
    ),
    ("assert d > 2\n  return x", "`require", 'require d > 2, "why"\n  return x'),
    (
        "xs = [x]\n  repeat i in 2 { xs.append(x) }\n  return x",
        "`repeat … collect x",
        "repeat i in 2 collect x { x = relu(x) }\n  return x[0]",
    ),
    (
        "when d > 9 { x = relu(x) } else when d > 1 { x = tanh(x) }\n  return x",
        "`else { when c { … } }`",
        "when d > 9 { x = relu(x) } else { when d > 1 { x = tanh(x) } }\n  return x",
    ),
    (
        "repeat i in range(layers) { x = relu(x) }\n  return x",
        "`repeat i in 3",
        "repeat i in layers { x = relu(x) }\n  return x",
    ),
    (
        "repeat layers { x = relu(x) }\n  return x",
        "`repeat i in layers",
        "repeat i in layers { x = relu(x) }\n  return x",
    ),
    (
        LOOP.replace("PATTERN", "layers.{i}"),
        '`under "layers.{i}"`',
        LOOP.replace("PATTERN", '"layers.{i}"'),
    ),
    (
        LOOP.replace("PATTERN", 'f"layers.{i}"'),
        "without `f`",
        LOOP.replace("PATTERN", '"layers.{i}"'),
    ),
    (ATTENTION.replace("MASK", "none"), "`mask=all`", ATTENTION.replace("MASK", "all")),
    (ATTENTION.replace("MASK", '"causal"'), "without quotes", ATTENTION.replace("MASK", "causal")),
    (ATTENTION.replace("MASK", "keep"), "`visible(", ATTENTION.replace("MASK", "visible(keep)")),
    (
        ATTENTION.replace("MASK", "causal & keep"),
        "`visible(keep)`",
        ATTENTION.replace("MASK", "causal & visible(keep)"),
    ),
    (
        "h = zeros(shape=[1, d])\n  scan r in x along n carry h {\n    h = h + r\n  }\n  return h",
        "`h = expand(h, axis=0, length=batch)`",
        "h = expand(zeros(shape=[1, d]), axis=0, length=batch)\n"
        "  scan r in x along n carry h {\n    h = h + r\n  }\n  return h",
    ),
]
"""The mistake, a part of its help, and the fixed body."""

IN_FILE = [
    (
        "config { d: int = 8  layers: int = 2 }",
        "config { d: 8  layers: int = 2 }",
        "`name: int = 8`",
    ),
    ("layers: int = 2 }", ", layers: int = 2 }", "remove the comma"),
    ("layers: int = 2 }", "layers: integer = 2 }", "write `int`"),
    ("layers: int = 2 }", 'layers = int from "n" = 2 }', "after a colon"),
    ("layers: int = 2 }", 'layers: int from ["n", "l"] = 2 }', "by `|`"),
    ("layers: int = 2 }", "layers: int = 2 c: choice(a, b) = a }", "`choice(a | b)`"),
    ("layers: int = 2 }", "layers: int = 2 s: pair[int] = (1, 2) }", "`[1, 2]`"),
    ("layers: int = 2 }", "layers: int = 2\n  expect t in (a) }", '`expect "model_type" in'),
    ("layers: int = 2 }", 'layers: int = 2 expect "t" == a }', "in parentheses"),
    ("layers: int = 2 }", "layers: int = 2\n  ignore t }", '`ignore "init_std"`'),
    ("n, d], ids", "n, d] ids", "separate inputs by commas"),
    ("ids: int[", "ids: long[", "write `int`"),
    ("keep: keep[", "keep: mask[", "write `keep`"),
    ("(x: float[batch, n, d], ids", "(x, ids", "the type of each input"),
    ("config { d: int = 8", 'config { s: str = "a"  d: int = 8', "`text`"),
    ("dims batch, n", "dims [batch, n]", "without brackets"),
    ("dims batch, n", "dims batch, n = 8", "`config`"),
    ("model m", "model my-model", "`_`"),
    ("(x: float[batch, n, d]", "(x: float(batch, n, d)", "`float[batch, n]`"),
    ("graph g(", "def g(", "`graph`"),
    ("-> (y: float[...]) {", "-> (y: float[...]):", "`{ … }`"),
]
"""A part of a valid spec, what newcomers write, and a part of the help."""


def check(path: Path, text: str) -> list[str]:
    """Return the helps of the errors of a spec."""
    path.write_text(text)
    try:
        elaborate_spec(open_spec(str(path)))
    except SpeccError as failed:
        return [h for d in failed.diagnostics for h in d.helps] + [""]
    return []


@pytest.mark.parametrize(("body", "fix", "fixed"), IN_BODY)
def test_help_in_bodies(body: str, fix: str, fixed: str, tmp_path: Path) -> None:
    graph = HEAD + GRAPH
    assert fix in " ".join(check(tmp_path / "m.specc", graph.replace("BODY", body)))
    fixed = fixed if "return" in fixed else f"return {fixed}"
    assert not check(tmp_path / "m.specc", graph.replace("BODY", fixed))


@pytest.mark.parametrize(("valid", "wrong", "fix"), IN_FILE)
def test_help_in_files(valid: str, wrong: str, fix: str, tmp_path: Path) -> None:
    text = HEAD + GRAPH.replace("BODY", "return x")
    assert not check(tmp_path / "m.specc", text)
    assert fix in " ".join(check(tmp_path / "m.specc", text.replace(valid, wrong)))


YAML = """specc: 1
model: m
dims: [batch, n]
items:
  - graph: g
    doc: a model
    in: {x: 'float[batch, n, 8]'}
    out: {y: 'float[...]'}
    do:
      - when: 1 > 2
        do:
          - x: relu(x)
      - return: {concat: {in: [[x, x]], axis: -1}}
"""
IN_YAML = [
    ("dims: [batch, n]", "dims: batch, n", "`[batch, n]`"),
    ("doc: a", "description: a", "`doc`"),
    ("in: {x", "inputs: {x", "`in`"),
    ("out: {y", "outputs: {y", "`out`"),
    ("    do:\n      - when", "    body:\n      - when", "`do`"),
    ("        do:\n          - x", "        then:\n          - x", "`do`"),
    ("- when: 1 > 2", "- if: 1 > 2", "`- when: c`"),
    ("[[x, x]]", "[x, x]", "`in: [[a, b]]`"),
    ("{in: [[x, x]]", "{inputs: [[x, x]]", "`{f: {in: x}}`"),
]


@pytest.mark.parametrize(("valid", "wrong", "fix"), IN_YAML)
def test_help_in_yaml(valid: str, wrong: str, fix: str, tmp_path: Path) -> None:
    assert not check(tmp_path / "m.yaml", YAML)
    assert YAML.count(valid) == 1
    assert fix in " ".join(check(tmp_path / "m.yaml", YAML.replace(valid, wrong)))


YAML_FIELD = YAML.replace("dims:", "config:\n  d: {type: int, default: 8}\ndims:")


@pytest.mark.parametrize("key", ["value", "from_key", "description"])
def test_unknown_key_of_a_config_value_is_reported(key: str, tmp_path: Path) -> None:
    assert not check(tmp_path / "m.yaml", YAML_FIELD)
    helps = check(tmp_path / "m.yaml", YAML_FIELD.replace("default: 8}", f"default: 8, {key}: a}}"))
    assert "default, doc, from, type" in " ".join(helps) or "`doc`" in " ".join(helps)


INSTANCE = """specc: 1
model: m
extends: llama
config:
  d: 64
  heads: 2
  layers: 2
"""


@pytest.mark.parametrize(
    ("valid", "wrong", "fix"),
    [
        ("  layers: 2", "  num_hidden_layers: 2", "`layers`"),
        ("  d: 64", "  d: {type: int, default: 64}", "`d: …`"),
    ],
)
def test_help_in_instances(valid: str, wrong: str, fix: str, tmp_path: Path) -> None:
    assert fix in " ".join(check(tmp_path / "m.yaml", INSTANCE.replace(valid, wrong)))


METHODS = [
    ("xs = [x]\n  i = xs.index(x)", "`xs` is a list and has no method `index`"),
    ("i = name.upper()", "`name` is the string"),
    ("i = d.item()", "`d` is an integer and has no method `item`"),
    ("i = act.forward(x)", "`act` is the function `gelu` and has no method `forward`"),
    ("i = torch.foo(x)", "`torch.foo` belongs to another library"),
    ("i = other.block(x)", "no used file is called `other`"),
    ("i = part.foo(x)", "the record has no field `foo`"),
    ("i = part.n(x)", "`part.n` is an integer and cannot be called"),
]
"""Calls with a dot, and a part of the title of their error."""


@pytest.mark.parametrize(("statement", "title"), METHODS)
def test_call_with_a_dot_names_the_value(statement: str, title: str, tmp_path: Path) -> None:
    config = "config { d: int = 8  act: activation = gelu  name: text = \"a\"\n  part: record { n: int = 2  norm: norm = layer_norm(eps=1e-5) } }"  # fmt: skip
    text = f"specc 1\nmodel m\n{config}\ndims batch, n\n{GRAPH}"
    path = tmp_path / "m.specc"
    assert not check(path, text.replace("BODY", "return part.norm(x) @ a"))
    path.write_text(text.replace("BODY", f"{statement}\n  return x"))
    with pytest.raises(SpeccError) as caught:
        elaborate_spec(open_spec(str(path)))
    (diagnostic,) = caught.value.diagnostics
    assert title in diagnostic.title
    assert diagnostic.helps or "cannot be called" in title


PLACEHOLDERS = ["layers.{kk}", "{kk}", "a.{k}.b.{ kk + 1 }", "{k}.{kk}", "{sizes[kk]}"]


@pytest.mark.parametrize("use", ["under", "@"])
@pytest.mark.parametrize("pattern", PLACEHOLDERS)
@pytest.mark.parametrize("suffix", ["specc", "yaml"])
def test_unknown_name_in_a_placeholder_is_underlined(
    pattern: str, use: str, suffix: str, tmp_path: Path
) -> None:
    under, name = (pattern, "w") if use == "under" else ("l.{k}", pattern)
    if suffix == "specc":
        config = (
            "config { d: int = 8  layers: int = 2  sizes: list[int] = [1, 2] }\ndims batch, n\n"
        )
        body = f'repeat k in layers under "{under}" {{\n    x = linear(x, out=d) @ "{name}"\n  }}\n  return x'  # fmt: skip
        text = f"specc 1\nmodel m\n{config}{GRAPH}".replace("BODY", body)
    else:
        text = f"""specc: 1
model: m
config: {{d: {{type: int, default: 8}}, sizes: {{type: 'list[int]', default: [1, 2]}}}}
dims: [batch, n]
items:
  - graph: g
    in: {{x: 'float[batch, n, d]'}}
    out: {{y: 'float[batch, n, d]'}}
    do:
      - repeat: k in 2
        under: '{under}'
        do:
          - x: {{linear: {{in: x, out: d, weights: "{name}"}}}}
      - return: x
"""
    path = tmp_path / f"m.{suffix}"
    path.write_text(text)
    with pytest.raises(SpeccError) as caught:
        elaborate_spec(open_spec(str(path)))
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0202"
    assert diagnostic.primary is not None
    span = diagnostic.primary.span
    assert (span.text, span.source.text[span.start :]) == ("kk", text[text.index("kk") :])
    assert span.source.name == str(path)
