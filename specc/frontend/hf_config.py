"""Read config fields from a Hugging Face config.json: key aliases, nulls, checked types."""

import math
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, raise_error
from specc.frontend.context import ABSENT, Absent, Context, Env
from specc.frontend.declared_types import STATIC_KINDS
from specc.frontend.foreign_names import resolve_hf_activation
from specc.frontend.hf_rope_scaling import read_rope_config
from specc.frontend.json_nodes import (
    JsonList,
    JsonMember,
    JsonNode,
    JsonObject,
    JsonScalar,
    PlainJson,
    get_finite_number,
)
from specc.frontend.spec_values import ChoiceValue, RawConfig, Rope, SpecValue, take_first_result
from specc.ir.dim import Dim
from specc.syntax import ast

INFINITIES = (math.inf, -math.inf)


def read_published_field(context: Context, entry: ast.Field, env: Env) -> SpecValue | Absent:
    """The value of a field whose `from` finds something, or ABSENT. Null is the value
    `none` of a field whose type has one, and finds nothing for any other.
    """
    data = env.raw
    if data is None:
        return ABSENT
    for source in entry.sources:
        value = _read_source(context, source, entry, data, env)
        if not isinstance(value, Absent):
            return value
    # Of a field that may be none, null says that it is; elsewhere it says nothing, and
    # the default holds as where the key is absent.
    said = [data.find(s.value) for s in entry.sources if isinstance(s, ast.TextLiteral)]
    return None if entry.type.optional and any(said) else ABSENT


def check_expected_keys(program_entries: list[ast.Expect], data: JsonObject) -> None:
    """E0405 for a config file of another family, or another form of it, than the spec
    is made for.

    Among the values of an expectation `none` is for a key that is absent or null.
    """
    for entry in program_entries:
        member = data.find(entry.key)
        if _format_member(member) not in entry.values:
            shown = f"`{_format_member(member)}`" if member and not member.null else "missing"
            others = [Label(entry.span, "this spec says so")] if entry.span else []
            raise_error(
                "E0405",
                f'"{entry.key}" is {shown}, this spec reads {" or ".join(entry.values)}',
                member.value.span if member else None,
                others=others,
            )


def reject_quantized_checkpoint(data: JsonObject) -> None:
    """E0421 for a config of weights that are stored in a form of few bits."""
    if (member := data.given("quantization_config")) is None:
        return
    kind = None
    if isinstance(member.value, JsonObject):
        kind = member.value.given("quant_method")
    shown = f" by {_format_member(kind)[:40]}" if kind else ""
    raise_error(
        "E0421",
        f"the weights of this checkpoint are quantized{shown}, which specc does not read",
        member.span,
        helps=["take the checkpoint it was made from, with weights of 16 or 32 bits"],
    )


def _format_member(member: JsonMember | None) -> str:
    """The value of a key as `expect` writes it: a text, `true`, `false`, a number, or `none`."""
    if member is None or member.null:
        return "none"
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    return value if isinstance(value, str) else member.value.span.text


def _read_source(
    context: Context, source: ast.Expr, entry: ast.Field, data: JsonObject, env: Env
) -> SpecValue | Absent:
    """What one of the expressions behind `from` finds."""
    match source:
        case ast.TextLiteral(value=path):
            member = data.given(path)
            if member is None:
                return ABSENT
            return _TypedMember(context, entry, member, env).value(member.value, entry.type)
        # `len("id2label")`: how many classes, where the file lists them
        case ast.Call(function=ast.Name(path="len"), args=(ast.TextLiteral(value=path),)):
            member = data.given(path)
            if member is None:
                return ABSENT
            return Dim.of(_get_count(member)).since(member.origin())
        # `repeated("attention_types")`: a list that is written as parts and counts
        case ast.Call(function=ast.Name(path="repeated"), args=(ast.TextLiteral(value=path),)):
            member = data.given(path)
            if member is None:
                return ABSENT
            typing = _TypedMember(context, entry, member, env)
            return typing.value(_expand_layer_pattern(member, typing.declared()), entry.type)
        case ast.Call(function=ast.Name(path="rope_config")):
            return read_rope_config(source, entry, data, _get_default_rope(context, entry, env))
    raise_error(
        "E0406",
        'a config value comes from a text path, `len("…")`, `repeated("…")` or `rope_config(…)`',
        source.span,
    )


def _get_default_rope(context: Context, entry: ast.Field, env: Env) -> Rope | None:
    """The rotary frequencies of files that say nothing of any."""
    if entry.default is None:
        return None
    value = take_first_result(context.evaluator.evaluate(context, entry.default, env))
    return value if isinstance(value, Rope) else None


def _get_count(member: JsonMember) -> int:
    if isinstance(member.value, JsonList):
        return len(member.value.items)
    if isinstance(member.value, JsonObject):
        return len(member.value.members)
    raise_error("E0403", f"{member.key.text} has no length", member.value.span)


MAX_EXPANDED_LAYERS = 4096
"""How many values a list may have that is written as parts and counts: a layer each."""


def _expand_layer_pattern(member: JsonMember, declared: list[Label]) -> JsonList:
    """`[[["global", "local"], 12]]` as the 24 values that it stands for, or E0403."""
    made: list[JsonNode] = []
    parts = member.value.items if isinstance(member.value, JsonList) else ()
    for part in parts:
        values, times = _split_layer_pattern(part)
        # an endless list ends here, before it is made
        if times < 0 or times * len(values) > MAX_EXPANDED_LAYERS - len(made):
            parts = ()
            break
        made += times * values
    if not parts:
        raise_error(
            "E0403",
            f"{member.key.text} is no list of parts and how often each stands there",
            member.value.span,
            f'such as `[[["a", "b"], 3]]`, of at most {MAX_EXPANDED_LAYERS} values in all',
            others=declared,
        )
    return JsonList(tuple(made), member.value.span)


def _split_layer_pattern(part: JsonNode) -> tuple[tuple[JsonNode, ...], int]:
    """`[["global", "local"], 12]`: some values and how often they come; -1 for
    anything else.
    """
    match part:
        case JsonList(items=(JsonList(items=values), JsonScalar(value=bool()))):
            return values, -1
        case JsonList(items=(JsonList(items=values), JsonScalar(value=int() as times))):
            return values, times
    return (), -1


class _TypedMember:
    """A member of the config file as the declared type of a field."""

    def __init__(self, context: Context, entry: ast.Field, member: JsonMember, env: Env) -> None:
        self.context, self.entry, self.member, self.env = context, entry, member, env

    def value(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """A record is handed on as it is; a single value does for a list of one."""
        if type.name == "record" and isinstance(value, JsonObject):
            return RawConfig(self.member.key.text.strip('"'), value)
        if type.name == "pair":
            return self.pair(value, type)
        if type.name != "list":
            return self.single(value, type)
        assert type.of is not None
        items: tuple[JsonNode, ...] = (value,)
        if isinstance(value, JsonList):
            items = value.items
        elif isinstance(value, JsonObject) and (
            (numbered := _list_numbered_values(value)) is not None
        ):
            items = numbered
        return tuple(self.single(item, type.of) for item in items)

    def pair(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """A list of two, or one value for both."""
        assert type.of is not None  # the grammar has it so
        items = value.items if isinstance(value, JsonList) else (value, value)
        if len(items) != 2:
            self.refuse(value, type, f"a list of {len(items)}")
        return tuple(self.single(item, type.of) for item in items)

    def single(self, value: JsonNode, type: ast.TypeName) -> SpecValue:
        """A value that is neither list nor record, or E0403."""
        if not isinstance(value, JsonScalar):
            what = "a list" if isinstance(value, JsonList) else "a record"
            self.refuse(value, type, what)
        plain = value.value
        match type.name:
            case "text" | "activation" if isinstance(plain, str):
                if type.name == "text":
                    return plain
                return resolve_hf_activation(self.context, plain, self.env, value.span)
            case "choice" if plain in type.names:
                return ChoiceValue(str(plain), type.names)
            case "bool" if isinstance(plain, bool):
                return plain
        # to Python a truth is a whole number, to a config file it is none
        if not isinstance(plain, bool):
            if type.name == "int" and isinstance(plain, int):
                return Dim.of(plain).since(self.member.origin())
            if type.name == "float" and isinstance(plain, int | float):
                # an infinity is a bound that nothing reaches, as of `clip`
                return plain if plain in INFINITIES else float(get_finite_number(value) or 0.0)
        if type.name == "choice":
            known = ", ".join(type.names)
            title = f"{self.member.key.text} is {plain!r}; this spec knows {known}"
            raise_error("E0403", title, value.span, others=self.declared())
        self.refuse(value, type, plain)

    def refuse(self, value: JsonNode, type: ast.TypeName, shown: PlainJson) -> NoReturn:
        """E0403 for a value of another kind; short ones are shown as they are written."""
        kinds = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "text": "a text",
            "pair": "one number or a list of two",
        }
        wanted = kinds.get(type.name, type.name)
        assert type.name in STATIC_KINDS or type.name in ("choice", "list", "pair")
        span, key = value.span, self.member.key.text
        if shown is not None and len(span.text) < 60:
            shown = span.text
        title = f"{key} is {shown} where {wanted} is expected"
        label = f"`{self.entry.name}` takes {wanted}"
        raise_error("E0403", title, span, label, others=self.declared())

    def declared(self) -> list[Label]:
        """Where the field is declared."""
        span = self.entry.span
        return [Label(span, "declared here")] if span else []


def _list_numbered_values(value: JsonObject) -> tuple[JsonNode, ...] | None:
    """The values of `{"0": …, "1": …}` in order, as labels are written; None where keys
    are no such numbers.
    """
    keys = [str(n) for n in range(len(value.members))]
    if set(keys) != set(value.members):
        return None
    return tuple(value.members[key].value for key in keys)
