"""Every op in PyTorch equals the reference and propagates gradients."""

import numpy as np
import pytest
from support.op_examples import EXAMPLES, OpExample, build_example_graph

import specc_numpy
from specc.ir import ops
from specc.ir.op import OPS_BY_NAME

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity


def test_every_op_has_a_rule() -> None:
    assert not {*OPS_BY_NAME.values()} - specc_torch.evaluate.rules.keys()


@pytest.fixture(autouse=True)
def use_double_default() -> object:
    """A module without parameters computes in PyTorch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_ops_equal_the_reference(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    module = specc_torch.SpecModule(graph).eval()
    for seed in range(3):
        drawn = example.sample_operands(np.random.default_rng(seed))
        given = {f"x{n}": x for n, x in enumerate(drawn) if x is not None}
        found = module(**given)
        for name, expected in specc_numpy.evaluate_graph(graph, given, {}).items():
            assert found[name].shape == expected.shape
            assert found[name].numpy().dtype == expected.dtype
            np.testing.assert_allclose(found[name].numpy(), expected, rtol=1e-11, atol=1e-12)


SMOOTH = (
    ops.Linear, ops.Embedding, ops.LayerNorm, ops.RMSNorm, ops.Softmax, ops.MaskedSoftmax, ops.WeightedSum, ops.Attend,
    ops.PatchEmbedding, ops.Conv, ops.ConvTranspose, ops.AveragePool,
    ops.Rotate, ops.Gather, ops.TopK, ops.Delay, ops.CumSum, ops.Einsum, ops.MatMul, ops.Scan,
    ops.MixtureOfExperts, ops.Rnn, ops.Gru, ops.Lstm,
)  # fmt: skip
"""The ops between a loss and its weights whose derivative exists everywhere."""


@pytest.mark.parametrize(
    "example",
    [
        e
        for e in EXAMPLES
        if isinstance(e.op, SMOOTH) and any(o and o.dtype == "f64" for o in e.operands)
    ],
    ids=str,
)
def test_gradients_equal_finite_differences(example: OpExample) -> None:
    graph, _ = build_example_graph(example)
    module = specc_torch.SpecModule(graph).eval()
    drawn = {
        f"x{n}": torch.as_tensor(x)
        for n, x in enumerate(example.sample_operands(np.random.default_rng(0)))
        if x is not None
    }
    moved = {n: x.double().requires_grad_() for n, x in drawn.items() if x.is_floating_point()}

    def results(*values: object) -> tuple[object, ...]:
        made = module(**{**drawn, **dict(zip(moved, values, strict=True))})
        return tuple(x for x in made.values() if x.requires_grad)

    assert torch.autograd.gradcheck(results, tuple(moved.values()))


def test_query_without_visible_keys_has_no_nan_gradient() -> None:
    example = next(e for e in EXAMPLES if isinstance(e.op, ops.MaskedSoftmax))
    graph, _ = build_example_graph(example)
    scores, mask = (torch.as_tensor(x) for x in example.sample_operands(np.random.default_rng(0)))
    scores.requires_grad_()
    result = specc_torch.SpecModule(graph)(x0=scores, x1=torch.zeros_like(mask))["y0"]
    result.sum().backward()
    assert not result.any()
    assert not scores.grad.any()
