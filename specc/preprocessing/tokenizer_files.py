"""tokenizer.json files carried in a compiled model."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io.json_io import Json, JsonFields
from specc.io.safe_read import UnreadableFile, escape_text, read_regular_file
from specc.preprocessing.chat_template import ChatTemplate

NAME = "tokenizer.json"
SUFFIX = ".tokenizer.json"
MAX_BYTES = 64 << 20
MAX_INSIDE = 256_000
"""Bytes of a file that becomes part of the model; a larger one lies beside it."""
MAX_ID = 2**31 - 1
MAX_FILES = 1000
MOST_ROWS = 2**14
"""Ids that one id of a text may become: rows of a picture of 128 by 128 squares."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """A `tokenizer.json`. `sha256` and `size` (bytes) are those of its UTF-8 content.

    `name` is that of the file beside the model, empty where the model holds the text
    itself. `text` is empty between the reading of a manifest and `opened`.
    """

    sha256: str
    size: int
    text: str = field(default="", repr=False)
    name: str = ""

    @staticmethod
    def of(text: str) -> "TokenizerFile":
        """The file with that text."""
        data = text.encode("utf-8")
        return TokenizerFile(hashlib.sha256(data).hexdigest(), len(data), text)

    @property
    def content(self) -> bytes:
        """What is written beside the model."""
        assert self.text, "a tokenizer that was never opened"
        return self.text.encode("utf-8")

    def to_json(self) -> Json:
        """The file as the manifest holds it, by its hash."""
        return {"file": self.name, "bytes": self.size} if self.name else {"json": self.text}

    def placed(self, stem: str) -> "TokenizerFile":
        """As part of the model called `stem`: inside, or beside it under the name that
        `OutputDirectory` gives.
        """
        return self.named(f"{stem}-{self.sha256[:16]}{SUFFIX}" if self.size > MAX_INSIDE else "")

    def named(self, name: str) -> "TokenizerFile":
        """As a file of that name beside the model."""
        return replace(self, name=name)

    def opened(self, folder: Path) -> "TokenizerFile":
        """With the text of the file in `folder`. Fails with E0942 if it is not the one
        the model was made with.
        """
        if self.text:
            return self
        where = escape_text(str(folder / self.name))
        try:
            data = read_regular_file(folder / self.name, MAX_BYTES)
        except UnreadableFile as error:
            _foreign(f"the model's tokenizer `{where}` cannot be read: {error.reason}")
        if len(data) != self.size or hashlib.sha256(data).hexdigest() != self.sha256:
            _foreign(f"`{where}` is not the tokenizer that the model was compiled with")
        try:
            return replace(self, text=data.decode("utf-8"))
        except UnicodeDecodeError:
            _foreign(f"the model's tokenizer `{where}` is not UTF-8 text")


def _foreign(title: str) -> NoReturn:
    raise_error(
        "E0942",
        title,
        notes=["the model notes its name, size and hash"],
        helps=["copy all files of the model together, or compile it again"],
    )


def parse_tokenizer_files(fields: JsonFields) -> dict[str, TokenizerFile]:
    """The files of a manifest by hash. Complains where one is not what it is noted as."""
    if len(fields.names()) > MAX_FILES:
        fields.complain(fields.path, "is too large")
    return {sha: _file(sha, fields.child(sha)) for sha in fields.names()}


def _is_beside(name: str) -> bool:
    return name.endswith(NAME) and os.path.basename(name) == name and len(name) <= 255


def _is_hash(sha: str) -> bool:
    return len(sha) == 64 and set(sha) <= set("0123456789abcdef")


def _file(sha: str, fields: JsonFields) -> TokenizerFile:
    if not _is_hash(sha):
        fields.complain(fields.path[:-1], "holds a name that is no hash")
    if fields.has("json"):
        text = fields.get("json")
        if not isinstance(text, str) or not text or not _is_text(text):
            fields.refuse("json", "is not text")
        made = TokenizerFile.of(text)
        if made.sha256 != sha or made.size > MAX_BYTES:
            fields.refuse("json", "is not the text whose hash is noted")
        fields.done()
        return made
    name = fields.get("file")
    if not isinstance(name, str) or not _is_beside(name):
        fields.refuse("file", "is not the name of a tokenizer beside the model")
    size = fields.integer("bytes", 1, MAX_BYTES)
    fields.done()
    return TokenizerFile(sha, size, "", name)


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTokenizer:
    """Text as the ids that a `tokenizer.json` gives it.

    `special` adds what the file itself puts around a text, such as [CLS] and [SEP];
    `start` and `end` are put there too, each unless the file has put it there already.
    `spread` is an id, and how many times it stands where a text has it once: the id that
    stands for a picture, and the picture's rows. `chat` makes a text of messages.
    """

    file: TokenizerFile
    end: int | None = None
    start: int | None = None
    special: bool = True
    spread: tuple[int, int] | None = None
    chat: ChatTemplate | None = None

    def to_json(self) -> Json:
        """The record as JSON; the file stands elsewhere, under its hash."""
        spread: dict[str, Json] = {}
        if self.spread:
            spread = {"spread": [*self.spread]}
        chat = {"chat": self.chat.to_json()} if self.chat else {}
        return {
            "kind": "tokenizer",
            "file": self.file.sha256,
            "end": self.end,
            "start": self.start,
            "special": self.special,
            **spread,
            **chat,
        }

    @staticmethod
    def from_fields(fields: JsonFields, files: Mapping[str, TokenizerFile]) -> "TextTokenizer":
        """The record from JSON, with its file out of `files`."""
        sha = fields.get("file")
        if not isinstance(sha, str) or sha not in files:
            fields.refuse("file", "names no tokenizer that the model has")
        end, start = fields.identity("end", MAX_ID), fields.identity("start", MAX_ID)
        special = fields.flag("special") if fields.has("special") else True
        chat = ChatTemplate.from_fields(fields.child("chat")) if fields.has("chat") else None
        return TextTokenizer(
            file=files[sha],
            end=end,
            start=start,
            special=special,
            spread=_spread(fields),
            chat=chat,
        )


def _spread(fields: JsonFields) -> tuple[int, int] | None:
    """An id and how many there are of it; nothing where it is left out."""
    if not fields.has("spread"):
        return None
    token, rows = fields.integers("spread", 2, 0, MAX_ID)
    if not 1 <= rows <= MOST_ROWS:
        fields.refuse("spread", f"is an id and a number from 1 to {MOST_ROWS}")
    return token, rows


def files_to_json(files: Iterable[TokenizerFile]) -> dict[str, Json]:
    """The files of a reading as the manifest holds them, each once."""
    return {file.sha256: file.to_json() for file in files}
