"""The work of reading a spec is bounded: a limit with a code stops every construct that multiplies."""

import pytest
from support.resource_limits import run_with_limits
from support.spec_bombs import CHECK_PROGRAM, list_all_bombs, sample_mixed_bombs

from specc.frontend.elaboration_limits_and_errors import MAX_STEPS

LIMITS = {"", "E0109", "E0110", "E0216", "E0223", "E0224", "E0309", "E0310", "E0521"}


@pytest.mark.parity
def test_each_construct_that_multiplies_is_counted() -> None:
    """With a small budget, so that uncounted work appears as time instead of a limit."""
    made = run_with_limits(CHECK_PROGRAM, values={"bombs": list_all_bombs(), "steps": 10_000})
    wrong = {name: code for name, (code, _) in made["found"].items() if code not in LIMITS}
    assert not wrong
    assert made["megabytes"] < 300
    multiplied = [n for n, (c, _) in made["found"].items() if c == "E0223"]
    assert len(multiplied) >= 15, multiplied


@pytest.mark.slow
def test_bombs_are_refused_with_the_default_budget() -> None:
    bombs = {**list_all_bombs(), **dict(sample_mixed_bombs(40, seed=8))}
    for name, text in bombs.items():
        made = run_with_limits(CHECK_PROGRAM, values={"bombs": {name: text}, "steps": 0})
        ((code, _),) = made["found"].values()
        assert code in LIMITS, (name, code)
        assert made["megabytes"] < 300, name


LAYERS = """
specc 1
model m
dims batch, n
graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {
  repeat i in %d { repeat e in 8 under "layers.{i}.experts.{e}" {
    h = silu(linear(x, out=16, bias=false) @ gate) * (linear(x, out=16, bias=false) @ up)
    x = x + (linear(h, out=8, bias=false) @ down)
  } }
  return x
}
"""


def test_sixty_one_layers_of_256_experts_are_within_the_budget() -> None:
    code = """
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_to_graph import elaborate_model
from specc.frontend.spec_modules import build_module, build_program
from specc.syntax.parse import decode_spec, parse_spec
from specc.library.spec_file_lookup import SpecLibrary
result = []
for text in given:
    reader, files = ConfigReadOptions(), SpecLibrary()
    program = build_program(build_module(parse_spec(decode_spec(text.encode(), "m.specc")), "m.specc"), files)
    elaborate_model(program, reader)
    result.append(reader.steps.spent)
"""
    two, four = run_with_limits(code, values=[LAYERS.strip() % 2, LAYERS.strip() % 4])
    assert two + (four - two) / 16 * 61 * 256 < MAX_STEPS
