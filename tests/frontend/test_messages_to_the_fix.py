"""Mistakes from other libraries: messages advise a fix, and the fix is accepted."""

import re

import pytest

from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.syntax.dsl.syntax_hints import MODULE_CALLS

HEAD = """specc 1
model m
config { layers: int = 2  d: int = 8 }
dims batch, n
graph g(x: float[batch, n, d]) -> (y: float[batch, n, d]) {
"""
CASES = {
    "nn.LayerNorm(d)(x)": (
        "return nn.LayerNorm(d)(x)", "layer_norm(x, eps=1e-5) @ norm", "return {}"
    ),
    **{
        name: (f"return nn.{name}(d)(x)", MODULE_CALLS[name], "return {}")
        for name in MODULE_CALLS
        if name not in ("LayerNorm", "Embedding", "GELU")
    },
    "nn.Dropout of a call": (
        "return nn.Dropout(0.1)(nn.Linear(d, d)(x))", "dropout(x, p=0.1)", "return {}"
    ),
    "act=swish": (
        "return mlp(x, hidden=16, act=swish) @ m", "silu", "return mlp(x, hidden=16, act={}) @ m"
    ),
    "dropout=": (
        "return attention(x, heads=2, mask=causal, dropout=0.1) @ a",
        "dropout(x, p=0.1)",
        "x = {}\n  return attention(x, heads=2, mask=causal) @ a",
    ),
    "is_causal=": (
        "return attend(x, x, x, is_causal=true)", "mask=causal", "return attend(x, x, x, {})"
    ),
    "num_heads=": (
        "return attention(x, num_heads=2, mask=causal) @ a",
        "heads",
        "return attention(x, {}=2, mask=causal) @ a",
    ),
}  # fmt: skip


def check(body: str, weights: str = "") -> list[str] | None:
    """Return the helps of the first error; None if `check` accepts the spec."""
    try:
        check_spec(open_spec(Source("m.specc", f"{HEAD}  {body}\n}}\n{weights}")))
    except SpeccError as failed:
        (diagnostic,) = failed.diagnostics
        return [*diagnostic.helps]
    return None


@pytest.mark.parametrize("name", CASES)
def test_advice_of_a_message_is_accepted(name: str) -> None:
    wrong, advised, fixed = CASES[name]
    assert f"`{advised}" in " ".join(check(wrong) or ())
    body = fixed.format(advised)
    if "out=8" in body:  # an example: the next message names the declared length
        (help_text,) = check(body) or ()
        assert help_text.startswith("write `out=d`, or")
        body = body.replace("out=8", "out=d")
    assert check(body) is None


def test_single_suggestion_covers_all_layers() -> None:
    """Two calls in a layer share a weight: the advice is a pattern for all layers."""
    body = "repeat i in layers under \"layers.{i}\" {\n    x = linear(x, out=d) @ a\n    x = linear(x, out=d) @ a\n  }\n  return x"  # fmt: skip
    helps = check(body) or ()
    (advised,) = re.findall(r"`(weights \{.*\})`", " ".join(helps))
    assert "*" in advised
    assert check(body, advised) is None


@pytest.mark.parametrize("use", ["sum(taps)", "concat(taps, axis=-1)", "max(taps)", "taps[0]"])
def test_poisoned_value_reports_no_second_error(use: str) -> None:
    body = f'repeat k in 3 collect taps {{\n    taps = conv1d(x, out=8, kernel=3) @ "tap{{k}}"\n  }}\n  return {use}'  # fmt: skip
    helps = check(body)
    assert helps
    assert "write `conv`" in helps[0]


@pytest.mark.parametrize(("name", "value", "example"), [("layers", "two", "2"), ("d", "big", "8")])
def test_name_in_place_of_a_number(name: str, value: str, example: str) -> None:
    spec = Source("m.specc", f"{HEAD}  return x\n}}\n")
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(spec, config_settings=[f"{name}={value}"]))
    assert failed.value.diagnostics[0].helps == (f"`{name}` expects int, for example {example}",)


def test_name_in_place_of_a_number_in_the_spec() -> None:
    text = HEAD.replace("layers: int = 2", "layers: int = two")
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(Source("m.specc", f"{text}  return x\n}}\n")))
    assert failed.value.diagnostics[0].helps == ("`layers` expects int, for example 12",)


@pytest.mark.parametrize(
    ("key", "item"), [("graph", "graph"), ("graphs", "graph"), ("blok", "block")]
)
def test_definition_outside_of_yaml_items(key: str, item: str) -> None:
    text = f"specc: 1\nmodel: m\ndims: [batch]\n{key}: g\n"
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(Source("m.yaml", text)))
    helps = failed.value.diagnostics[0].helps
    assert helps == (f"write it as an entry of `items:`: `- {item}: …`",)


def test_singular_of_the_section_inputs() -> None:
    text = "specc 1\nmodel m\ndims batch\ninput {\n  x: float[batch]\n}\n"
    with pytest.raises(SpeccError) as failed:
        open_spec(Source("m.specc", text))
    assert failed.value.diagnostics[0].helps[0] == "did you mean `inputs`?"


@pytest.mark.parametrize("word", ["output", "outputs"])
def test_outputs_outside_of_a_graph(word: str) -> None:
    key = word.removesuffix("s").removesuffix("put")
    for text in (
        f"specc 1\nmodel m\ndims batch\n{word} {{\n  x: float[batch]\n}}\n",
        f"specc: 1\nmodel: m\ndims: [batch]\n{word}: {{x: 'float[batch]'}}\n",
    ):
        with pytest.raises(SpeccError) as failed:
            check_spec(open_spec(Source("m.yaml" if ":" in text[:6] else "m.specc", text)))
        (help_text,) = failed.value.diagnostics[0].helps
        assert "of a graph" in help_text or "belong to a graph" in help_text
        assert f"`{key}:`" in help_text or "graph main(" in help_text


@pytest.mark.parametrize(("written", "advised"), [("int", "int[]"), ("float", "float[]"), ("bool", "bool[]")])  # fmt: skip
def test_scalar_input(written: str, advised: str) -> None:
    text = HEAD.replace("(x:", "(t: TYPE, x:") + "  return x * float(t)\n}\n"
    with pytest.raises(SpeccError) as failed:
        check_spec(open_spec(Source("m.specc", text.replace("TYPE", written))))
    assert f"`{advised}`" in failed.value.diagnostics[0].helps[0]
    check_spec(open_spec(Source("m.specc", text.replace("TYPE", advised))))


@pytest.mark.parametrize("path", ["m.safetensors", "pytorch_model.bin", "a/b.PT"])
def test_weights_file_as_spec_is_rejected(path: str) -> None:
    with pytest.raises(SpeccError) as failed:
        open_spec(path)
    assert failed.value.diagnostics[0].code == "E0222"
    assert "directory" in failed.value.diagnostics[0].helps[0]
