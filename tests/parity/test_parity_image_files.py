"""Images whose number of tokens depends on their size: pixel values, token ids and generated text
from image files equal those of the processors of transformers.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.hf_cases import MAX_NEW_TOKENS, cut_at_stop
from support.preprocessing_records import parse_input_record
from support.published_models import randomize_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.pixtral import image_processing_pil_pixtral
from transformers.models.smolvlm import processing_smolvlm
from transformers.processing_utils import ProcessorMixin

import specc
from specc.cli.main import main
from specc.huggingface.image_processor_config import read_image_options
from specc.preprocessing.image_tiles_and_patches import preprocess_image
from specc.preprocessing.preprocessing_records import ImageConfig

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SIZES = [
    (1, 1), (2, 1), (1, 7), (3, 3), (16, 16), (8, 24), (9, 5), (40, 3), (5, 90), (60, 40), (37, 91), (128, 128), (301, 17),
    (64, 63), (33, 160), (500, 700), (1200, 31),
]  # fmt: skip
"""Heights and widths; some have extreme aspect ratios."""


def write_image(directory: Path, size: tuple[int, int]) -> Path:
    """Write an image with edges and noise."""
    path = directory / f"{size[0]}x{size[1]}.png"
    pixels = np.random.default_rng(size).integers(0, 256, (*size, 3), dtype=np.uint8)
    pixels[: size[0] // 2, size[1] // 3 :] //= 4
    Image.fromarray(pixels).save(path)
    return path


@dataclass(frozen=True)
class Layout:
    """An image processor with its settings, and the options of the spec. `most_ratio` is the
    largest aspect ratio that it takes.
    """

    processor: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    shape: str = ""
    most_ratio: float = 1e9
    sizes: Sequence[tuple[int, int]] = tuple(SIZES)


PINPOINTS = [[8, 16], [16, 8], [16, 16], [24, 8]]
QWEN = {"sizing": "area", "shape_input": "image_grid_thw", "bounds": [[1, 1]]}
LAYOUTS = {
    "qwen2_vl": Layout(
        "Qwen2VLImageProcessorPil",
        {"patch_size": 4, "size": {"shortest_edge": 256, "longest_edge": 6400}},
        QWEN | {"patches": [4, 2, 2], "multiple": 8},
        "image_grid_thw", 200,
    ),
    "qwen3_vl": Layout(
        "Qwen2VLImageProcessorPil",
        {
            "patch_size": 3, "temporal_patch_size": 3, "merge_size": 1, "min_pixels": 40, "max_pixels": 900, "resample": 2,
            "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        },
        QWEN | {"patches": [3, 1, 3], "multiple": 3},
        "image_grid_thw", 200,
    ),
    "pixtral": Layout(
        "PixtralImageProcessorPil",
        {"size": {"longest_edge": 40}, "patch_size": {"height": 8, "width": 8}},
        {"sizing": "within", "bounds": [[1, 1]], "multiple": 8, "shape_input": "image_sizes"},
        "image_sizes", 39,
    ),
    "idefics3": Layout(
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 16}},
        {"sizing": "tiles", "size": [16, 16], "bounds": [[1, 1]]},
    ),
    "idefics3, above 4096": Layout(
        "Idefics3ImageProcessorPil",
        {"size": {"longest_edge": 4500}, "max_image_size": {"longest_edge": 1400}, "resample": 0},
        {"sizing": "tiles", "size": [1400, 1400], "bounds": [[1, 1]]}, sizes=SIZES[9:11],
    ),
    "smolvlm": Layout(
        "SmolVLMImageProcessorPil",
        {"size": {"longest_edge": 50}, "max_image_size": {"longest_edge": 24}, "do_image_splitting": False},
        {"sizing": "tiles", "size": [24, 24], "bounds": [[1, 1]]},
    ),
    "llava_next": Layout(
        "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}, "image_grid_pinpoints": PINPOINTS},
        {"sizing": "anyres", "size": [8, 8], "bounds": PINPOINTS, "multiple": 2, "shape_input": "image_sizes"},
        "image_sizes",
    ),
    "llava_onevision": Layout(
        "LlavaOnevisionImageProcessorPil",
        {"size": {"height": 8, "width": 8}, "image_grid_pinpoints": PINPOINTS},
        {"sizing": "anyres", "size": [8, 8], "bounds": PINPOINTS, "multiple": 2, "shape_input": "image_sizes", "max_side": 3},
        "image_sizes",
    ),
    "owlv2": Layout(
        "Owlv2ImageProcessorPil",
        {"size": {"height": 24, "width": 24}},
        {"sizing": "square", "size": [24, 24]},
    ),
    "siglip2": Layout(
        "Siglip2ImageProcessorPil",
        {"patch_size": 4, "max_num_patches": 20},
        {"sizing": "patches", "bounds": [[1, 1]], "patches": [4], "shape_input": "spatial_shapes"},
        "spatial_shapes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_image_processors(name: str, tmp_path: Path) -> None:
    """Values and shapes of images of many sizes."""
    case = LAYOUTS[name]
    theirs = getattr(transformers, case.processor)(**case.settings)
    theirs.save_pretrained(tmp_path)
    record = parse_input_record(
        read_image_options({"kind": "image", **case.options}, [tmp_path], None)
    )
    assert isinstance(record, ImageConfig)
    for size in case.sizes:
        path = write_image(tmp_path, size)
        if max(size) / min(size) > case.most_ratio:
            with pytest.raises(specc.SpeccError, match="E0990"):
                preprocess_image(path, record, "pixel_values")
            continue
        made = preprocess_image(path, record, "pixel_values")
        with Image.open(path) as image:
            wanted = theirs(image.convert("RGB"), return_tensors="np")
        values = np.asarray(wanted["pixel_values"])
        # a fixed number of patches, padded with zeros
        values = values[0, : len(made.values)] if "spatial_shapes" in wanted else values
        values = values.reshape(made.values.shape)
        most = np.abs(values).max()
        assert np.abs(made.values - values).max() <= 1e-5 * most, size
        if case.shape:
            assert [*made.shape] == np.asarray(wanted[case.shape]).reshape(-1).tolist(), size


PIXTRAL_MODULE = "transformers.models.pixtral.image_processing_pixtral"
IMAGE, VOCAB = 30, 60
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 4096,
}  # fmt: skip
MROPE = TEXT | {
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]}
}
QWEN_IDS = {"image_token_id": IMAGE, "video_token_id": 29, "vision_start_token_id": 28}
QWEN_VISION: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 2, "in_channels": 3}
WINDOWS = {"hidden_size": 16, "intermediate_size": 24, "out_hidden_size": 32}


@dataclass(frozen=True)
class Family:
    """A small model with its processor, and the special tokens from the image token on. `sizes` are
    those of the images of two prompts.
    """

    name: str
    config: Mapping[str, Any]
    image_processor: str
    settings: Mapping[str, Any]
    tokens: tuple[str, ...]
    processor: str = ""
    processor_settings: Mapping[str, Any] = field(default_factory=dict)
    placeholder: str = ""
    smallest: tuple[int, int] = (1, 1)

    def save(self, directory: Path) -> Any:
        """Return a model with random weights, saved in `directory`."""
        config = getattr(transformers, f"{self.name}Config")(**self.config)
        kind = getattr(transformers, f"{self.name}ForConditionalGeneration")
        theirs = randomize_weights(kind(config), seed=3)
        theirs.save_pretrained(directory)
        return kind.from_pretrained(directory).eval().double()

    def make_processor(self, directory: Path) -> Any:
        """Return the processor, whose files are saved in `directory`."""
        words = ["<pad>", "<s>", "</s>", *"abcdefgh", "\n", "\n\n"]
        words += [f"<{n}>" for n in range(len(words), IMAGE)] + [*self.tokens]
        words += [f"<{n}>" for n in range(len(words), VOCAB)]
        tokens = Tokenizer(
            models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<29>")
        )
        tokens.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        tokens.add_special_tokens([word for word in words if word[0] in "<["])
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokens, pad_token="<pad>", bos_token="<s>", padding_side="left",
            chat_template=CHAT.replace("PLACEHOLDER", self.placeholder or self.tokens[0]),
        )  # fmt: skip
        images = getattr(transformers, self.image_processor)(**self.settings)
        tokenizer.save_pretrained(directory)
        images.save_pretrained(directory)
        kind = getattr(transformers, f"{self.name}Processor", None)
        if self.processor == "PixtralProcessor":
            # its module imports the image processor that needs torchvision
            pytest.MonkeyPatch().setitem(sys.modules, PIXTRAL_MODULE, image_processing_pil_pixtral)
            kind = import_module("transformers.models.pixtral.processing_pixtral").PixtralProcessor
        return kind(images, tokenizer, **self.processor_settings)


CHAT = (
    "{% for m in messages %}<s> {% for c in m.content %}{% if c.type == 'image' %}PLACEHOLDER{% else %} {{ c.text }} "
    "{% endif %}{% endfor %}{% endfor %}"
)  # fmt: skip


def make_qwen(name: str, vision: Mapping[str, Any], text: Mapping[str, Any]) -> Family:
    return Family(
        name,
        {
            "text_config": text, "vision_config": QWEN_VISION | vision, "tie_word_embeddings": False, **QWEN_IDS,
        },
        "Qwen2VLImageProcessorPil",
        {"patch_size": 2, "size": {"shortest_edge": 64, "longest_edge": 400}},
        ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"),
        processor_settings={"video_processor": None},
    )  # fmt: skip


FAMILIES = {
    "qwen2_vl": make_qwen("Qwen2VL", {"hidden_size": 32, "embed_dim": 16, "mlp_ratio": 2}, MROPE),
    "qwen2_5_vl": make_qwen(
        "Qwen2_5_VL", WINDOWS | {"window_size": 8, "fullatt_block_indexes": [1]}, MROPE
    ),
    "qwen3_vl": make_qwen(
        "Qwen3VL",
        WINDOWS | {"num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]},
        MROPE | {"head_dim": 8},
    ),
}


LLAMA = TEXT | {"model_type": "llama", "head_dim": 8, "hidden_size": 24}
VISION: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4,
}  # fmt: skip
IDEFICS_TOKENS = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)  # fmt: skip
FAMILIES |= {
    "mistral3": Family(
        "Mistral3",
        {
            "text_config": TEXT | {"model_type": "mistral", "head_dim": 8, "sliding_window": None},
            "vision_config": VISION | {"model_type": "pixtral"}, "image_token_index": IMAGE, "tie_word_embeddings": False,
        },
        "PixtralImageProcessorPil", {"size": {"longest_edge": 40}, "patch_size": {"height": 4, "width": 4}},
        ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), "PixtralProcessor", {"patch_size": 4, "spatial_merge_size": 2},
        smallest=(1, 9),  # the class fails for an image of one token
    ),
    "idefics3": Family(
        "Idefics3",
        {
            "text_config": LLAMA, "vision_config": VISION | {"model_type": "idefics3_vision", "image_size": 16},
            "image_token_id": IMAGE,
        },
        "Idefics3ImageProcessorPil", {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 16}},
        IDEFICS_TOKENS, processor_settings={"image_seq_len": 4},
    ),
    "smolvlm": Family(
        "SmolVLM",
        {
            "text_config": LLAMA, "vision_config": VISION | {"model_type": "smolvlm_vision", "image_size": 16},
            "image_token_id": IMAGE,
        },
        "SmolVLMImageProcessorPil",
        {"size": {"longest_edge": 40}, "max_image_size": {"longest_edge": 16}, "do_image_splitting": False},
        IDEFICS_TOKENS, processor_settings={"image_seq_len": 4, "video_processor": None},
    ),
    "llava_next": Family(
        "LlavaNext",
        {
            "text_config": LLAMA, "vision_config": VISION | {"model_type": "clip_vision_model", "image_size": 8, "patch_size": 2},
            "image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS,
        },
        "LlavaNextImageProcessorPil",
        {"size": {"shortest_edge": 8}, "crop_size": {"height": 8, "width": 8}, "image_grid_pinpoints": PINPOINTS},
        ("<image>",), processor_settings={
            "patch_size": 2, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
        },
    ),
    "llava_onevision": Family(
        "LlavaOnevision",
        {
            "text_config": LLAMA, "image_token_index": IMAGE, "image_grid_pinpoints": [[40, 40], [16, 40]],
            "vision_config": VISION | {"model_type": "siglip_vision_model", "image_size": 8, "patch_size": 2, "vision_use_head": False},
        },
        "LlavaOnevisionImageProcessorPil",
        {"size": {"height": 8, "width": 8}, "image_grid_pinpoints": [[40, 40], [16, 40]]},
        ("<image>", "<video>"), processor_settings={"num_image_tokens": 16, "vision_feature_select_strategy": "full", "video_processor": None},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def allow_absent_video_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Video processors need torchvision, and texts with videos num2words."""
    monkeypatch.setattr(
        ProcessorMixin, "check_argument_for_proper_class", lambda self, name, value: type(value)
    )
    monkeypatch.setattr(processing_smolvlm, "num2words", str)


PROMPTS: tuple[tuple[str, list[tuple[int, int]]], ...] = (
    ("a b {} c", [(30, 50)]),
    ("{} d {} e f", [(9, 5), (70, 16)]),
    (
        "h {} g",
        [(1, 1)],
    ),  # not at the end, where `generate` differs from the full forward of the class
)


@pytest.mark.parametrize("name", FAMILIES)
def test_generation_from_image_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token ids and generated tokens of single prompts and of a batch."""
    family = FAMILIES[name]
    theirs, processor = family.save(tmp_path), family.make_processor(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "package", graphs="step")
    ours = specc.load(tmp_path / "package", threads=1)
    placeholder = family.placeholder or family.tokens[0]
    texts = [text.replace("{}", placeholder) for text, _ in PROMPTS]
    paths = [
        [write_image(tmp_path, max(size, family.smallest)) for size in sizes]
        for _, sizes in PROMPTS
    ]
    written = []
    for some, images in [*(([t], [p]) for t, p in zip(texts, paths, strict=True)), (texts, paths)]:
        opened = [[Image.open(path) for path in several] for several in images]
        given = processor(text=some, images=opened, return_tensors="pt", padding=True)
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in given.items()}
        with torch.no_grad():
            made = theirs.generate(
                **inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, pad_token_id=0, eos_token_id=2
            )  # fmt: skip
        wanted = [cut_at_stop(row[inputs["input_ids"].shape[1] :].tolist(), 2) for row in made]
        stream = ours.generate(input_ids=some, pixel_values=images, max_tokens=MAX_NEW_TOKENS)
        assert np.array_equal(stream.prompt, given["input_ids"])
        assert [list(row[0].tokens) for row in stream.results()] == wanted
        written += wanted
    assert len({token for text in written for token in text}) > 3, "too few different tokens"
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a b"}]}]
    text = processor.tokenizer.apply_chat_template(messages, tokenize=False)
    given = processor(text=[text], images=[[Image.open(paths[0][0])]])["input_ids"]
    for stream in (
        ours.chat("a b", images=paths[0], max_tokens=3),
        ours.chat(
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "path": str(paths[0][0])},
                        messages[0]["content"][1],
                    ],
                }
            ],
            max_tokens=3,
        ),
    ):
        assert stream.prompt.tolist() == np.asarray(given).tolist()
    answer = stream.results()[0][0].text
    command = ["run", str(tmp_path / "package"), "--max-tokens", "3", "--image", str(paths[0][0])]
    for words in (["a b"], ["--chat", "a b"]):
        assert main([*command, *words]) == 0
        assert capsys.readouterr().out.strip() == answer.strip()


def test_contrastive_model_of_image_files(tmp_path: Path) -> None:
    """SigLIP 2 with images of several sizes, each of which is an element of the batch."""
    config = transformers.Siglip2Config(
        text_config={
            "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 2,
            "vocab_size": 20, "max_position_embeddings": 8, "projection_size": 16,
        },
        vision_config=VISION | {"num_patches": 16},
    )  # fmt: skip
    theirs = randomize_weights(transformers.Siglip2Model(config), seed=1)
    theirs.save_pretrained(tmp_path)
    processor = transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=20)
    processor.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "one.onnx")
    ours = specc.load(tmp_path / "one.onnx", threads=1)
    paths = [write_image(tmp_path, size) for size in ((30, 50), (1, 7), (16, 16))]
    ids = np.arange(16).reshape(2, 8)
    given = processor([Image.open(path) for path in paths], return_tensors="pt")
    theirs.double()
    with torch.no_grad():
        wanted = theirs(
            input_ids=torch.tensor(ids),
            pixel_values=given["pixel_values"].double(),
            pixel_attention_mask=given["pixel_attention_mask"],
            spatial_shapes=given["spatial_shapes"],
        ).logits_per_image.numpy()
    made = ours.run(input_ids=ids, pixel_values=[str(path) for path in paths])["logits_per_image"]
    np.testing.assert_allclose(made, wanted, atol=1e-5 * np.abs(wanted).max())
    one = ours.run(input_ids=ids, pixel_values=paths[0])["logits_per_image"]
    np.testing.assert_allclose(one, wanted[:1], atol=1e-5 * np.abs(wanted).max())


def test_detection_in_image_files(tmp_path: Path) -> None:
    """OWLv2, whose images are padded to squares."""
    tower = VISION | {"num_hidden_layers": 1}
    config = transformers.Owlv2Config(
        text_config=tower | {"vocab_size": 20, "max_position_embeddings": 8},
        vision_config=tower | {"image_size": 24, "patch_size": 8},
        projection_dim=16,
    )
    theirs = randomize_weights(transformers.Owlv2ForObjectDetection(config), seed=1)
    theirs.save_pretrained(tmp_path)
    processor = transformers.Owlv2ImageProcessorPil(size={"height": 24, "width": 24})
    processor.save_pretrained(tmp_path)
    specc.compile(str(tmp_path), tmp_path / "one.onnx")
    path = write_image(tmp_path, (30, 50))
    ids = np.arange(1, 9)[None]
    theirs.double()
    with torch.no_grad():
        given = processor([Image.open(path)], return_tensors="pt")["pixel_values"].double()
        wanted = theirs(input_ids=torch.tensor(ids), pixel_values=given)
    made = specc.load(tmp_path / "one.onnx").run(input_ids=ids, pixel_values=str(path))
    for name in ("logits", "pred_boxes", "objectness_logits"):
        values = wanted[name].numpy()
        np.testing.assert_allclose(made[name], values, atol=1e-5 * np.abs(values).max())
