"""Save a changed model as if it had been compiled so: with a hash that is that of its bytes."""

from pathlib import Path

from onnx import ModelProto

from specc_onnx.write.model_file import BLANK_HASH, HASH_KEY, insert_model_hash


def save_with_hash(model: ModelProto, path: Path) -> None:
    """Write `model` to `path` with a valid hash, so that loading does not refuse it (E0929)."""
    (entry,) = [p for p in model.metadata_props if p.key == HASH_KEY]
    entry.value = BLANK_HASH
    path.write_bytes(b"".join(insert_model_hash(model.SerializeToString())))
