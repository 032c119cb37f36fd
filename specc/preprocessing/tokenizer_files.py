"""tokenizer.json files that belong to a compiled model."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, NoReturn, TypeAlias

from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import Json, JsonReader, JsonRecord, make_int_range_reader
from specc.io.safe_read import (
    UnreadableFileError,
    escape_text,
    has_lone_surrogate,
    read_regular_file,
)
from specc.preprocessing.chat_template import ChatTemplate

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_SUFFIX = ".tokenizer.json"
MAX_BYTES = 64 << 20
MAX_EMBEDDED_BYTES = 256_000
"""Maximum size in bytes of a tokenizer file that is embedded in a model. Larger tokenizer files are
stored next to the model."""
MAX_ID = 2**31 - 1
MAX_FILES = 1000
MAX_IMAGE_TOKENS = 2**14
"""Maximum number of repetitions of an image token (an image of 128 × 128 patches)."""
MAX_REPLACEMENT_LENGTH = 256  # maximum length of a replacement in characters
PLAIN_REPLACEMENT, GRID_REPLACEMENT = 2, 5
"""Valid numbers of strings in the option `replace`: 2 for a single replacement text, and 5 for the
texts of a token grid."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A `tokenizer.json` with its hash and its size in bytes. `name` is the file next to the model,
    or "" if the tokenizer is embedded. `text` is empty until `load_text` is called.
    """

    sha256: str
    size: int
    json_text: str = field(default="", repr=False)
    name: str = ""

    @staticmethod
    def from_text(text: str) -> "TokenizerFile":
        """Create a tokenizer file with the content `text`."""
        data = text.encode("utf-8")
        return TokenizerFile(hashlib.sha256(data).hexdigest(), len(data), text)

    @property
    def content(self) -> bytes:
        """The content of the tokenizer file in bytes."""
        assert self.json_text, "a tokenizer whose text is not loaded"
        return self.json_text.encode("utf-8")

    def to_json(self) -> Json:
        """Return the manifest entry of the file, without its content."""
        return {"file": self.name, "bytes": self.size} if self.name else {"json": self.json_text}

    def assign_file_name(self, stem: str) -> "TokenizerFile":
        """Return a copy that is embedded in the model `stem` or, if large, stored next to it."""
        return self.with_file_name(
            f"{stem}-{self.sha256[:16]}{TOKENIZER_SUFFIX}" if self.size > MAX_EMBEDDED_BYTES else ""
        )

    def with_file_name(self, name: str) -> "TokenizerFile":
        """Return a copy that is stored as the file `name` next to the model."""
        return replace(self, name=name)

    def load_text(self, directory: Path) -> "TokenizerFile":
        """Return a copy with the text read from `directory`. Raise E0942 if the hash differs."""
        if self.json_text:
            return self
        path = escape_text(directory / self.name)
        try:
            data = read_regular_file(directory / self.name, MAX_BYTES)
        except UnreadableFileError as error:
            _raise_tokenizer_mismatch(
                f"cannot read the tokenizer `{path}` of the model: {error.reason}"
            )
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            _raise_tokenizer_mismatch(
                f"the tokenizer `{path}` has changed since the model was compiled"
            )
        try:
            return replace(self, json_text=data.decode("utf-8"))
        except UnicodeDecodeError:
            _raise_tokenizer_mismatch(f"the tokenizer `{path}` of the model is not UTF-8 text")


def _raise_tokenizer_mismatch(title: str) -> NoReturn:
    raise_error(
        "E0942",
        title,
        notes=["the model contains the name, size and hash of its tokenizer file"],
        helps=["copy all files of the model together, or compile it again"],
    )


def parse_tokenizer_entries(fields: JsonReader) -> dict[str, TokenizerFile]:
    """Parse the tokenizer files in a manifest, keyed by hash. Raise an error if a hash differs."""
    if len(fields.list_keys()) > MAX_FILES:
        fields.report_error(fields.path, "is too large")
    return {sha: _parse_file(sha, fields.read_object(sha)) for sha in fields.list_keys()}


def _parse_file(sha: str, fields: JsonReader) -> TokenizerFile:
    if len(sha) != 64 or not set(sha) <= set("0123456789abcdef"):
        fields.report_error(fields.path[:-1], "has a name that is not a hash")
    is_embedded = fields.has_field("json")
    file = _read_embedded_file(sha, fields) if is_embedded else _read_external_file(sha, fields)
    fields.reject_unknown_keys()
    return file


def _read_embedded_file(sha: str, fields: JsonReader) -> TokenizerFile:
    """Read a tokenizer whose text is embedded in the manifest."""
    text = fields.get_required("json")
    if not isinstance(text, str) or not text or has_lone_surrogate(text):
        fields.raise_invalid("json", "is not a string")
    file = TokenizerFile.from_text(text)
    if file.sha256 != sha or file.size > MAX_BYTES:
        fields.raise_invalid("json", "does not match its recorded hash")
    return file


def _read_external_file(sha: str, fields: JsonReader) -> TokenizerFile:
    """Read the name and size of a tokenizer file that is stored next to the model."""
    name = fields.get_required("file")
    is_name = isinstance(name, str) and os.path.basename(name) == name and len(name) <= 255
    if not isinstance(name, str) or not is_name or not name.endswith(TOKENIZER_FILE):
        fields.raise_invalid("file", "is not the name of a tokenizer next to the model")
    return TokenizerFile(sha, fields.read_int("bytes", 1, MAX_BYTES), "", name)


def _read_file(fields: JsonReader, name: str) -> TokenizerFile:
    file = fields.shared.get(str(fields.get_required(name)))
    if not isinstance(file, TokenizerFile):
        fields.raise_invalid(name, "is not the hash of a tokenizer in the model")
    return file


def _read_image_token_repetition(fields: JsonReader, name: str) -> tuple[int, ...]:
    token, rows = fields.read_ints(name, 2, 0, MAX_ID)
    if not 1 <= rows <= MAX_IMAGE_TOKENS:
        fields.raise_invalid(name, f"must be an id and a number from 1 to {MAX_IMAGE_TOKENS}")
    return token, rows


def _read_placeholder_replacement(fields: JsonReader, name: str) -> tuple[str, ...]:
    texts = fields.read_strings(name, GRID_REPLACEMENT, MAX_REPLACEMENT_LENGTH)
    if len(texts) not in (PLAIN_REPLACEMENT, GRID_REPLACEMENT) or not texts[0]:
        fields.raise_invalid(name, "is not a placeholder and its replacement")
    return texts


def _read_chat_template(fields: JsonReader, name: str) -> ChatTemplate:
    return ChatTemplate.from_fields(fields.read_object(name))


TokenId: TypeAlias = Annotated[int | None, make_int_range_reader(0, MAX_ID)]


class AliasedFieldRecord(JsonRecord):
    """A record whose field names may differ from the option names in a spec."""

    __slots__ = ()
    json_keys: ClassVar[Mapping[str, str]] = {
        "resample": "resize", "do_center_crop": "crop", "resize_lengths": "resized",
        "resizes_to_uint8": "rounded", "shortest_longest_edge": "fitted",
        "size_multiple": "multiple", "pads_all_sides": "centered",
        "do_align_long_axis": "aligned", "size_bounds": "bounds", "do_image_splitting": "split",
        "patch_lengths": "patches", "end_token_id": "end", "start_token_id": "start",
        "unknown_token_id": "unknown", "do_lower_case": "lower", "sample_rate": "rate",
        "do_normalize": "normalize", "num_mel_bins": "bins", "num_frames": "frames",
        "window_length": "window", "hop_length": "hop", "do_truncate": "cut", "top_k": "top",
        "boxes_output": "boxes", "score_function": "score", "max_detections": "top",
        "blank_token_id": "blank", "mask_output": "keep", "word_delimiter": "delimiter",
        "word_separator": "space", "unknown_token": "unknown", "adds_special_tokens": "special",
        "image_token_repetition": "spread", "placeholder_replacement": "replace",
        "prompt_start_token_id": "prompt_start", "prompt_end_text": "prompt_end",
        "chat_template": "chat",
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTokenizer(AliasedFieldRecord):
    """A tokenizer defined by a `tokenizer.json`.

    If `adds_special_tokens` is True, the tokenizer adds its special tokens, such as [CLS] and
    [SEP]. Start and end tokens are added unless the tokenizer has already added them.
    `image_token_repetition` is the id of an image placeholder and the number of its repetitions in
    the prompt. `placeholder_replacement` contains a placeholder and the text that replaces it
    before tokenization. For a grid, it contains four texts: those of a grid cell (with `$row` and
    `$column`), between rows, after the last row, and of an image without a grid.
    `prompt_start_token_id` is the token after the last placeholder. `prompt_end_text` is appended
    to a prompt that lacks this token. `chat_template` renders messages to a prompt.
    """

    tag = "tokenizer"
    file: Annotated[TokenizerFile, _read_file]
    end_token_id: TokenId = None
    start_token_id: TokenId = None
    adds_special_tokens: bool = True
    image_token_repetition: Annotated[tuple[int, int] | None, _read_image_token_repetition] = None
    placeholder_replacement: Annotated[tuple[str, ...] | None, _read_placeholder_replacement] = None
    prompt_start_token_id: TokenId = None
    prompt_end_text: str = ""
    chat_template: Annotated[ChatTemplate | None, _read_chat_template] = None

    def to_json(self) -> dict[str, Json]:
        """Return the record as JSON. The tokenizer file is stored separately under its hash."""
        fields = JsonRecord.to_json(self) | {"file": self.file.sha256}
        return {k: v for k, v in fields.items() if v is not None or k in ("end", "start")}

    def insert_image_prompt_tokens(self, text: str, start: str, placeholder: str = "") -> str:
        """Insert `start` after the last placeholder of a prompt and append `prompt_end_text`, as
        the PaliGemma processor does, unless the prompt already contains `start` there.
        """
        prompt = text.rpartition(placeholder)[2] if placeholder else text
        if prompt.startswith(start):
            return text
        return text.removesuffix(prompt) + start + prompt + self.prompt_end_text
