"""Pictures become the pixels a model was trained on."""

import contextlib
import io
import sys
import zlib

import numpy as np
import pytest
from PIL import Image as Pillow

from specc.diagnostics.diagnostic import Failed
from specc.preprocessing import images as module
from specc.preprocessing.images import (
    decode_image,
    denormalize_image,
    normalize_image,
    read_image,
    resize_image,
)
from specc.preprocessing.records import ImageRecord

RNG = np.random.default_rng(1)
GRAY = ImageRecord(size=(4, 4), channels=1, resize="nearest")


def encoded(picture: Pillow.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def code_of(action) -> str:
    with pytest.raises(Failed) as caught:
        action()
    return caught.value.diagnostics[0].code


def test_a_file_becomes_a_batch_of_one(tmp_path):
    original = pixels(5, 7, 3)
    path = tmp_path / "p.png"
    Pillow.fromarray(original).save(path)
    result = read_image(
        str(path), ImageRecord(size=(5, 7), mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    )
    expected = (original / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.25, 0.2]
    assert result.shape == (1, 3, 5, 7)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result[0].transpose(1, 2, 0), expected, atol=1e-5)


def test_gray_and_color_convert_to_what_the_model_takes():
    color = pixels(4, 4, 3)
    gray = normalize_image(decode_image(encoded(Pillow.fromarray(color)), "x"), GRAY)[0, 0]
    np.testing.assert_allclose(gray * 255, color @ [0.299, 0.587, 0.114], atol=1e-3)
    flat = pixels(4, 4)
    three = normalize_image(
        decode_image(encoded(Pillow.fromarray(flat)), "x"), ImageRecord(size=(4, 4))
    )[0]
    for plane in three:
        np.testing.assert_allclose(plane * 255, flat, atol=1e-3)


def test_transparent_parts_are_white():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (10, 20, 30, 255)
    rgba[0, 1] = (0, 0, 0, 128)
    result = decode_image(encoded(Pillow.fromarray(rgba)), "x")
    np.testing.assert_allclose(result[0, 0], [10, 20, 30])
    np.testing.assert_allclose(result[0, 1], 255 - 128, atol=1e-3)
    np.testing.assert_allclose(result[1, 1], 255)


def test_palettes_and_their_transparency():
    picture = Pillow.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    result = decode_image(encoded(picture, transparency=1), "x")
    np.testing.assert_allclose(result[0], [[255, 0, 0], [255, 255, 255]])


def test_one_bit_and_sixteen_bit_gray():
    bits = Pillow.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    np.testing.assert_array_equal(decode_image(encoded(bits), "x")[:, :, 0], [[0, 255], [255, 0]])
    deep = Pillow.fromarray(np.array([[0, 65535], [257, 32896]], np.uint16))
    np.testing.assert_allclose(decode_image(encoded(deep), "x")[:, :, 0], [[0, 255], [1, 128]])


def test_exif_orientation_is_honored():
    picture = Pillow.new("RGB", (16, 8), "white")
    picture.paste((0, 0, 0), (0, 0, 8, 8))  # left half black
    exif = Pillow.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise: left becomes top
    result = decode_image(encoded(picture, "JPEG", exif=exif, quality=95), "x")
    assert result.shape[:2] == (16, 8)
    assert result[:6].mean() < 20
    assert result[-6:].mean() > 235


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "box", "nearest"])
def test_resizing_agrees_with_pillow_up_to_its_rounding(kind):
    plane = pixels(37, 23)
    ours = resize_image(plane.astype(np.float32), (10, 12), kind)
    theirs = Pillow.fromarray(plane).resize((12, 10), Pillow.Resampling[kind.upper()])
    assert np.abs(np.clip(ours, 0, 255) - np.asarray(theirs, float)).max() <= 1.01


def test_box_averages_areas():
    plane = pixels(8, 12).astype(np.float32)
    blocks = plane.reshape(4, 2, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize_image(plane, (4, 4), "box"), blocks, rtol=1e-5)


def test_crop_keeps_the_middle_and_the_proportions():
    wide = np.zeros((4, 12, 1), np.float32)
    wide[:, 4:8] = 255
    np.testing.assert_allclose(
        normalize_image(wide, ImageRecord(size=(4, 4), channels=1, crop=True)), 1
    )
    assert normalize_image(wide, ImageRecord(size=(4, 4), channels=1, resize="box")).min() == 0


def test_invert_auto_looks_at_the_border():
    paper = np.full((9, 9, 1), 250, np.float32)
    paper[3:6, 3:6] = 10
    record = ImageRecord(size=(9, 9), channels=1, invert="auto")
    dark_ground = normalize_image(paper, record)[0, 0]
    assert dark_ground[0, 0] < 0.1 < 0.9 < dark_ground[4, 4]
    # already light on dark
    np.testing.assert_allclose(normalize_image(255 - paper, record)[0, 0], dark_ground)
    np.testing.assert_allclose(
        normalize_image(paper, ImageRecord(size=(9, 9), channels=1, invert=True))[0, 0], dark_ground
    )


def test_restore_undoes_prepare():
    original = pixels(6, 5, 3)
    record = ImageRecord(size=(6, 5), mean=(0.48, 0.45, 0.4), std=(0.26, 0.27, 0.28), invert=True)
    np.testing.assert_array_equal(
        denormalize_image(normalize_image(original, record)[0], record), original
    )


def test_pictures_of_one_pixel_and_of_one_line():
    for shape in ((1, 1, 1), (1, 9, 3), (9, 1, 3)):
        assert normalize_image(
            np.zeros(shape, np.float32), ImageRecord(size=(3, 3), invert="auto", crop=True)
        ).shape == (1, 3, 3, 3)


# --- files that are not what they should be -------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(20), b"\x93NUMPY\x01\x00"]
)
def test_what_is_no_picture_is_refused(data):
    assert code_of(lambda: decode_image(data, "x")) == "E0903"


def test_a_truncated_picture_is_refused_wherever_it_ends():
    for data in (
        encoded(Pillow.fromarray(pixels(40, 40, 3))),
        encoded(Pillow.fromarray(pixels(40, 40)), "JPEG"),
    ):
        for end in range(0, len(data) - 40, 97):
            assert code_of(lambda d=data[:end]: decode_image(d, "x")) == "E0903"


def test_damaged_bytes_never_escape_as_other_errors():
    for data in (
        encoded(Pillow.fromarray(pixels(9, 9, 3))),
        encoded(Pillow.fromarray(pixels(16, 16)), "JPEG"),
    ):
        for _ in range(400):
            hurt = bytearray(data)
            for place in RNG.integers(0, len(hurt), 3):
                hurt[place] = RNG.integers(0, 256)
            with contextlib.suppress(Failed):
                decode_image(bytes(hurt), "x")


def test_the_size_limit_holds_before_anything_is_decoded(monkeypatch):
    assert module.MAX_PIXELS == 64 << 20
    at = encoded(Pillow.new("1", (8192, 8192)))
    monkeypatch.setattr(module, "_decode_pixels", lambda picture: picture.size)
    assert decode_image(at, "x") == (8192, 8192)
    assert code_of(lambda: decode_image(encoded(Pillow.new("1", (8193, 8192))), "x")) == "E0904"
    bomb = bytearray(encoded(Pillow.new("1", (1, 1))))
    bomb[16:24] = (2**30).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    assert code_of(lambda: decode_image(bytes(bomb), "x")) == "E0904"


def test_missing_files_folders_and_devices(tmp_path):
    assert code_of(lambda: read_image(str(tmp_path / "none.png"), GRAY)) == "E0802"
    assert code_of(lambda: read_image(str(tmp_path), GRAY)) == "E0802"
    assert code_of(lambda: read_image("/dev/zero", GRAY)) == "E0802"
    assert code_of(lambda: read_image("a\0b", GRAY)) == "E0802"


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(Failed) as caught:
        decode_image(b"", "x")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0902"
    assert "pip install -e '.[image]'" in diagnostic.helps
