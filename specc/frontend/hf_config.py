"""Read config fields from a Hugging Face config.json: key aliases, nulls, type checks."""

import math
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, raise_error
from specc.frontend.config_json import (
    JsonList,
    JsonMember,
    JsonNode,
    JsonObject,
    JsonScalar,
    get_finite_number,
)
from specc.frontend.context import Context, Env
from specc.frontend.declared_types import STATIC_KINDS
from specc.frontend.foreign_names import resolve_hf_activation
from specc.frontend.hf_rope_scaling import read_rope_config
from specc.frontend.spec_values import (
    ABSENT,
    Absent,
    ChoiceValue,
    RawConfig,
    Rope,
    SpecValue,
    take_first_result,
)
from specc.io.json_io import Json
from specc.ir.dim import Dim
from specc.syntax import ast

INFINITIES = (math.inf, -math.inf)


def read_published_field(context: Context, entry: ast.Field, env: Env) -> SpecValue | Absent:
    """Return the value of the first source of a field that the file has, or ABSENT. Null
    means `none` for an optional field, and absent for others.
    """
    data = env.config_file
    if data is None:
        return ABSENT
    for source in entry.sources:
        value = _read_source(context, source, entry, data, env)
        if not isinstance(value, Absent):
            return value
    # null sets an optional field to none; otherwise the default holds, as for an absent key
    said = [data.find(s.value) for s in entry.sources if isinstance(s, ast.TextLiteral)]
    return None if entry.type.optional and any(said) else ABSENT


def check_expected_keys(program_entries: list[ast.Expect], data: JsonObject) -> None:
    """Raise E0405 for a config file of another model family or variant than the spec's.

    `none` in an expectation matches a key that is absent or null.
    """
    for entry in program_entries:
        member = data.find(entry.key)
        if _format_member(member) not in entry.values:
            shown = f"`{_format_member(member)}`" if member and not member.is_null else "missing"
            others = [Label(entry.span, "expected by this spec")] if entry.span else []
            raise_error(
                "E0405",
                f'"{entry.key}" is {shown}, expected {" or ".join(entry.values)}',
                member.value.span if member else None,
                others=others,
            )


def _format_member(member: JsonMember | None) -> str:
    """Return the value of a key as `expect` writes it: text, `true`, `false`, number, `none`."""
    if member is None or member.is_null:
        return "none"
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    return value if isinstance(value, str) else member.value.span.text


def _read_source(
    context: Context, source: ast.Expr, entry: ast.Field, data: JsonObject, env: Env
) -> SpecValue | Absent:
    """Return what one expression after `from` finds, or ABSENT."""
    match source:
        case ast.TextLiteral(value=path):
            member = data.find_non_null(path)
            if member is None:
                return ABSENT
            return _TypedMember(context, entry, member, env).convert(member.value, entry.type)
        # `len("id2label")`: the number of listed classes
        case ast.Call(function=ast.Name(path="len"), args=(ast.TextLiteral(value=path),)):
            member = data.find_non_null(path)
            if member is None:
                return ABSENT
            return Dim.of(_get_count(member)).with_origin(member.get_origin())
        # `repeated("attention_types")`: a list in run-length form
        case ast.Call(function=ast.Name(path="repeated"), args=(ast.TextLiteral(value=path),)):
            member = data.find_non_null(path)
            if member is None:
                return ABSENT
            typing = _TypedMember(context, entry, member, env)
            return typing.convert(
                _expand_layer_pattern(member, typing.get_declaration_labels()), entry.type
            )
        case ast.Call(function=ast.Name(path="rope_config")):
            return read_rope_config(source, entry, data, _get_default_rope(context, entry, env))
    raise_error(
        "E0406",
        'a config value is read by a key, `len("…")`, `repeated("…")` or `rope_config(…)`',
        source.span,
    )


def _get_default_rope(context: Context, entry: ast.Field, env: Env) -> Rope | None:
    """Return the default RoPE settings for files that have none."""
    if entry.default is None:
        return None
    value = take_first_result(context.evaluator.evaluate(context, entry.default, env))
    return value if isinstance(value, Rope) else None


def _get_count(member: JsonMember) -> int:
    if isinstance(member.value, JsonList):
        return len(member.value.items)
    if isinstance(member.value, JsonObject):
        return len(member.value.members)
    raise_error("E0403", f"{member.key.text} must be a list or an object", member.value.span)


MAX_EXPANDED_LAYERS = 4096
"""The maximum length of an expanded list: one value per layer."""


def _expand_layer_pattern(member: JsonMember, declared: list[Label]) -> JsonList:
    """Expand `[[["global", "local"], 12]]` to its 24 values, or raise E0403."""
    made: list[JsonNode] = []
    parts = member.value.items if isinstance(member.value, JsonList) else ()
    for part in parts:
        values, times = _split_layer_pattern(part)
        # stop before a huge list is created
        if times < 0 or times * len(values) > MAX_EXPANDED_LAYERS - len(made):
            parts = ()
            break
        made += times * values
    if not parts:
        raise_error(
            "E0403",
            f"{member.key.text} must be a list of patterns with repeat counts",
            member.value.span,
            f'such as `[[["a", "b"], 3]]`, with at most {MAX_EXPANDED_LAYERS} values in total',
            others=declared,
        )
    return JsonList(tuple(made), member.value.span)


def _split_layer_pattern(part: JsonNode) -> tuple[tuple[JsonNode, ...], int]:
    """Split `[["global", "local"], 12]` into values and repeat count, or return -1."""
    match part:
        case JsonList(items=(JsonList(items=values), JsonScalar(value=bool()))):
            return values, -1
        case JsonList(items=(JsonList(items=values), JsonScalar(value=int() as times))):
            return values, times
    return (), -1


class _TypedMember:
    """Converts a member of the config file to the declared type of a field."""

    def __init__(self, context: Context, entry: ast.Field, member: JsonMember, env: Env) -> None:
        self.context, self.entry, self.member, self.env = context, entry, member, env

    def convert(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """Convert a value. Records stay raw; a single value counts as a list of one."""
        if type.name == "record" and isinstance(value, JsonObject):
            return RawConfig(self.member.key.text.strip('"'), value)
        if type.name == "pair":
            return self.convert_pair(value, type)
        if type.name != "list":
            return self.convert_scalar(value, type)
        assert type.element_type is not None
        items: tuple[JsonNode, ...] = (value,)
        if isinstance(value, JsonList):
            items = value.items
        elif isinstance(value, JsonObject) and (
            (numbered := _list_numbered_values(value)) is not None
        ):
            items = numbered
        return tuple(self.convert(item, type.element_type) for item in items)

    def convert_pair(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """Convert a list of two, or one value for both."""
        assert type.element_type is not None  # guaranteed by the grammar
        items = value.items if isinstance(value, JsonList) else (value, value)
        if len(items) != 2:
            self.raise_wrong_type(value, type, f"a list of {len(items)}")
        return tuple(self.convert_scalar(item, type.element_type) for item in items)

    def convert_scalar(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """Convert a value that is neither a list nor a record, or raise E0403."""
        if not isinstance(value, JsonScalar):
            what = "a list" if isinstance(value, JsonList) else "a record"
            self.raise_wrong_type(value, type, what)
        plain = value.value
        match type.name:
            case "text" if isinstance(plain, str):
                return plain
            case "activation" if isinstance(plain, str):
                return resolve_hf_activation(self.context, plain, self.env, value.span)
            case "choice" if plain in type.names:
                return ChoiceValue(str(plain), type.names)
            case "bool" if isinstance(plain, bool):
                return plain
            # in Python a bool is an int, in a config file it is not
            case "int" if isinstance(plain, int) and not isinstance(plain, bool):
                return Dim.of(plain).with_origin(self.member.get_origin())
            case "float" if isinstance(plain, int | float) and not isinstance(plain, bool):
                # an infinity is a bound that is never reached, as for `clip`
                return plain if plain in INFINITIES else float(get_finite_number(value) or 0.0)
        self.raise_wrong_type(value, type, plain)

    def raise_wrong_type(self, value: JsonNode, type: ast.TypeName, shown: Json) -> NoReturn:
        """Raise E0403 for a value of another type; short values are quoted."""
        if type.name == "choice" and isinstance(value, JsonScalar):
            known = ", ".join(type.names)
            title = f"{self.member.key.text} is {shown!r}, expected one of {known}"
            raise_error("E0403", title, value.span, others=self.get_declaration_labels())
        kinds = {
            "int": "an integer",
            "float": "a number",
            "bool": "true or false",
            "text": "a string",
            "pair": "one number or a list of two",
        }
        wanted = kinds.get(type.name, type.name)
        assert type.name in STATIC_KINDS or type.name in ("choice", "list", "pair")
        span, key = value.span, self.member.key.text
        if shown is not None and len(span.text) < 60:
            shown = span.text
        title = f"{key} is {shown}, expected {wanted}"
        label = f"`{self.entry.name}` takes {wanted}"
        raise_error("E0403", title, span, label, others=self.get_declaration_labels())

    def get_declaration_labels(self) -> list[Label]:
        """Return the label of the field's declaration."""
        span = self.entry.span
        return [Label(span, "declared here")] if span else []


def _list_numbered_values(value: JsonObject) -> tuple[JsonNode, ...] | None:
    """Return the values of `{"0": …, "1": …}` in order, as in `id2label`, or None if the keys
    are not these numbers.
    """
    keys = [str(n) for n in range(len(value.members))]
    if set(keys) != set(value.members):
        return None
    return tuple(value.members[key].value for key in keys)
