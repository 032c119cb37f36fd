"""Read an image file as model input."""

from specc.io.safe_read import MAX_IMAGE_BYTES, read_input_file
from specc.preprocessing.images import Floats, decode_image, resize_and_normalize_image
from specc.preprocessing.preprocessing_records import ImageConfig


def read_image(path: str, record: ImageConfig) -> Floats:
    """Return an image file as `f32[1, channels, height, width]`."""
    return resize_and_normalize_image(
        decode_image(read_input_file(path, MAX_IMAGE_BYTES), path), record
    )
