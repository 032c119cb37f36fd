"""Estimates of a spec's work: never more than the counted steps, and enough to reject multiplying
constructs at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.elaborated_specs import elaborate_with_config
from support.resource_limits import run_with_limits
from support.small_configs import SMALL_CONFIGS
from support.spec_bombs import (
    CHECK_PROGRAM,
    INPUT,
    build_spec,
    list_loop_bombs,
    list_mask_bombs,
    sample_mixed_bombs,
)

from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.frontend import calls, mask_and_bias_definitions
from specc.frontend.step_estimate import StepEstimator

WORK = (
    "x = #",
    "x = x + # * 2.0",
    "repeat i in 3 { x = # }",
    "repeat i in [1, 2] { when i == 1 { x = # } else { x = x * 2.0 } }",
    "x = # if 2 > 1 else x",
    "y = [# for i in 2]",
    "x = relu(#)",
    "x = x[:, :] + (- #)",
    "s = x[:, 0]\nscan r in x along n carry s { s = s + r }",
    "x = attend(x, #, x, mask=M)",
)
MASKS = ("# & #", "not #", "# if 1 == 2 else causal", "(# | causal) & window(3)", "#")


def make_random_spec(random: Random) -> str:
    """Return blocks and masks that use earlier ones in all possible ways."""
    masks = ["mask m0 = causal"]
    for n in range(1, 6):
        step = random.choice(MASKS).replace("#", f"m{random.randrange(n)}")
        masks.append(f"mask m{n} = {step}")
    blocks = [f"block b0({INPUT}) -> float[batch, n, 8] {{ return x * 2.0 }}"]
    for n in range(1, 6):
        lines = []
        for _ in range(random.randint(1, 3)):
            called = random.choice(["x", *(f"b{k}(x)" for k in range(n))])
            line = random.choice(WORK).replace("#", called)
            lines.append(line.replace("M", f"m{random.randrange(6)}"))
        body = "\n".join([*lines, "return x"])
        blocks.append(f"block b{n}({INPUT}) -> float[batch, n, 8] {{\n{body}\n}}")
    return build_spec("\n".join([*masks, *blocks]), "x = b5(x)\ny = b4(x)")


@contextmanager
def iterate_audited(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """Yield the name, estimated and counted steps of each block and definition that runs."""
    foreseen: list[int] = []
    found: list[tuple[str, int, int]] = []
    expect, call_block, inside = (
        StepEstimator.check_remaining_steps,
        calls.call_block,
        mask_and_bias_definitions.enter_function_scope,
    )

    def noting(self: StepEstimator, item: Any, *rest: Any) -> None:
        foreseen.append(self.estimate_item_steps(item, *rest[:2]))
        expect(self, item, *rest)

    def called(context: Any, target: Any, *rest: Any) -> Any:
        before, at = context.resources.steps.spent, len(foreseen)
        made = call_block(context, target, *rest)
        found.append((target.name, foreseen[at], context.resources.steps.spent - before))
        return made

    @contextmanager
    def expanded(context: Any, held: Any) -> Iterator[None]:
        before, at = context.resources.steps.spent, len(foreseen)
        with inside(context, held):
            yield
        found.append((held.name, foreseen[at], context.resources.steps.spent - before))

    with monkeypatch.context() as patch:
        patch.setattr(StepEstimator, "check_remaining_steps", noting)
        patch.setattr(calls, "call_block", called)
        patch.setattr(mask_and_bias_definitions, "enter_function_scope", expanded)
        yield found


def list_overestimates(monkeypatch: pytest.MonkeyPatch, path: Path, seeds: range) -> list[Any]:
    """Return specs with an estimate above the count; for some they must be equal."""
    wrong, exact = [], 0
    for seed in seeds:
        path.write_text(make_random_spec(Random(seed)))
        with iterate_audited(monkeypatch) as found:
            check_spec(open_spec(str(path)))
        wrong += [(seed, *f) for f in found if f[1] > f[2]]
        exact += sum(2 * f[1] > f[2] for f in found)
    assert exact > 10 * len(seeds)
    return wrong


def test_an_estimate_is_at_most_the_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not list_overestimates(monkeypatch, tmp_path / "m.specc", range(6))


@pytest.mark.slow
def test_an_estimate_is_at_most_the_count_in_many_specs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not list_overestimates(monkeypatch, tmp_path / "m.specc", range(1000, 1600))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_CONFIGS)
def test_an_estimate_is_at_most_the_count_in_built_in_specs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {key.replace(".", "__"): value for key, value in SMALL_CONFIGS[name].items()}
    with iterate_audited(monkeypatch) as found:
        elaborate_with_config(name, **values)
    assert not [f for f in found if f[1] > f[2]]


def make_doubling_blocks(levels: int) -> str:
    """Return blocks that call the previous block twice, each call with its own weights."""
    first = f"block b0({INPUT}) -> float[batch, n, 8] {{ return linear(x, out=8) }}"
    step = "block b%d(" + INPUT + ") -> float[batch, n, 8] {{ return %s }}"
    blocks = [
        (step % (k, f"b{k - 1}(b{k - 1}(x) @ l) @ r")).replace("{{", "{").replace("}}", "}")
        for k in range(1, levels + 1)
    ]
    return build_spec("\n".join([first, *blocks]), f"y = b{levels}(x) @ all")


def test_estimated_work_above_the_budget_is_refused_at_once() -> None:
    """With the default budget, which takes many seconds to use up."""
    slow = {"loops over lists", "loops of nothing"}
    given = {n: t for n, t in (*list_mask_bombs(), *list_loop_bombs()) if n not in slow}
    given |= {n: t for n, t in sample_mixed_bombs(6, seed=3) if " in 4096" in t}
    given["doubling"] = make_doubling_blocks(60)
    made = run_with_limits(CHECK_PROGRAM, values={"bombs": given, "steps": 0}, seconds=60)
    late = {n: (c, s) for n, (c, s) in made["found"].items() if s > 1}
    assert not late
    assert made["found"]["doubling"][0] == "E0223"
    assert made["found"]["loops of scans"][0] == "E0223"
    assert made["megabytes"] < 300
