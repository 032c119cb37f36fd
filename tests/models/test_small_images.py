"""The error for an image that is too small names the config value, not a window deep in the spec."""

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec

pytestmark = pytest.mark.parity
SEEING = {
    **dict.fromkeys(
        ["beit", "clip_vision", "convnext", "deit", "dinov2", "dinov3_vit", "idefics3_vision", "segformer", "siglip_vision", "vit",
         "vit_segmenter", "yolos"], "image"),
    **dict.fromkeys(["clip", "gemma3", "idefics3", "internvl", "llava", "paligemma", "siglip"], "vision.image"),
}  # fmt: skip


@pytest.mark.parametrize("spec", SEEING)
@pytest.mark.parametrize("side", [2, 15])
def test_a_too_small_image_is_reported_by_its_config_value(spec: str, side: int) -> None:
    if (spec, side) == ("dinov2", 15):
        side = 13  # an image of 15 pixels contains one patch of 14
    with pytest.raises(SpeccError, match="E0404") as failed:
        check_spec(open_spec(spec, config_settings=[f"{SEEING[spec]}={side}"]))
    assert "E0320" not in [d.code for d in failed.value.diagnostics]
