"""For each head class that transformers offers for a supported family, its name in `architectures`
selects a graph with the outputs of that head.

The classes come from the auto-class tables of transformers, so that a new head makes this test
fail. No model is created.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.models.auto import modeling_auto

from specc.frontend.generate_stream_and_reading_sections import list_graph_blocks
from specc.frontend.spec_modules import Program, build_program
from specc.huggingface.model_family import (
    find_graph_for_architecture,
    find_spec_for_checkpoint,
    map_model_types_to_specs,
)
from specc.library.spec_file_lookup import SpecLibrary, find_builtin_specs, load_config_json

pytestmark = pytest.mark.parity

SCORES = frozenset({"logits"})
STATES = frozenset({"last_hidden_state"})
ANSWERS = frozenset({"start_logits", "end_logits"})
KINDS = {
    "": STATES,
    "FOR_CAUSAL_LM": SCORES,
    "FOR_MASKED_LM": SCORES,
    "FOR_SEQUENCE_CLASSIFICATION": SCORES,
    "FOR_TOKEN_CLASSIFICATION": SCORES,
    "FOR_MULTIPLE_CHOICE": SCORES,
    "FOR_QUESTION_ANSWERING": ANSWERS,
    "FOR_NEXT_SENTENCE_PREDICTION": frozenset(),
    "FOR_SEQ_TO_SEQ_CAUSAL_LM": SCORES,
    "FOR_SPEECH_SEQ_2_SEQ": SCORES,
    "FOR_CTC": SCORES,
    "FOR_AUDIO_CLASSIFICATION": SCORES,
    "FOR_AUDIO_FRAME_CLASSIFICATION": SCORES,
    "FOR_AUDIO_XVECTOR": frozenset({"logits", "embeddings"}),
    "FOR_TEXT_ENCODING": STATES,
    "FOR_IMAGE_TEXT_TO_TEXT": SCORES,
    "FOR_ZERO_SHOT_IMAGE_CLASSIFICATION": frozenset({"logits_per_image"}),
}
"""Tables of transformers by what they are called, and what such a head gives here."""
SEEING = frozenset(
    [
        "beit",
        "convnext",
        "deit",
        "detr",
        "dinov2",
        "dinov2_with_registers",
        "dinov3_vit",
        "segformer",
        "swin",
        "vit",
        "vit_mae",
        "yolos",
    ]
)
"""Types that see and neither read nor hear."""
OTHERWISE = {
    "EncodecModel": frozenset({"audio_codes", "audio_values"}),
    "FSMTModel": SCORES,  # its decoder ends with the table of words
    "CLIPModel": frozenset({"logits_per_image", "logits_per_text"}),
    "ClapModel": frozenset({"logits_per_audio", "logits_per_text"}),
    "AltCLIPModel": frozenset({"logits_per_image", "logits_per_text"}),
    "ChineseCLIPModel": frozenset({"logits_per_image", "logits_per_text"}),
    "CLIPSegModel": frozenset({"logits_per_image", "logits_per_text"}),
    "MetaClip2Model": frozenset({"logits_per_image", "logits_per_text"}),
    "SiglipModel": frozenset({"logits_per_image", "logits_per_text"}),
    "Siglip2Model": frozenset({"logits_per_image", "logits_per_text"}),
    "Blip2Model": SCORES,
    "BlipModel": frozenset({"logits_per_image", "logits_per_text"}),
    "OwlViTModel": frozenset({"logits_per_image", "logits_per_text"}),
    "Owlv2Model": frozenset({"logits_per_image", "logits_per_text"}),
    "Mask2FormerModel": frozenset({"transformer_decoder_last_hidden_state"}),
    "SamModel": frozenset({"iou_scores", "pred_masks"}),
    "DPRQuestionEncoder": frozenset({"pooler_output"}),  # as the class returns it
    "ParakeetForCTC": SCORES,  # also in the table of models without heads
    "TrOCRForCausalLM": SCORES,
    "VisionEncoderDecoderModel": SCORES,
}
"""Bodies that give something other than states."""
NOT_BUILT = {
    "Blip2ForImageTextRetrieval": "its Q-Former takes texts, which the spec's does not",
    "PerceiverModel": "what it gives hangs on a preprocessor and a decoder that no config.json names",
}
"""Classes that no graph is made for, each with its reason (docs/families.md)."""


SAVED_AS_DECODER = {("musicgen", "MusicgenForCausalLM"), ("musicgen", "MusicgenModel")}
"""Types and classes of transformers' tables whose checkpoints have the type of the decoder."""


def offered() -> Iterator[tuple[str, str, str]]:
    """Yield each kind of head, checkpoint type and class of transformers."""
    for kind in KINDS:
        table = getattr(modeling_auto, f"MODEL_{kind}_MAPPING_NAMES".replace("__", "_"))
        for name in sorted(map_model_types_to_specs().keys() - SEEING):
            found = table.get(name, ())
            for one in [found] if isinstance(found, str) else found:
                if (name, one) not in SAVED_AS_DECODER:
                    yield kind, name, one


OFFERED = list(offered())


@functools.cache
def program(spec: str) -> Program:
    """Parse a built-in spec once."""
    library = SpecLibrary()
    return build_program(library.load_module(find_builtin_specs()[spec], spec), library)


def results(directory: Path, kind: str, cls: str) -> set[str]:
    """Return the results of the graph that a config.json with this type and class selects."""
    config = {"model_type": kind, "architectures": [cls]}
    if kind == "timm_wrapper":
        config["architecture"] = "resnet50"
    (directory / "config.json").write_text(json.dumps(config))
    opened = program(find_spec_for_checkpoint(str(directory)))
    name = find_graph_for_architecture(opened, load_config_json(str(directory)))
    graph = next(g for g in list_graph_blocks(opened) if g.name == name)
    return {result.name for result in graph.results}


@pytest.mark.parametrize(
    ("kind", "name", "cls"), OFFERED, ids=[f"{k}-{n}-{c}" for k, n, c in OFFERED]
)
def test_a_class_selects_its_graph(kind: str, name: str, cls: str, tmp_path: Path) -> None:
    if cls in NOT_BUILT:
        pytest.skip(NOT_BUILT[cls])
    made = results(tmp_path, name, cls)
    assert made >= OTHERWISE.get(cls, KINDS[kind]), made


def test_exceptions_are_still_needed() -> None:
    """Each kind is offered by some family, and each exception is still offered."""
    assert {kind for kind, _, _ in OFFERED} == KINDS.keys()
    assert NOT_BUILT.keys() <= {cls for _, _, cls in OFFERED}
    assert map_model_types_to_specs().keys() >= SEEING
