"""The training API of `specc_torch`: modules of a spec, data sets, and weights that compile."""

from pathlib import Path

import numpy as np
import pytest

import specc

torch = pytest.importorskip("torch")
specc_torch = pytest.importorskip("specc_torch")
pytestmark = pytest.mark.parity

DIGITS = Path(__file__).parents[3] / "docs" / "demos" / "digits"
PICTURES = [("seven", "7"), ("three", "3"), ("nine", "9"), ("two", "2")]
ROWS = [{"pixel_values": str(DIGITS / f"{n}.png"), "logits": label} for n, label in PICTURES]
TIED = {"width": 16, "heads": 2, "vocab": 20, "encoder": {"layers": 1}, "decoder": {"layers": 1}}


def test_compiled_model_equals_the_trained_module(tmp_path: Path) -> None:
    """Compare the module and the model compiled from its weights to 1e-5."""
    model = specc_torch.module("digits", init=3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(3):
        for inputs, wanted in specc_torch.Dataset(model, ROWS).loader(2):
            logits = model(**inputs)["logits"]
            loss = torch.nn.functional.cross_entropy(logits, wanted["logits"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert min(losses[-2:]) < losses[0]
    specc_torch.save(model, tmp_path / "trained.safetensors")
    specc.compile("digits", tmp_path / "d.onnx", weights=tmp_path / "trained.safetensors")
    inputs, _ = specc_torch.batch(model, ROWS)
    ours = specc.load(tmp_path / "d.onnx").run(pixel_values=inputs["pixel_values"].numpy())[
        "logits"
    ]
    theirs = model(**inputs)["logits"].detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_module_starts_from_the_weights_of_the_spec() -> None:
    model = specc_torch.module("digits")
    inputs, wanted = specc_torch.batch(model, ROWS)
    assert model(**inputs)["logits"].argmax(-1).tolist() == wanted["logits"].tolist()
    fresh = specc_torch.module("digits", init=0)
    assert not torch.equal(next(iter(fresh.parameters())), next(iter(model.parameters())))


def test_seed_gives_the_weights_of_compile(tmp_path: Path) -> None:
    specc.compile(
        "vit",
        tmp_path / "v.onnx",
        init=5,
        set=(small := {"d": 12, "heads": 2, "layers": 1, "image": 8, "patch": 4}),
    )
    there = specc.load(tmp_path / "v.onnx").weights()
    here = specc_torch.module("vit", init=5, set=small).named_spec_parameters()
    for name, parameter in here:
        np.testing.assert_array_equal(parameter.detach().numpy(), there[name])


def test_ties_are_kept() -> None:
    model = specc_torch.module("encoder_decoder", set=TIED)
    named = dict(model.named_spec_parameters())
    assert named["output_projection.weight"] is named["encoder.embed_tokens.weight"]
    assert sum(p is named["output_projection.weight"] for p in model.parameters()) == 1


def test_spec_source_text_is_accepted(tmp_path: Path) -> None:
    text = (
        "specc 1\nmodel m\ngraph g(x: float[3]) -> (y: float[2]) { return linear(x, out=2) @ w }\n"
    )
    model = specc_torch.module(text)
    assert {n for n, _ in model.named_parameters()} == {"w.weight", "w.bias"}
    inputs, wanted = specc_torch.batch(
        specc_torch.module(text.replace("[3]", "[b, 3]").replace("[2]", "[b, 2]").replace("graph", "dims b\ngraph")),
        [{"x": [1.0, 2.0, 3.0], "y": [0.5, 1.5]}, {"x": [0, 0, 1], "y": [1, 2]}],
    )  # fmt: skip
    assert inputs["x"].shape == (2, 3)
    assert wanted["y"].dtype == torch.float32


def test_mixed_integers_and_floats_are_floats() -> None:
    text = "specc 1\nmodel m\ndims b\ngraph g(x: float[b, 1]) -> (y: float[b, 1]) { return linear(x, out=1) @ w }\n"
    _, wanted = specc_torch.batch(
        specc_torch.module(text), [{"x": [1], "y": [2]}, {"x": [1], "y": [0.5]}]
    )
    assert wanted["y"].tolist() == [[2.0], [0.5]]


def test_data_loader_workers() -> None:
    data = specc_torch.Dataset(specc_torch.module("digits"), ROWS)
    one, two = (list(data.loader(2, seed=4, num_workers=n)) for n in (0, 1))
    for (a, b), (c, d) in zip(one, two, strict=True):
        assert torch.equal(a["pixel_values"], c["pixel_values"])
        assert torch.equal(b["logits"], d["logits"])


def test_examples_of_another_library() -> None:
    class Other:
        def __len__(self) -> int:
            return len(ROWS)

        def __getitem__(self, index: int) -> dict[str, str]:
            return ROWS[index]

    model = specc_torch.module("digits")
    one = list(specc_torch.Dataset(model, Other()).loader(3, shuffle=False))
    other = list(specc_torch.Dataset(model, iter(ROWS)).loader(3, shuffle=False))
    for (a, _), (b, _) in zip(one, other, strict=True):
        assert torch.equal(a["pixel_values"], b["pixel_values"])
    with pytest.raises(specc.SpeccError, match=r"E0946[\s\S]*to_dict"):
        specc_torch.Dataset(model, ROWS[0])


def test_wrapped_module_is_saved(tmp_path: Path) -> None:
    model = specc_torch.module("xor", init=1)
    around = torch.nn.DataParallel(model)
    specc_torch.save(around, tmp_path / "a.safetensors")
    specc_torch.save(model, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_check_output_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").write_bytes(b"somebody else's")
    specc_torch.check_output_path(tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()
    for path, code in (("mine.safetensors", "E0833"), ("x.bin", "E0816"), (".", "E0811")):
        with pytest.raises(specc.SpeccError, match=code):
            specc_torch.check_output_path(tmp_path / path)
    specc_torch.check_output_path(tmp_path / "mine.safetensors", force=True)


def test_missing_weights_are_initialized_by_a_seed(tmp_path: Path) -> None:
    text = "specc: 1\nmodel: m\nextends: xor\nweights:\n  - from: mine.safetensors\n"
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(specc.SpeccError, match=r"E0802[\s\S]*init=0"):
        specc_torch.module(tmp_path / "m.yaml")
    model = specc_torch.module(tmp_path / "m.yaml", init=0)
    specc_torch.save(model, tmp_path / "mine.safetensors")
    again = specc_torch.module(tmp_path / "m.yaml")
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: specc_torch.module("digts"), "E0222"),
        (lambda: specc_torch.module(5), "E0820"),
        (lambda: specc_torch.module("digits", init="1"), "E0820"),
        (lambda: specc_torch.module("digits", graph="x"), "E0219"),
        (lambda: specc_torch.module("digits", init=1, weights="x"), "E0525"),
        (lambda: specc_torch.module("digits", weights="nowhere"), "E0802"),
        (lambda: specc_torch.Dataset(torch.nn.Linear(1, 1), []), "E0820.*Linear"),
        (
            lambda: specc_torch.batch(
                specc_torch.SpecModule(specc_torch.module("xor").graph), [{}]
            ),
            "E0820",
        ),
    ],
)
def test_errors_have_codes(call: object, code: str) -> None:
    assert callable(call)
    with pytest.raises(specc.SpeccError, match=code):
        call()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit, in torch.compile itself
def test_torch_compile_ends(tmp_path: Path) -> None:
    """The module stays uncompiled: Dynamo traced the interpreter for over 200 s."""
    spec = tmp_path / "m.specc"
    spec.write_text(
        "specc 1\nmodel m\ndims batch, n\n"
        "graph g(x: float[batch, n, 8]) -> (y: float[batch, n, 8]) {\n"
        "  return x + (attention(x, heads=2, mask=causal) @ a)\n}\n"
    )
    model = specc_torch.module(str(spec))
    x = torch.randn(2, 3, 8)
    assert torch.equal(torch.compile(model)(x=x)["y"], model(x=x)["y"])
