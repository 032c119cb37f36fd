"""Image placeholders in prompts: replaced by the tokens of each image, or E0991."""

from collections.abc import Sequence

import pytest

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing.chat_template import add_image_content_parts, list_message_images
from specc.preprocessing.image_prompts import replace_image_placeholders
from specc.preprocessing.tokenizer_files import HfTokenizer, TokenizerFile

FILE = TokenizerFile.from_text("{}")
TILED = HfTokenizer(file=FILE, placeholder_replacement=("<i>", "[$row,$column]", "|", "||g", "g"))
PLAIN = HfTokenizer(file=FILE, placeholder_replacement=("<i>", "<b><i>"))


@pytest.mark.parametrize(
    ("text", "grids", "wanted"),
    [
        ("a <i> b", [(2, 2)], "a [1,1][1,2]|[2,1][2,2]||g b"),
        ("<i><i>", [(0, 0), (1, 2)], "g[1,1][1,2]||g"),
        ("no", [], "no"),
    ],
)
def test_grids(text: str, grids: Sequence[tuple[int, int]], wanted: str) -> None:
    assert replace_image_placeholders(text, TILED, grids) == wanted


def test_plain_placeholders_are_replaced_by_the_tokenizer() -> None:
    assert replace_image_placeholders("a <i>", PLAIN, [(0, 0)]) == "a <i>"


@pytest.mark.parametrize(
    ("text", "count", "title"),
    [
        ("What is this?", 1, "the prompt has 0 image placeholders, but 1 image was passed"),
        ("<i> <i>", 1, "the prompt has 2 image placeholders, but 1 image was passed"),
        ("<i>", 3, "the prompt has 1 image placeholder, but 3 images were passed"),
    ],
)
@pytest.mark.parametrize("record", [TILED, PLAIN])
def test_other_numbers_of_images(record: HfTokenizer, text: str, count: int, title: str) -> None:
    with pytest.raises(SpeccError, match="E0991") as failed:
        replace_image_placeholders(text, record, [(1, 1)] * count)
    assert failed.value.diagnostics[0].title == title


def test_images_of_messages() -> None:
    text = {"type": "text", "text": "what?"}
    named = [{"role": "user", "content": [{"type": "image", "path": "a.png"}, text]}]
    assert list_message_images(named) == ["a.png"]
    assert add_image_content_parts(named, 1) == named
    plain = [{"role": "system", "content": "x"}, {"role": "user", "content": "what?"}]
    made = add_image_content_parts(plain, 2)
    assert made[0] == plain[0]
    assert made[1]["content"] == [{"type": "image"}, {"type": "image"}, text]
    assert add_image_content_parts(plain, 0) == plain
