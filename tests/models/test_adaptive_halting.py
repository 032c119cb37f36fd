"""Layers in a loop with early exit and causal attention: a halted position still provides keys for
later positions, and when all are done an iteration computes keys and values only.
"""

from pathlib import Path

import onnx
import pytest
from support.decode_steps import measure_step_difference

import specc
from specc.ir import ops
from specc_onnx.lower import loop
from specc_onnx.lower.onnx_values import OnnxValue

PROMPTS = [[2, 3, 5], [7], [4, 6]]

SPEC = """specc 1
model halting
config { vocab: int = 11  d: int = 8 }
dims batch, src, n
graph g(ids: int[batch, n], memory: float[batch, src, d], keep: keep[batch, n] = ids >= 0)
    -> (logits: float[batch, n, vocab]) {
  x = 30.0 * (embedding(ids, size=vocab, dim=d) @ table)
  seen = 0.0 * x
  done = not keep
  scan %s carry x, seen, done%s until all(done) {
    %s
    done = max(abs(x), axis=2) > %s
  }
  return 9.0 * linear(x + seen, out=vocab) @ out
}
generate text of ids from logits { start = 2  stop = 1 }
"""
EXIST = "insert(cast(keep, to=float), axis=2)"
BODIES = {
    "attention": "x = 1.3 * x + (attention(x, heads=2, mask=causal & visible(keep)) @ a)\n    seen = seen + x",
    "window": "x = 1.3 * x + 0.5 * (attention(x, heads=2, mask=window(3) & visible(keep)) @ a)\n    seen = tanh(x)",
    "delay": f"x = 1.3 * x + delay(x * {EXIST}, by=2)\n    seen = 0.5 * seen + x",
    "sum": f"x = 1.1 * x + 0.1 * cumsum({EXIST} * x, axis=1)\n    seen = seen + x",
}


def package(directory: Path, body: str, turn: int, far: float = 4.0) -> Path:
    rows = "row in memory along src" if turn else "step in 6"
    more = " reverse" if turn == 1 else ""
    carry = BODIES[body].replace("x =", "x = insert(row, axis=1) +" if turn else "x =", 1)
    (directory / "m.specc").write_text(SPEC % (rows, more, carry, far), encoding="utf-8")
    target = "onnx" if turn == 2 else "ort-cpu"
    opset = (23, 17, 21)[turn]
    specc.compile(
        directory / "m.specc",
        directory / "out",
        init=3,
        graphs=["score", "step", "encode"] if turn else ["score", "step"],
        target=target,
        opset=opset,
    )
    return directory / "out"


@pytest.mark.parametrize(
    ("body", "turn"),
    [
        pytest.param(body, turn, marks=() if turn == n else (pytest.mark.parity,))
        for n, body in enumerate(BODIES)
        for turn in range(3)
    ],
)
def test_steps_give_the_logits_of_full_passes(tmp_path: Path, body: str, turn: int) -> None:
    assert measure_step_difference(package(tmp_path, body, turn), PROMPTS) <= 1e-5


def test_missing_keys_of_halted_positions_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted mistake: an iteration in which all are done computes nothing."""
    kept = loop._lower_body_with_early_exit

    def nothing(op: ops.Scan, g: loop.Emitter) -> list[OnnxValue]:
        made = kept(op, g)
        is_done = op.split_body_inputs().initial_carries[op.end_condition_index]
        left = loop._emit_any_unfinished(g.values.tensors[is_done])
        return [
            value if n < op.carry_count else left.where(value, 0) for n, value in enumerate(made)
        ]

    monkeypatch.setattr(loop, "_lower_body_with_early_exit", nothing)
    assert measure_step_difference(package(tmp_path, "attention", 0), PROMPTS) > 1e-3


def test_halted_positions_skip_all_but_keys_and_values(tmp_path: Path) -> None:
    """Every iteration computes keys and values; queries, scores and outputs only for positions that
    are not done.
    """
    model = onnx.load(package(tmp_path, "attention", 0) / "step.onnx")
    (turns,) = (n for n in model.graph.node if n.op_type == "Loop")
    (branch,) = (n for n in turns.attribute[0].g.node if n.op_type == "If")
    branches = {a.name: a.g.node for a in branch.attribute}
    going, over = branches["then_branch"], branches["else_branch"]
    products = [
        [w for n in nodes for w in n.input if w.endswith("proj.weight")]
        for nodes in (turns.attribute[0].g.node, going, over)
    ]
    assert [len(p) for p in products] == [2, 2, 0]
    assert not any("q_proj" in w or "out_proj" in w for w in products[0])
