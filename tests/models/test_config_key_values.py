"""Values of config.json keys that transformers' config classes accept besides the usual ones."""

import json
from pathlib import Path

import pytest
from support.small_configs import SMALL_CONFIGS

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir.ir_printer_and_lexer import format_ir


def print_graph(directory: Path, spec: str, config: dict[str, object]) -> str:
    """Return the IR of a small model with the values of `config` in its config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    sets = [f"{name}={json.dumps(value)}" for name, value in SMALL_CONFIGS[spec].items()]
    return format_ir(elaborate_spec(open_spec(spec, config=str(path), config_settings=sets)).graph)


@pytest.mark.parametrize("value", ["absent", None, True, False])
@pytest.mark.parametrize("scale", ["absent", True, False])
def test_scale_of_the_t5_lm_head(scale: object, value: object, tmp_path: Path) -> None:
    """`T5Config` scales unless `tie_word_embeddings` is false, and `scale_decoder_outputs` has
    precedence.
    """
    keys = {"scale_decoder_outputs": scale, "tie_word_embeddings": value}
    config = {"model_type": "t5"} | {k: v for k, v in keys.items() if v != "absent"}
    is_scaled = value is not False if scale == "absent" else scale
    expected = {"model_type": "t5", "scale_decoder_outputs": is_scaled}
    assert print_graph(tmp_path, "t5", config) == print_graph(tmp_path, "t5", expected)


GROUNDING_DINO: dict[str, object] = {"model_type": "grounding-dino", "text_config": {}}


def test_negative_out_indices_of_grounding_dino(tmp_path: Path) -> None:
    first, second = (
        print_graph(
            tmp_path,
            "grounding_dino",
            GROUNDING_DINO | {"backbone_config": {"out_indices": indices}},
        )
        for indices in ([-2, -1], [3, 4])
    )
    assert first == second


def test_out_features_without_out_indices_of_grounding_dino(tmp_path: Path) -> None:
    config = GROUNDING_DINO | {"backbone_config": {"out_features": ["stage3", "stage4"]}}
    with pytest.raises(SpeccError, match="out_features and out_indices") as failed:
        print_graph(tmp_path, "grounding_dino", config)
    assert failed.value.diagnostics[0].code == "E0404"
