"""Weights that several calls use: an error shows both calls unless a `share` rule allows it."""

import random
from pathlib import Path

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec, elaborate_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_modules import build_module, build_program
from specc.library.spec_file_lookup import SpecLibrary
from specc.syntax.parse import convert_help_snippets_to_yaml, decode_spec, parse_spec

LIBRARY = SpecLibrary()
LAYER = """block layer(x: float[batch, n, 8]) -> float[batch, n, 8] {
  return x + (linear(relu(linear(x, out=8) @ up), out=8) @ down)
}
"""


def opened(body: str, before: str = "", after: str = "", result: str = "x") -> LoadedSpec:
    text = f"""specc 1
model m
{before}
dims batch, n
graph g(x: float[batch, n, 8]) -> (y: float[...]) {{
{body}
return {result}
}}
{after}
"""
    module = build_module(parse_spec(decode_spec(text.encode(), "m.specc")), "m.specc")
    return LoadedSpec(build_program(module, LIBRARY), LIBRARY, ConfigReadOptions(), "m.specc")


def codes(body: str, before: str = "", after: str = "") -> list[str]:
    try:
        found = check_spec(opened(body, before, after)).warnings
        # the blocks that a case does not call are unused
        return [d.code for d in found if d.code != "W0202"]
    except SpeccError as failed:
        return [d.code for d in failed.diagnostics]


def names(body: str, before: str = "", after: str = "") -> list[str]:
    return list(elaborate_spec(opened(body, before, after)).graph.parameters)


SLIPS = {
    "inside each other": "x = linear(linear(x, out=8), out=8)",
    "the same call twice": "x = (linear(x, out=8) @ w) + (linear(x, out=8) @ w)",
    "one in a block": "x = layer(x) @ a\nx = linear(x, out=8) @ a.up",
    "a block and itself": "x = layer(x)\nx = layer(x)",
    "two in one block": "x = twice(x)",
    "repeat": "repeat i in 2 { x = linear(x, out=8) @ w }",
    "repeat under a name without a number": 'repeat i in 2 under "w" { x = linear(x, out=8) }',
    "repeat in repeat": 'repeat i in 2 { repeat j in 2 under "{j}" { x = linear(x, out=8) @ w } }',
    "a list": "x = sum([linear(x, out=8) @ w for i in 2])",
    "a function applied twice": "x = both(x, layer_norm(eps=1e-5) @ n)",
    "parameters": "x = x + (parameter(shape=[8]) @ p) * (parameter(shape=[8]) @ p)",
    "recurrent": "x = lstm(x, hidden=8)\nx = lstm(x, hidden=8)",
    "std": "x = attention(x, heads=2, mask=all)\nx = attention(x, heads=2, mask=all)",
    "scores written twice": "repeat i in 2 { x, _ = attend_by(additive(4) @ s, x, x, "
    "x, mask=all) }",
}
BLOCKS = (
    LAYER
    + """
block twice(x: float[batch, n, 8]) -> float[batch, n, 8] {
  return (linear(x, out=8) @ w) * (linear(x, out=8) @ w)
}
block both(x: float[batch, n, 8], norm: norm) -> float[batch, n, 8] { return apply(norm, relu(apply(norm, x))) }
"""
)


@pytest.mark.parametrize("name", SLIPS)
def test_two_calls_with_one_name_are_rejected(name: str) -> None:
    with pytest.raises(SpeccError) as failed:
        check_spec(opened(SLIPS[name], BLOCKS))
    (found,) = failed.value.diagnostics
    assert found.code == "E0526"
    assert found.primary
    assert len(found.helps) == 2, "both mends"


@pytest.mark.parametrize("name", SLIPS)
def test_declared_sharing_is_allowed(name: str) -> None:
    shared = 'share "*"'  # every path there is
    assert codes(SLIPS[name], BLOCKS, f"weights {{ {shared} }}") == []


NO_SLIPS = {
    "names": "x = linear(linear(x, out=8) @ a, out=8) @ b",
    "one without": "x = linear(linear(x, out=8) @ a, out=8)",
    "turns": 'repeat i in 3 under "l.{i}" { x = layer(x) }',
    "numbered calls": 'repeat i in 3 { x = layer(x) @ "l.{i}" }',
    "items": 'x = sum([linear(x, out=8) @ "w.{i}" for i in 3])',
    "a value used twice": "p = parameter(shape=[8]) @ p\nx = (x + p) * p",
    "a result used twice": "h = linear(x, out=8)\nx = h + relu(h)",
    "a bias looked at in each layer": (
        'near = relative_position_bias(4) @ near\nrepeat i in 2 under "{i}" { x, _ = '
        "attend_by(dot, x, x, x, mask=all, add=near) }"
    ),
    "a score held once": "s = additive(4) @ s\nrepeat i in 2 { x, _ = attend_by(s, x, "
    "x, x, mask=all) }",
    "scores of other calls": "repeat i in 2 { x, _ = attend_by(additive(4), x, x, x, "
    'mask=all) @ "{i}" }',
    "tensors given": "w = parameter(shape=[8, 8]) @ w\nx = affine(affine(x, w), w)",
    "a scan": "s = x[:, 0]\nscan r in x along n carry s { s = linear(s + r, out=8) @ "
    "cell }\nx = x + insert(s, axis=1)",
    "both directions": "x = linear(lstm(x, hidden=8, direction=both), out=8) @ out",
}


@pytest.mark.parametrize("name", NO_SLIPS)
def test_single_call_needs_no_share_rule(name: str) -> None:
    assert codes(NO_SLIPS[name], BLOCKS) == []


def test_share_rule_does_not_cover_inner_calls() -> None:
    body, share = 'repeat i in 2 { x = layer(x) @ "l" }', "weights { share l }"
    assert codes(body, LAYER, share) == []
    assert names(body, LAYER, share) == ["l.up.weight", "l.up.bias", "l.down.weight", "l.down.bias"]
    slip = LAYER.replace("@ down", "@ up")
    assert codes(body, slip, share) == ["E0526"]
    assert codes(body, slip, "weights { share l  share l.up }") == []


def test_patterns_conditions_and_useless_rules() -> None:
    two = "x = linear(x, out=8) @ a.0\nx = linear(x, out=8) @ a.0"
    assert codes(two, after='weights { share "a.{i}" }') == []
    assert codes(two, after='weights { share "a.{i}" when 1 < 2 }') == []
    assert codes(two, after='weights { share "a.{i}" when 1 > 2 }') == ["E0526"]
    assert codes(two, after="weights { share a.1 }") == ["E0526"]
    assert codes("x = linear(x, out=8) @ a", after="weights { share b }") == ["E0527"]
    assert codes("x = linear(x, out=8) @ a", after="weights { share a }") == ["W0505"]
    assert codes("x = linear(x, out=8) @ a", after="weights { share b when 1 > 2 }") == []


def test_rule_may_apply_to_another_graph() -> None:
    other = (
        "graph h(x: float[batch, n, 8]) -> (y: float[...]) {\n return "
        "linear(linear(x, out=8) @ a, out=8) @ a\n}\n"
    )
    assert codes("x = linear(x, out=8) @ a", after=f"{other} weights {{ share a }}") == []
    assert codes("x = linear(x, out=8) @ a", after=f"{other} weights {{ share b }}") == ["E0527"]


def test_share_rule_of_a_used_file(tmp_path: Path) -> None:
    inner = (
        "specc 1\nmodel inner\ndims batch, n\n"
        + LAYER
        + (
            "graph encode(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {\n"
            "  x = layer(x) @ l\n  return layer(x) @ l\n}\nweights { share l }\n"
        )
    )
    (tmp_path / "inner.specc").write_text(inner)
    outer = (
        'specc 1\nmodel outer\nuse "inner.specc" as v\ndims batch, n\n'
        "graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {\n%s\n}\n"
    )
    (tmp_path / "one.specc").write_text(outer % "return v.encode(x) @ tower")
    found = elaborate_spec(open_spec(str(tmp_path / "one.specc"))).graph
    assert all(name.startswith("tower.l.") for name in found.parameters)
    (tmp_path / "two.specc").write_text(
        outer % "x = v.encode(x) @ tower\nreturn v.encode(x) @ tower"
    )
    with pytest.raises(SpeccError, match="E0526"):
        elaborate_spec(open_spec(str(tmp_path / "two.specc")))


def make_random_spec(seed: int) -> tuple[str, list[str]]:
    """Return linear calls with random names, some in blocks and loops, and their weight paths."""
    draw = random.Random(seed)
    lines, paths = [], []
    for _ in range(draw.randint(1, 5)):
        name = draw.choice(["a", "b", "a.b", "c", "d", "e", "f.g"])
        match draw.randrange(4):
            case 0:
                lines.append(f"x = linear(x, out=8) @ {name}")
                paths.append(name)
            case 1:
                lines.append(f"x = layer(x) @ {name}")
                paths += [f"{name}.up", f"{name}.down"]
            case 2:
                numbered = draw.random() < 0.7
                turns = draw.randint(1, 3)
                under = f' under "{name}.{{i}}"' if numbered else f' under "{name}"'
                lines.append(f"repeat i in {turns}{under} {{ x = linear(x, out=8) @ w }}")
                paths += [f"{name}.{i}.w" if numbered else f"{name}.w" for i in range(turns)]
            case 3:
                lines.append(f"x = (linear(x, out=8) @ {name}) + (linear(x, out=8) @ {name}x)")
                paths += [name, f"{name}x"]
    return "\n".join(lines), paths


def check_random_specs(seeds: range) -> None:
    """Each call has its own weight, or E0526; with all paths shared, each name has one weight."""
    refused = 0
    for seed in seeds:
        body, paths = make_random_spec(seed)
        distinct = len(set(paths)) == len(paths)
        found = codes(body, LAYER)
        assert (found == []) == distinct, (body, found)
        if distinct:
            assert len(names(body, LAYER)) == 2 * len(paths), body
            continue
        refused += 1
        assert set(found) == {"E0526"}, body
        share = 'weights { share "*" }'
        assert len(names(body, LAYER, share)) == 2 * len(set(paths)), body
    assert refused > len(seeds) // 10


def test_random_specs_have_one_weight_per_call() -> None:
    check_random_specs(range(60))


@pytest.mark.slow
def test_many_random_specs_have_one_weight_per_call() -> None:
    check_random_specs(range(60, 2000))


YAML = """specc: 1
model: m
dims: [batch, n]
items:
  - graph: g
    in: {x: 'float[batch, n, 8]'}
    out: {y: 'float[batch, n, 8]'}
    do:
      - repeat: i in 3
        UNDER
        do:
          - x: {linear: {in: x, out: 8, weights: inner}}
      - return: x
WEIGHTS
"""


@pytest.mark.parametrize(
    ("under", "weights"), [("under: 'layers.{i}'", ""), ("", "weights: [{share: inner}]")]
)
def test_advice_for_yaml_is_accepted(under: str, weights: str, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(YAML.replace("UNDER", "").replace("WEIGHTS", ""))
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(str(path)))
    advice = " ".join(convert_help_snippets_to_yaml(failed.value.diagnostics)[0].helps)
    assert (under or weights) in advice
    path.write_text(YAML.replace("UNDER", under).replace("WEIGHTS", weights))
    check_spec(open_spec(str(path)))
