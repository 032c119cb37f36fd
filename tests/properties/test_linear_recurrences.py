"""Random linear recurrences as specs: the compiled model, which computes long sequences in chunks,
agrees with the equation evaluated position by position in float64.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.ir.array import Array

HEADS, KEY, VALUE = 2, 3, 5
LENGTHS = (1, 16, 17, 64, 65, 130)


@dataclass(frozen=True)
class Recurrence:
    """The choices of one recurrence."""

    keys_first: bool
    decay: str
    delta: str
    masked: bool
    shared_keys: bool
    results: int
    einsum: bool

    @classmethod
    def draw(cls, random: Random) -> "Recurrence":
        return cls(
            keys_first=random.random() < 0.6,
            decay=random.choice(["none", "exp", "sigmoid", "outside", "fixed"]),
            delta=random.choice(["none", "plain", "rate", "swapped"]),
            masked=random.random() < 0.6,
            shared_keys=random.random() < 0.3,
            results=random.choice([1, 1, 2]),
            einsum=random.random() < 0.4,
        )

    def spec(self) -> str:
        key_axis, value_axis = (3, 2) if self.keys_first else (2, 3)
        key_heads = 1 if self.shared_keys else HEADS
        decay = {
            "none": "state",
            "exp": "insert(insert(exp(g_t), axis=2), axis=3) * state",
            "sigmoid": "state * insert(insert(sigmoid(g_t), axis=2), axis=3)",
            "outside": "insert(insert(g_t, axis=2), axis=3) * state",
            "fixed": "fixed * state",
        }[self.decay]
        read = f"sum(state * insert(k_t, axis={key_axis}), axis={2 if self.keys_first else 3})"
        reads = [
            f"y{n} = sum(state * insert({n + 1}.0 * q_t, axis={key_axis}), axis={2 if self.keys_first else 3})"
            for n in range(self.results)
        ]
        state = f"insert(k_t, axis={key_axis}) * insert(u, axis={value_axis})"
        if self.einsum:
            axes = "h k e" if self.keys_first else "h e k"
            keys = "k_t" if not self.shared_keys else f"expand(k_t, axis=1, length={HEADS})"
            read = f'einsum("b {axes}, b h k -> b h e", state, {keys})'
            reads = [
                f'y{n} = einsum("b {axes}, b h k -> b h e", state, {n + 1}.0 * {keys.replace("k_t", "q_t")})'
                for n in range(self.results)
            ]
            state = f'einsum("b h k, b h e -> b {axes}", {keys}, u)'
        written = {
            "none": "v_t",
            "plain": f"v_t - {read}",
            "rate": f"insert(sigmoid(rate_t), axis=2) * (v_t - {read})",
            "swapped": f"(v_t - {read}) * insert(sigmoid(rate_t), axis=2)",
        }[self.delta]
        names = ", ".join(f"y{n}" for n in range(self.results))
        outputs = ", ".join(f"y{n}: float[batch, n, {HEADS}, {VALUE}]" for n in range(self.results))
        axes = (KEY, VALUE) if self.keys_first else (VALUE, KEY)
        return f"""specc 1
model recurrence
dims batch >= 0, n >= 0

graph main(q: float[batch, n, {key_heads}, {KEY}], k: float[batch, n, {key_heads}, {KEY}],
           v: float[batch, n, {HEADS}, {VALUE}], g: float[batch, n, {HEADS}],
           rate: float[batch, n, {HEADS}], mask: keep[batch, n]) -> ({outputs}) {{
  state = zeros(shape=[batch, {HEADS}, {axes[0]}, {axes[1]}])
  fixed = exp(-0.1 * float(range({HEADS}) + 1))[none, :, none, none]
  {"g = exp(g)" if self.decay == "outside" else ""}
  scan q_t, k_t, v_t, g_t, rate_t in q, k, v, g, rate along n carry state collect {names}{" keep mask" if self.masked else ""} {{
    state = {decay}
    u = {written}
    state = state + {state}
    {chr(10).join(reads)}
  }}
  return {names}
}}
"""

    def compute(self, given: dict[str, Array]) -> Array:
        """Return the first result of the equation, in float64."""
        q, k, v, g, rate = (given[n].astype(np.float64) for n in ("q", "k", "v", "g", "rate"))
        q, k = (np.broadcast_to(x, (*v.shape[:3], KEY)) for x in (q, k))
        fixed = np.exp(-0.1 * np.arange(1, HEADS + 1))
        decay = {
            "none": np.ones_like(g),
            "exp": np.exp(g),
            "sigmoid": 1 / (1 + np.exp(-g)),
            "outside": np.exp(g),
            "fixed": np.broadcast_to(fixed, g.shape),
        }[self.decay]
        beta = 1 / (1 + np.exp(-rate)) if self.delta in ("rate", "swapped") else np.ones_like(g)
        result = np.zeros(v.shape)
        for row in range(v.shape[0]):
            state = np.zeros((HEADS, KEY, VALUE))
            for t in range(v.shape[1]):
                if self.masked and not given["mask"][row, t]:
                    continue
                state = decay[row, t][:, None, None] * state
                u = v[row, t]
                if self.delta != "none":
                    u = beta[row, t][:, None] * (u - np.einsum("hke,hk->he", state, k[row, t]))
                state = state + np.einsum("hk,he->hke", k[row, t], u)
                result[row, t] = np.einsum("hke,hk->he", state, q[row, t])
        return result


def make_inputs(
    random: np.random.Generator, batch: int, length: int, heads: int
) -> dict[str, Array]:
    def normal(*shape: int) -> Array:
        return random.standard_normal((batch, length, *shape)).astype(np.float32)

    mask = random.random((batch, length)) < 0.8
    mask[0] = True
    # normalized keys, as in models: otherwise a delta rule diverges; some are nearly equal
    k = normal(heads, KEY)
    k += random.choice([0, 1000]) * k[:, :1]
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g = -np.abs(normal(HEADS)) * random.choice([0.01, 1, 20])
    return {"q": normal(heads, KEY), "k": k, "v": normal(HEADS, VALUE), "g": g.astype(np.float32), "rate": normal(HEADS), "mask": mask}  # fmt: skip


def branch_names(path: Path) -> set[str]:
    nodes = onnx.load(path).graph.node
    return {a.g.name for n in nodes if n.op_type == "If" for a in n.attribute}


@pytest.mark.parametrize("seed", sample_sweep(range(24)))
def test_chunks_agree_with_the_equation(seed: int, tmp_path: Path) -> None:
    recurrence = Recurrence.draw(Random(seed))
    specc.compile(recurrence.spec(), tmp_path / "m.onnx")
    assert any("chunks" in name for name in branch_names(tmp_path / "m.onnx"))
    model = specc.load(tmp_path / "m.onnx")
    random = np.random.default_rng(seed)
    for length in LENGTHS:
        given = make_inputs(random, 3, length, 1 if recurrence.shared_keys else HEADS)
        wanted = recurrence.compute(given)
        for name in given.keys() - {"mask"} if recurrence.masked else ():
            given[name][~given["mask"]] = 1e30  # skipped positions have no effect
        made = model.run(**given)
        for n in range(recurrence.results):
            assert np.abs(made[f"y{n}"] / (n + 1) - wanted).max() <= 2e-6 * np.abs(wanted).max()
    for batch, length in ((0, 20), (2, 0)):
        given = make_inputs(random, 2, 20, 1 if recurrence.shared_keys else HEADS)
        made = model.run(**{name: x[:batch, :length] for name, x in given.items()})
        assert made["y0"].shape == (batch, length, HEADS, VALUE)


EXP = "insert(insert(exp(g_t), axis=2), axis=3) * state"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("exp(g_t)", "g_t"),  # may be negative
        ("exp(g_t)", "exp(g_t + sum(sum(state, axis=3), axis=2))"),
        ("state = state + insert", "state = tanh(state) + insert"),
        ("y0 = sum(state", "y0 = sum(2.0 * state"),
    ],
)
def test_other_loops_run_position_by_position(old: str, new: str, tmp_path: Path) -> None:
    text = Recurrence(True, "exp", "none", False, False, 1, False).spec()
    assert old in text
    specc.compile(text.replace(old, new), tmp_path / "m.onnx")
    assert not any("chunks" in name for name in branch_names(tmp_path / "m.onnx"))
