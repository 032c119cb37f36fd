"""Parse strict JSON with limits, convert records, and read fields of untrusted JSON objects."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import partial
from typing import (
    Annotated,
    ClassVar,
    Literal,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import has_lone_surrogate

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

INTEGER_BOUND = 2**64  # exclusive bound, because specc's files contain 64-bit seeds
MAX_DEPTH = 100  # maximum nesting depth of specc's JSON files


class InvalidJsonError(ValueError):
    """Raised if a JSON document is invalid. The exception message contains the reason."""


class DuplicateKeyError(InvalidJsonError):
    """Raised if a JSON object contains the key `key` twice."""

    def __init__(self, key: str) -> None:
        super().__init__("duplicate key in an object")
        self.key = key


class NonFiniteNumberError(InvalidJsonError):
    """Raised if a JSON document contains NaN or infinity, which JSON does not allow."""


class NestingTooDeepError(InvalidJsonError):
    """Raised if lists or objects in a JSON document are nested too deeply."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """The limits on the nesting depth and on the magnitude of integers. None means no limit."""

    max_depth: int | None = MAX_DEPTH
    max_integer: int | None = INTEGER_BOUND


DEFAULT_LIMITS = JsonLimits()
NO_LIMITS = JsonLimits(max_depth=None, max_integer=None)  # callers check limits


def parse_strict_json(text: str, limits: JsonLimits = DEFAULT_LIMITS) -> Json:
    """Parse a JSON document. Raise InvalidJsonError or json.JSONDecodeError (both ValueErrors)."""
    if text.startswith("\ufeff"):  # a byte order mark is invisible, so name it in the message
        raise json.JSONDecodeError("Unexpected UTF-8 BOM", text, 0)
    try:
        value: Json = STRICT_DECODER.decode(text)
    except RecursionError:
        raise NestingTooDeepError("the nesting is too deep") from None
    if limits.max_depth is not None or limits.max_integer is not None:
        _check_limits(value, limits)
    return value


def to_json_value(value: object) -> Json:
    """Convert a value to a JSON value. Dataclasses become objects, and tuples become lists."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case Mapping():
            return {str(key): to_json_value(item) for key, item in value.items()}
        case JsonRecord():
            return value.to_json()
    return _record_to_json(value)


def replace_non_finite_numbers(value: object) -> object:
    """Return a copy of a value in which `inf`, `-inf` and `nan` are replaced by strings."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {str(k): replace_non_finite_numbers(v) for k, v in value.items()}
        case list() | tuple():
            return [replace_non_finite_numbers(v) for v in value]
    return value


def _get_json_keys(record: type) -> Mapping[str, str]:
    return record.json_keys if issubclass(record, JsonRecord) else {}


def _record_to_json(record: object) -> dict[str, Json]:
    assert is_dataclass(record), f"{type(record).__name__} cannot be converted to JSON"
    keys, names = _get_json_keys(type(record)), [f.name for f in fields(record)]
    return {keys.get(name, name): to_json_value(getattr(record, name)) for name in names}


def get_exact_integer(value: object) -> int | None:
    """Return `value` if it is an integer, otherwise None. `true` and 3.0 are not integers."""
    return value if type(value) is int else None


def _reject_duplicate_keys(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for key, value in pairs:
        if key in members:
            raise DuplicateKeyError(key)
        members[key] = value
    return members


def _reject_non_finite(text: str) -> NoReturn:
    raise NonFiniteNumberError(f"{text} is not a number")


STRICT_DECODER = json.JSONDecoder(
    object_pairs_hook=_reject_duplicate_keys, parse_constant=_reject_non_finite
)
"""The shared JSON decoder, reused because JSON Lines files contain millions of documents."""


def _iterate_items(value: Json) -> Iterable[Json]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_limits(value: Json, limits: JsonLimits) -> None:
    """Raise InvalidJsonError if a value exceeds the limits. Use a loop to avoid deep recursion."""
    level, depth = [value], 0
    while level:
        integers = [n for item in level if (n := get_exact_integer(item)) is not None]
        bound = limits.max_integer
        if bound is not None and max(map(abs, integers), default=0) >= bound:
            raise InvalidJsonError("the text contains a number with too many digits")
        next_level = [value for item in level for value in _iterate_items(item)]
        depth += 1
        if limits.max_depth is not None and depth > limits.max_depth and next_level:
            raise NestingTooDeepError("the nesting is too deep")
        level = next_level


Option = TypeVar("Option", bound=str)
FieldPath: TypeAlias = tuple[str, ...]
RaiseFieldError: TypeAlias = Callable[[FieldPath, str], NoReturn]
MAX_NUMBER = 1e30  # maximum magnitude of a number, whose square is finite in float64


def raise_invalid_record_error(path: FieldPath, problem: str) -> NoReturn:
    """Raise E0915 for an invalid record in a model file."""
    raise_error(
        "E0915",
        "the preprocessing settings of the model file are invalid",
        notes=[f"`{'.'.join(path)[:200]}` {problem}"],
        helps=["compile the spec again with this version of specc"],
    )


class JsonReader:
    """A reader of an untrusted JSON object. The object may refer by name to values in `shared`."""

    def __init__(
        self,
        value: object,
        path: FieldPath = (),
        report_error: RaiseFieldError = raise_invalid_record_error,
        shared: Mapping[str, object] | None = None,
    ) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            report_error(path, "is not an object")
        self._values: dict[str, object] = value
        self._unread = set(value)
        self.path = path
        self.report_error = report_error
        self.shared = shared or {}

    def raise_invalid(self, key: str, problem: str) -> NoReturn:
        """Raise an error for the invalid field `key`."""
        self.report_error((*self.path, key), problem)

    def has_field(self, key: str) -> bool:
        """Return True if a field is present and not null."""
        self._unread.discard(key)
        return self._values.get(key) is not None

    def get_required(self, key: str) -> object:
        """Return the value of a required field without checking its type."""
        if key not in self._values:
            self.raise_invalid(key, "is missing")
        self._unread.discard(key)
        return self._values[key]

    def get_optional(self, key: str) -> object:
        """Return the value of a field without checking its type, or None if the field is absent."""
        return self.get_required(key) if key in self._values else None

    def list_keys(self) -> tuple[str, ...]:
        """Return the names of all fields, in order."""
        return tuple(self._values)

    def read_int(self, key: str, low: int, high: int) -> int:
        """Return the value of a field that must be an integer from `low` to `high`."""
        value = get_exact_integer(self.get_required(key))
        if value is None:
            self.raise_invalid(key, "is not an integer")
        if not low <= value <= high:
            self.raise_invalid(key, f"is not between {low} and {high}")
        return value

    def read_ints(self, key: str, count: int, low: int, high: int) -> tuple[int, ...]:
        """Return the value of a field that must be a list of exactly `count` integers."""
        items = self._read_items(key, count)
        if len(items.list_keys()) != count:
            self.raise_invalid(key, f"has {len(items.list_keys())} values, expected {count}")
        return tuple(items.read_int(name, low, high) for name in items.list_keys())

    def read_number(self, key: str, maximum: float = MAX_NUMBER) -> float:
        """Return the value of a field that must be a finite number from `-maximum` to `maximum`."""
        value = self.get_required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.raise_invalid(key, "is not a number")
        if not abs(value) <= maximum or not math.isfinite(value):
            self.raise_invalid(key, "is too large or not a number")
        return float(value)

    def read_numbers(self, key: str, max_count: int) -> tuple[float, ...]:
        """Return the value of a field that must be a list of at most `max_count` finite numbers."""
        items = self._read_items(key, max_count)
        return tuple(map(items.read_number, items.list_keys()))

    def read_bool(self, key: str) -> bool:
        """Return the value of a field that must be a boolean."""
        value = self.get_required(key)
        if not isinstance(value, bool):
            self.raise_invalid(key, "is not true or false")
        return value

    def read_choice(self, key: str, options: Sequence[Option]) -> Option:
        """Return the value of a field that must contain one of the strings `options`."""
        value = self.get_required(key)
        for option in options:
            if option == value:
                return option
        self.raise_invalid(key, f"is not one of {', '.join(options)}")

    def read_strings(self, key: str, max_count: int, max_length: int) -> tuple[str, ...]:
        """Read a list of at most `max_count` strings of at most `max_length` characters each."""
        texts: list[str] = []
        for i, value in enumerate(self.read_list(key, max_count)):
            if not isinstance(value, str) or len(value) > max_length:
                reason = f"is not a string of at most {max_length} characters"
                self.raise_invalid(f"{key}[{i}]", reason)
            if has_lone_surrogate(value):
                self.raise_invalid(f"{key}[{i}]", "contains a lone surrogate")
            texts.append(value)
        return tuple(texts)

    def _read_items(self, key: str, max_count: int) -> "JsonReader":
        """Return a reader for the items of a list, whose fields are `key[0]`, `key[1]` etc."""
        items = {f"{key}[{i}]": value for i, value in enumerate(self.read_list(key, max_count))}
        return JsonReader(items, self.path, self.report_error)

    def read_list(self, key: str, max_count: int | None = None) -> list[object]:
        """Read a field that contains a list of at most `max_count` values. None means no limit."""
        value = self.get_required(key)
        if not isinstance(value, list | tuple):
            self.raise_invalid(key, "is not a list")
        if max_count is not None and len(value) > max_count:
            self.raise_invalid(key, f"has {len(value)} values, expected at most {max_count}")
        return list(value)

    def read_string(self, key: str) -> str:
        """Return the value of a required field that must be a string."""
        value = self.get_optional(key)
        if not isinstance(value, str):
            self.raise_invalid(key, "is missing")
        return value

    def read_dict(self, key: str) -> dict[str, object]:
        """Return the value of a required field that must be an object, with values of any type."""
        value = self.get_optional(key)
        if not isinstance(value, dict):
            self.raise_invalid(key, "is missing")
        return value

    def read_string_map(self, key: str) -> dict[str, str]:
        """Return the value of a required field that must be an object whose values are strings."""
        table = self.read_dict(key)
        texts = {name: value for name, value in table.items() if isinstance(value, str)}
        if len(texts) < len(table):
            self.raise_invalid(key, "contains a value that is not a string")
        return texts

    def read_object(self, key: str) -> "JsonReader":
        """Return a reader for a field that is a nested object."""
        return JsonReader(self.get_required(key), (*self.path, key), self.report_error, self.shared)

    def reject_unknown_keys(self) -> None:
        """Raise an error if the object has fields that were not read."""
        for key in sorted(self._unread):
            self.raise_invalid(key, "is unknown")


Reader: TypeAlias = Callable[[JsonReader, str], object]
"""A function that reads one field of a JSON object, or raises an error."""
READERS_BY_TYPE: Mapping[object, Reader] = {
    bool: JsonReader.read_bool,
    float: JsonReader.read_number,
    str: JsonReader.read_string,
}


def make_int_range_reader(low: int, high: int) -> Reader:
    """Return a function that reads an integer from `low` to `high`."""
    return partial(JsonReader.read_int, low=low, high=high)


class JsonRecord:
    """A dataclass that is stored as a JSON object with the class's `tag` under the key `kind`.
    Fields with a default may be absent. `json_keys` maps a field name to its JSON key if the two
    differ.
    """

    __slots__ = ()
    tag: ClassVar[str]
    json_keys: ClassVar[Mapping[str, str]] = {}

    def to_json(self) -> dict[str, Json]:
        """Convert the record to a JSON object."""
        return {"kind": self.tag, **_record_to_json(self)}

    @classmethod
    def from_fields(cls, reader: JsonReader) -> Self:
        """Create a record from untrusted JSON fields."""
        make_record: Callable[..., Self] = cls
        record = make_record(**dict(_read_fields(cls, reader)))
        record.check_fields(reader)
        return record

    def check_fields(self, reader: JsonReader) -> None:
        """Raise an error if the values of several fields are inconsistent."""


AnyRecord = TypeVar("AnyRecord", bound=JsonRecord)


def _read_fields(record: type, json_fields: JsonReader) -> Iterator[tuple[str, object]]:
    assert is_dataclass(record)
    hints = get_type_hints(record, include_extras=True)
    keys = _get_json_keys(record)
    for field in fields(record):
        key = keys.get(field.name, field.name)
        if field.default is MISSING or json_fields.has_field(key):
            yield field.name, _get_field_reader(hints[field.name])(json_fields, key)


def _get_field_reader(hint: object) -> Reader:
    if get_origin(hint) is Annotated:
        reader: Reader = get_args(hint)[1]
        return reader
    if get_origin(hint) is Literal:
        return lambda fields, key: fields.read_choice(key, get_args(hint))
    return READERS_BY_TYPE[hint]


def parse_tagged_record(reader: JsonReader, classes: Mapping[str, type[AnyRecord]]) -> AnyRecord:
    """Parse a record whose class is named by the JSON field `kind`."""
    record = classes[reader.read_choice("kind", tuple(classes))].from_fields(reader)
    reader.reject_unknown_keys()
    return record
