"""The built-in functions `lstm`, `gru` and `rnn` match torch's nn.LSTM, nn.GRU and nn.RNN, with
packed sequences.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.elaborated_specs import assert_arrays_close, run_reference
from support.published_models import build_weighted_spec, list_module_weights, randomize_weights
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

pytestmark = pytest.mark.parity

SPEC = """\
specc 1
model m
dims batch, seq
graph f(x: float[batch, seq, 4], keep: keep[batch, seq],
        h: float[batch, {states}, {out}], c: float[batch, {states}, {hidden}])
    -> (out: float[batch, seq, _], last: float[batch, {states}, {out}], cell: float[batch, {states}, {hidden}]) {{
  {results} = {call} @ layer
  return out, last, {cell}
}}
"""
LENGTHS = [6, 1, 4]
KINDS = {
    "lstm": (nn.LSTM, {}, ""),
    "projected lstm": (nn.LSTM, {"proj_size": 3}, "proj=3, "),
    "gru": (nn.GRU, {}, "reset=after, "),
    "rnn": (nn.RNN, {}, ""),
    "relu rnn": (nn.RNN, {"nonlinearity": "relu"}, "act=relu, "),
}


def spec(kind: str, directory: Path, layers: int, both: bool, start: bool, bias: bool) -> str:
    word, states = kind.split()[-1], layers * (1 + both)
    starts = (", start=h, start_cell=c" if word == "lstm" else ", start=h") if start else ""
    direction = "both" if both else "forward"
    options = (
        f"hidden=5, {KINDS[kind][2]}layers={layers}, direction={direction}, "
        f"bias={str(bias).lower()}"
    )
    text = SPEC.format(
        states=states,
        hidden=5,
        out=3 if "projected" in kind else 5,
        results="out, last, cell" if word == "lstm" else "out, last",
        cell="cell" if word == "lstm" else "c + 0.0",
        call=f"{word}(x, {options}, keep=keep{starts})",
    )
    (directory / "m.specc").write_text(text)
    return str(directory / "m.specc")


def packed(
    layer: nn.Module, x: Mapping[str, np.ndarray[Any, Any]], start: bool
) -> dict[str, np.ndarray[Any, Any]]:
    """Return what torch computes for packed sequences."""
    lstm = isinstance(layer, nn.LSTM)
    h, c = (torch.from_numpy(x[n]).transpose(0, 1).contiguous() for n in "hc")
    rows = pack_padded_sequence(
        torch.from_numpy(x["x"]), torch.tensor(LENGTHS), True, enforce_sorted=False
    )
    with torch.no_grad():
        found, last = layer(rows, ((h, c) if lstm else h) if start else None)
        out, _ = pad_packed_sequence(found, True, total_length=x["x"].shape[1])
    ends = last if lstm else (last, c)
    return {
        "out": out.numpy(),
        **{n: e.transpose(0, 1).numpy() for n, e in zip(("last", "cell"), ends, strict=True)},
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "both", "start", "bias"),
    [
        (1, False, False, True),
        (2, True, True, True),
        (3, False, True, False),
        (1, True, False, False),
    ],
)
def test_packed_sequences(
    kind: str, layers: int, both: bool, start: bool, bias: bool, tmp_path: Path
) -> None:
    """The reference in float64 and the compiled model in float32, padded on either side."""
    make, options, _ = KINDS[kind]
    theirs = randomize_weights(
        make(4, 5, num_layers=layers, bidirectional=both, bias=bias, batch_first=True, **options)
    )
    ours = build_weighted_spec(
        spec(kind, tmp_path, layers, both, start, bias),
        list_module_weights(theirs, "layer."),
        tmp_path,
    )
    theirs.double()
    rng, states = np.random.default_rng(0), layers * (1 + both)
    given = {
        "x": rng.standard_normal((3, 7, 4)),
        "keep": np.arange(7)[None] < np.array(LENGTHS)[:, None],
        "h": rng.standard_normal((3, states, 3 if options.get("proj_size") else 5)),
        "c": rng.standard_normal((3, states, 5)),
    }
    given = {
        k: v.astype(np.float32).astype(np.float64) if v.dtype.kind == "f" else v
        for k, v in given.items()
    }
    wanted = packed(theirs, given, start)
    moved = {**given, "x": given["x"].copy(), "keep": given["keep"][:, ::-1]}
    for row, n in enumerate(LENGTHS):
        moved["x"][row, 7 - n :] = given["x"][row, :n]
    for side, inputs in (("right", given), ("left", moved)):
        reference = run_reference(ours.spec, ours.weights, inputs)
        compiled = ours.compiled.run(
            **{k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in inputs.items()}
        )
        for name in ("out", "last", "cell"):
            theirs_here = wanted[name].copy()
            if name == "out" and side == "left":
                for row, n in enumerate(LENGTHS):
                    theirs_here[row] = np.roll(wanted[name][row], 7 - n, axis=0)
            assert_arrays_close(reference[name], theirs_here, f"{name}, {side}, reference", 1e-9)
            assert_arrays_close(compiled[name], theirs_here, f"{name}, {side}, compiled", 1e-5)
