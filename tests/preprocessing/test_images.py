"""Image preprocessing: decoding, resizing, cropping, normalization, and damaged files."""

import contextlib
import io
import sys
import zlib

import numpy as np
import pytest
from PIL import Image as Pillow
from support.image_files import read_image

from specc.diagnostics.diagnostic import SpeccError
from specc.preprocessing import images as module
from specc.preprocessing.images import (
    decode_image,
    denormalize_image,
    resize_and_normalize_image,
    resize_channel,
)
from specc.preprocessing.preprocessing_records import ImageConfig

RNG = np.random.default_rng(1)
GRAY = ImageConfig(size=(4, 4), channels=1, resample="nearest")


def encode_image(picture: Pillow.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def sample_pixels(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def get_error_code(action) -> str:
    with pytest.raises(SpeccError) as caught:
        action()
    return caught.value.diagnostics[0].code


def test_image_file(tmp_path):
    original = sample_pixels(5, 7, 3)
    path = tmp_path / "p.png"
    Pillow.fromarray(original).save(path)
    result = read_image(
        str(path), ImageConfig(size=(5, 7), mean=(0.5, 0.4, 0.3), std=(0.5, 0.25, 0.2))
    )
    expected = (original / 255 - [0.5, 0.4, 0.3]) / [0.5, 0.25, 0.2]
    assert result.shape == (1, 3, 5, 7)
    assert result.dtype == np.float32
    assert result.flags.c_contiguous
    np.testing.assert_allclose(result[0].transpose(1, 2, 0), expected, atol=1e-5)


def test_channel_conversion():
    color = sample_pixels(4, 4, 3)
    gray = resize_and_normalize_image(
        decode_image(encode_image(Pillow.fromarray(color)), "x"), GRAY
    )[0, 0]
    np.testing.assert_allclose(gray * 255, color @ [0.299, 0.587, 0.114], atol=1e-3)
    flat = sample_pixels(4, 4)
    three = resize_and_normalize_image(
        decode_image(encode_image(Pillow.fromarray(flat)), "x"), ImageConfig(size=(4, 4))
    )[0]
    for plane in three:
        np.testing.assert_allclose(plane * 255, flat, atol=1e-3)


def test_transparent_pixels_become_white():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (10, 20, 30, 255)
    rgba[0, 1] = (0, 0, 0, 128)
    result = decode_image(encode_image(Pillow.fromarray(rgba)), "x")
    np.testing.assert_allclose(result[0, 0], [10, 20, 30])
    np.testing.assert_allclose(result[0, 1], 255 - 128, atol=1e-3)
    np.testing.assert_allclose(result[1, 1], 255)


def test_palette_images():
    picture = Pillow.new("P", (2, 1))
    picture.putpalette([255, 0, 0, 0, 0, 255])
    picture.putpixel((1, 0), 1)
    result = decode_image(encode_image(picture, transparency=1), "x")
    np.testing.assert_allclose(result[0], [[255, 0, 0], [255, 255, 255]])


def test_1_bit_and_16_bit_grayscale():
    bits = Pillow.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert("1")
    np.testing.assert_array_equal(
        decode_image(encode_image(bits), "x")[:, :, 0], [[0, 255], [255, 0]]
    )
    deep = Pillow.fromarray(np.array([[0, 65535], [257, 32896]], np.uint16))
    np.testing.assert_allclose(decode_image(encode_image(deep), "x")[:, :, 0], [[0, 255], [1, 128]])


def test_exif_orientation_is_honored():
    picture = Pillow.new("RGB", (16, 8), "white")
    picture.paste((0, 0, 0), (0, 0, 8, 8))  # left half black
    exif = Pillow.Exif()
    exif[0x0112] = 6  # rotate by 90° clockwise: left becomes top
    result = decode_image(encode_image(picture, "JPEG", exif=exif, quality=95), "x")
    assert result.shape[:2] == (16, 8)
    assert result[:6].mean() < 20
    assert result[-6:].mean() > 235


@pytest.mark.parametrize("kind", ["bilinear", "bicubic", "box", "nearest"])
def test_resizing_agrees_with_pillow(kind):
    plane = sample_pixels(37, 23)
    ours = resize_channel(plane.astype(np.float32), (10, 12), kind)
    theirs = Pillow.fromarray(plane).resize((12, 10), Pillow.Resampling[kind.upper()])
    assert np.abs(np.clip(ours, 0, 255) - np.asarray(theirs, float)).max() <= 1.01


def test_box_averages_areas():
    plane = sample_pixels(8, 12).astype(np.float32)
    blocks = plane.reshape(4, 2, 4, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(resize_channel(plane, (4, 4), "box"), blocks, rtol=1e-5)


def test_center_crop():
    wide = np.zeros((4, 12, 1), np.float32)
    wide[:, 4:8] = 255
    np.testing.assert_allclose(
        resize_and_normalize_image(wide, ImageConfig(size=(4, 4), channels=1, do_center_crop=True)),
        1,
    )
    assert (
        resize_and_normalize_image(wide, ImageConfig(size=(4, 4), channels=1, resample="box")).min()
        == 0
    )


def test_auto_invert_by_the_border():
    paper = np.full((9, 9, 1), 250, np.float32)
    paper[3:6, 3:6] = 10
    record = ImageConfig(size=(9, 9), channels=1, invert="auto")
    dark_ground = resize_and_normalize_image(paper, record)[0, 0]
    assert dark_ground[0, 0] < 0.1 < 0.9 < dark_ground[4, 4]
    # already light on dark
    np.testing.assert_allclose(resize_and_normalize_image(255 - paper, record)[0, 0], dark_ground)
    np.testing.assert_allclose(
        resize_and_normalize_image(paper, ImageConfig(size=(9, 9), channels=1, invert=True))[0, 0],
        dark_ground,
    )


def test_denormalize_inverts_normalize():
    original = sample_pixels(6, 5, 3)
    record = ImageConfig(size=(6, 5), mean=(0.48, 0.45, 0.4), std=(0.26, 0.27, 0.28), invert=True)
    np.testing.assert_array_equal(
        denormalize_image(resize_and_normalize_image(original, record)[0], record), original
    )


def test_images_of_one_pixel_and_one_line():
    for shape in ((1, 1, 1), (1, 9, 3), (9, 1, 3)):
        assert resize_and_normalize_image(
            np.zeros(shape, np.float32),
            ImageConfig(size=(3, 3), invert="auto", do_center_crop=True),
        ).shape == (1, 3, 3, 3)


# --- invalid files --------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\x89PNG\r\n\x1a\n", b"GIF89a" + bytes(20), b"\x93NUMPY\x01\x00"]
)
def test_non_images(data):
    assert get_error_code(lambda: decode_image(data, "x")) == "E0903"


def test_truncated_images():
    for data in (
        encode_image(Pillow.fromarray(sample_pixels(40, 40, 3))),
        encode_image(Pillow.fromarray(sample_pixels(40, 40)), "JPEG"),
    ):
        for end in range(0, len(data) - 40, 97):
            assert get_error_code(lambda d=data[:end]: decode_image(d, "x")) == "E0903"


def test_damaged_images_raise_only_failed():
    for data in (
        encode_image(Pillow.fromarray(sample_pixels(9, 9, 3))),
        encode_image(Pillow.fromarray(sample_pixels(16, 16)), "JPEG"),
    ):
        for _ in range(400):
            hurt = bytearray(data)
            for place in RNG.integers(0, len(hurt), 3):
                hurt[place] = RNG.integers(0, 256)
            with contextlib.suppress(SpeccError):
                decode_image(bytes(hurt), "x")


def test_pixel_limit_is_checked_before_decoding(monkeypatch):
    assert module.MAX_PIXELS == 64 << 20
    at = encode_image(Pillow.new("1", (8192, 8192)))
    monkeypatch.setattr(module, "_decode_pixels", lambda picture: picture.size)
    assert decode_image(at, "x") == (8192, 8192)
    assert (
        get_error_code(lambda: decode_image(encode_image(Pillow.new("1", (8193, 8192))), "x"))
        == "E0904"
    )
    bomb = bytearray(encode_image(Pillow.new("1", (1, 1))))
    bomb[16:24] = (2**30).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    assert get_error_code(lambda: decode_image(bytes(bomb), "x")) == "E0904"


def test_missing_files_directories_and_devices(tmp_path):
    assert get_error_code(lambda: read_image(str(tmp_path / "none.png"), GRAY)) == "E0802"
    assert get_error_code(lambda: read_image(str(tmp_path), GRAY)) == "E0802"
    assert get_error_code(lambda: read_image("/dev/zero", GRAY)) == "E0802"
    assert get_error_code(lambda: read_image("a\0b", GRAY)) == "E0802"


def test_missing_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(SpeccError) as caught:
        decode_image(b"", "x")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E0902"
    assert "pip install -e '.[image]'" in diagnostic.helps
