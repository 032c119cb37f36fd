"""Notes on keys of sentence-transformers files that nothing follows."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from specc.huggingface.processor_files import read_optional_object
from specc.io.safe_read import escape_text

READ_OF_ENCODER: Mapping[str, Sequence[object]] = dict.fromkeys(
    (
        "max_seq_length",
        "do_lower_case",
        "transformer_task",
        "modality_config",
        "module_output_name",
    ),
    (),
)
READ_OF_SETTINGS: Mapping[str, Sequence[object]] = {
    **dict.fromkeys(("prompts", "default_prompt_name", "__version__"), ()),
    "similarity_fn_name": (None, "cosine"),
    "model_type": (None, "SentenceTransformer"),
}
"""Keys that are followed, or change no vector, with the only values where not all are."""


def unread_settings(path: Path | None, known: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """A note for each key of a file that nothing follows."""
    for key, value in read_optional_object(path).items():
        values = known.get(key, (None, {}, False))
        if values and value not in values:
            yield f"nothing follows `{escape_text(key)[:60]}` in `{escape_text(str(path))}`"
