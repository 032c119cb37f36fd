"""Built-in `rnn`, `gru` and `lstm`: weight names and shapes, results, and errors."""

from pathlib import Path

import numpy as np
import pytest
from support.elaborated_specs import (
    ElaboratedSpec,
    elaborate_with_config,
    run_reference,
    sample_spec_weights,
)

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec

SPEC = """\
specc 1
model m
config {{ hidden: int = 5  layers: int = 2  act: activation = tanh }}
dims batch, seq
graph f(x: float[batch, seq, 3], keep: keep[batch, seq], s: float[batch, 2, hidden]) -> (y: float[...]) {{
  y = {call}
  return y
}}
"""


def spec(directory: Path, call: str, result: str = "batch, seq, _") -> ElaboratedSpec:
    (directory / "m.specc").write_text(SPEC.format(call=call).replace("...", result))
    return elaborate_with_config(str(directory / "m.specc"))


def weights(found: ElaboratedSpec) -> dict[str, str]:
    return {
        name: str(v.type).removeprefix("f32") for name, v in found.model.graph.parameters.items()
    }


def test_weight_names_and_shapes_match_pytorch(tmp_path: Path) -> None:
    found = weights(spec(tmp_path, "lstm(x, hidden=hidden, layers=layers, direction=both) @ enc"))
    assert len(found) == 16
    assert found["enc.weight_ih_l0"] == "[20, 3]"
    assert found["enc.weight_ih_l1_reverse"] == "[20, 10]"
    assert found["enc.weight_hh_l1"] == "[20, 5]"
    assert found["enc.bias_hh_l0_reverse"] == "[20]"
    projected = weights(
        spec(tmp_path, "lstm(x, hidden=hidden, proj=2, peepholes=true, bias=false) @ enc")
    )
    assert projected == {
        "enc.weight_ih_l0": "[20, 3]",
        "enc.weight_hh_l0": "[20, 2]",
        "enc.peephole_l0": "[15]",
        "enc.weight_hr_l0": "[2, 5]",
    }


def test_backward_layer_has_reverse_weight_names(tmp_path: Path) -> None:
    found = weights(spec(tmp_path, "gru(x, hidden=hidden, reset=before, direction=backward) @ enc"))
    assert set(found) == {
        f"enc.{n}_l0_reverse" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    }
    assert found["enc.weight_ih_l0_reverse"] == "[15, 3]"


def test_shapes_with_symbolic_sizes(tmp_path: Path) -> None:
    call = (
        "gru(x, hidden=hidden, reset=after, layers=layers, direction=both, "
        "keep=keep, start=s) @ enc"
    )
    (tmp_path / "m.specc").write_text(
        SPEC.format(call=call.replace("layers=layers, ", "")).replace(
            "...", "batch, seq, 2 * hidden"
        )
    )
    found = check_spec(open_spec(str(tmp_path / "m.specc")))
    assert found.model
    assert str(found.model.graph.outputs["y"].type) == "f32[batch, seq, 10]"


def test_final_states_are_ordered_by_layer_then_direction(tmp_path: Path) -> None:
    text = (
        SPEC.format(call="x")
        .replace("...", "batch, seq, _")
        .replace(
            "y = x\n  return y",
            """\
out, last, cell = lstm(x, hidden=hidden, layers=layers, direction=both, keep=keep) @ enc
  a, la = lstm(x, hidden=hidden, direction=both, keep=keep) @ enc
  return last, la, a""",
        )
        .replace(
            "y: float[batch, seq, _]",
            "last: float[batch, _, _], one: float[batch, 2, _], a: float[batch, seq, _]",
        )
    )
    (tmp_path / "m.specc").write_text(text + "\nweights { share enc }\n")
    found = elaborate_with_config(str(tmp_path / "m.specc"))
    rng = np.random.default_rng(0)
    x, keep = rng.standard_normal((2, 4, 3)), np.ones((2, 4), bool)
    made = run_reference(
        found, sample_spec_weights(found), {"x": x, "keep": keep, "s": np.zeros((2, 2, 5))}
    )
    np.testing.assert_array_equal(made["last"][:, :2], made["one"])
    np.testing.assert_allclose(made["one"][:, 0], made["a"][:, -1, :5])
    np.testing.assert_allclose(made["one"][:, 1], made["a"][:, 0, 5:])


@pytest.mark.parametrize(
    ("call", "operand"),
    [
        ("gru(x, hidden=hidden, reset=after, layers=2, start={}) @ e", "s[:1]"),
        ("rnn(x, hidden=hidden, layers=2, start={}) @ e", "s[:1]"),
        ("lstm(x, hidden=hidden, layers=2, start={0}, start_cell={0}) @ e", "s[:1]"),
        ("attend({}, x, x, mask=all)", "x[:1]"),
        ("attend(x, {0}, {0}, mask=all)", "x[:1]"),
    ],
)
def test_operands_of_batch_size_1_broadcast(call: str, operand: str, tmp_path: Path) -> None:
    batch = f"expand({operand}, axis=0, length=batch)"
    plain, expanded = (spec(tmp_path, call.format(x)) for x in (operand, batch))
    inputs = {"x": np.ones((2, 3, 3)), "keep": np.ones((2, 3), bool), "s": np.ones((2, 2, 5))}
    made = [run_reference(m, sample_spec_weights(plain), inputs)["y"] for m in (plain, expanded)]
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("gru(x, hidden=hidden) @ e", "E0211", "missing option `reset`"),
        ("gru(x, hidden=hidden, reset=maybe) @ e", "E0203", "cannot be `maybe`"),
        ("lstm(x, hidden=hidden, direction=sideways) @ e", "E0203", "cannot be `sideways`"),
        (
            "lstm(x[:, 0], hidden=hidden) @ e",
            "E0301",
            "takes a float tensor [batch, time, features]",
        ),
        ("lstm(x, hidden=hidden, layers=3, start=s) @ e", "E0301", "initial state of 3 layers"),
        ("lstm(x, hidden=hidden, layers=0) @ e", "E0216", "between 1 and 4096"),
        ("rnn(x, hidden=hidden, act=gelu) @ e", "E0203", "tanh, relu or sigmoid"),
        ("lstm(x, hidden=hidden, keep=x) @ e", "E0301", "must be a padding mask"),
        ("lstm(x, hidden=hidden, start=x) @ e", "E0301", "initial state of 1 layer"),
    ],
)
def test_invalid_operands_are_rejected_at_the_call(
    call: str, code: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(SpeccError) as refused:
        spec(tmp_path, call)
    (fault,) = refused.value.diagnostics
    assert fault.code == code, fault.title
    assert said in fault.title
    assert fault.primary
    assert fault.primary.span.text in call
