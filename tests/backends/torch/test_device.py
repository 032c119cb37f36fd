"""A module computes on the device of its parameters: it creates no tensors elsewhere and never
synchronizes.

The tests use PyTorch's `meta` device, whose tensors have shapes but no values, so that no GPU is
needed.
"""

import math
from pathlib import Path

import pytest

from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.graph import Graph

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

SMALL = ["vocab=17", "d=16", "heads=2", "layers=1", "hidden=24"]
SPECS = {
    "bert": [*SMALL, "context=32"],
    "gpt2": [*SMALL, "context=32"],
    "transformer": [*SMALL, "pad=0", "bos=1", "eos=2"],
    "encoder_decoder": [
        "vocab=17",
        "width=16",
        "heads=2",
        "norm=pre",
        "rope=rope(theta=100.0)",
        "pairs=half",
    ],
    "numbers": [],
    "vit": [
        "d=8",
        "heads=2",
        "layers=1",
        "hidden=16",
        "image=8",
        "patch=4",
        "channels=2",
        "classes=3",
    ],
    "dates": [],
    "lstm_lm": ["vocab=17", "width=6"],
    "luong_local_p": ["source_vocab=13", "embed_dim=5", "hidden=6", "layers=1", "reach=2"],
}
KINDS = {"f": torch.float32, "i": torch.int64, "b": torch.bool}


def make_meta_inputs(graph: Graph) -> dict[str, object]:
    """Return meta tensors for every input, with a distinct length per symbol."""
    symbols = sorted({s for v in graph.inputs.values() for d in v.type.shape for s in d.symbols()})
    lengths = {s: 3 + n for n, s in enumerate(symbols)}
    return {
        name: torch.empty(
            [d.evaluate(lengths) for d in value.type.shape],
            dtype=KINDS[value.type.dtype[0]],
            device=torch.device("meta"),
        )
        for name, value in graph.inputs.items()
    }


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_stays_on_its_device(name: str) -> None:
    described = elaborate_spec(open_spec(name, config_settings=SPECS[name]))
    module = specc_torch.SpecModule(described.graph, defaults=described.defaults).to("meta")
    given = make_meta_inputs(described.graph)
    absent = set(described.defaults.outputs) if described.defaults is not None else set()
    for left_out in (set(), absent):  # the defaults are computed there too
        found = module(**{n: x for n, x in given.items() if n not in left_out})
        assert all(x.is_meta for x in found.values())
        sum(x.sum() for x in found.values() if x.is_floating_point()).backward()
    assert all(
        p.grad is not None and p.grad.is_meta for p in module.parameters() if math.prod(p.shape)
    )


@pytest.mark.parametrize(("cell", "options"), [("gru", ", reset=after, update=old"), ("lstm", "")])
def test_fused_layer_is_called_in_training_mode(
    cell: str, options: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[bool] = []
    layer = getattr(torch, cell)
    monkeypatch.setattr(torch, cell, lambda *args: told.append(args[6]) or layer(*args))
    path = tmp_path / "rows.specc"
    path.write_text(
        f"specc 1\nmodel rows\ndims batch >= 1, n >= 1\n"
        "graph f(x: float[batch, n, 3]) -> (y: float[batch, n, 4]) {\n  return "
        f"{cell}(x, hidden=4{options})\n}}\n"
    )
    module = specc_torch.SpecModule(elaborate_spec(open_spec(str(path))).graph)
    module(x=torch.zeros(2, 5, 3))["y"].sum().backward()
    with torch.no_grad():
        module(x=torch.zeros(2, 5, 3))
    assert told == [True, False]
