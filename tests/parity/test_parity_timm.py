"""Networks of timm from directories saved by transformers' TimmWrapper classes, and with the names
and the config.json of timm itself. The tests need timm, which the other tests do not.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from support.elaborated_specs import elaborate_with_config
from support.hf_cases import ModelCase, check_model_outputs
from support.padded_batches import FixedValues, make_samples

import specc
from specc.huggingface.model_family import read_expected_config_values
from specc.library.spec_file_lookup import find_builtin_specs

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed"),
]

VIT: dict[str, Any] = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": 48}
CASES = {
    "vit": ("vit_tiny_patch16_224", VIT),
    "vit, patch 8": ("vit_base_patch8_224", {**VIT, "depth": 1, "img_size": 24}),
    "deit": ("deit_small_patch16_224", VIT),
    "resnet, basic": ("resnet18", {"layers": [1, 2, 1, 1], "channels": [8, 12, 16, 20]}),
    "resnet, bottleneck": ("resnet50", {"layers": [2, 1, 1, 1], "channels": [8, 8, 12, 16]}),
    "convnext": ("convnext_tiny", {"depths": [1, 2, 1, 1], "dims": [8, 12, 16, 20]}),
    "deit, distilled": ("deit_small_distilled_patch16_224", VIT),
}


def make_case(name: str, model: str = "ForImageClassification") -> ModelCase:
    architecture, model_args = CASES[name]
    size = model_args.get("img_size", 64)
    return ModelCase(
        config="TimmWrapperConfig",
        model=f"TimmWrapper{model}",
        tiny={
            "architecture": architecture,
            "model_args": model_args,
            "num_labels": 5,
            "pretrained_cfg": {"input_size": [3, size, size]},
        },
        samples=make_samples({"pixel_values": FixedValues((3, size, size))}, {}),
        results={"logits": ""}
        if model != "Model"
        else {"last_hidden_state": "", "pooler_output": ""},
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("model", ["ForImageClassification", "Model"])
def test_outputs(name: str, model: str, tmp_path: Path) -> None:
    check_model_outputs(make_case(name, model), tmp_path)


@pytest.mark.parametrize("name", ["deit, distilled", "resnet, basic", "convnext"])
def test_files_of_timm(name: str, tmp_path: Path) -> None:
    """Directories that timm publishes: no model type, no class, and names without a prefix."""
    case = make_case(name)
    hf_model = case.save_checkpoint(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    kept = {
        key: saved[key] for key in ("architecture", "num_classes", "model_args", "pretrained_cfg")
    }
    (tmp_path / "config.json").write_text(
        json.dumps({**kept, "num_features": 16, "global_pool": "avg"})
    )
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {n.removeprefix("timm_model."): np.ascontiguousarray(w) for n, w in weights.items()},
        tmp_path / "model.safetensors",
    )
    specc.compile(tmp_path, tmp_path / "m.onnx")
    pixels = case.samples.make_batch()["pixel_values"]
    with torch.no_grad():
        expected = hf_model(torch.tensor(pixels)).logits.numpy()
    actual = specc.load(tmp_path / "m.onnx").run(pixel_values=pixels)["logits"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("spec", ["timm_convnext", "timm_resnet", "timm_vit"])
def test_shapes_of_every_architecture(spec: str) -> None:
    import timm

    for architecture in read_expected_config_values(find_builtin_specs()[spec], "architecture"):
        with torch.device("meta"):
            network = timm.create_model(architecture, pretrained=False, num_classes=1000)
        expected = {
            f"timm_model.{name}": list(value.shape)
            for name, value in network.state_dict().items()
            if not name.endswith("num_batches_tracked")
        }
        graph = elaborate_with_config(spec, architecture=f'"{architecture}"').model.graph
        actual = {n: [d.number for d in v.type.shape] for n, v in graph.parameters.items()}
        assert actual == expected, architecture
        size = network.default_cfg["input_size"]
        assert [d.number for d in graph.inputs["pixel_values"].type.shape[1:]] == [*size]
