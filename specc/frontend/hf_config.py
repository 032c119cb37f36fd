"""Read config fields from a Hugging Face config.json."""

import math
from dataclasses import dataclass
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, Span, SpeccError, raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.elaboration_context import LexicalScope
from specc.frontend.hf_rope_scaling import read_rope_config
from specc.frontend.json_parser_with_spans import (
    JsonArray,
    JsonMember,
    JsonNode,
    JsonObject,
    JsonScalar,
    get_finite_number,
)
from specc.frontend.parameter_kinds import FUNCTION_KIND, convert_to_parameter_kind
from specc.frontend.spec_values import (
    MISSING,
    MissingValue,
    RawConfigSection,
    Rope,
    SpecValue,
    StringChoice,
)
from specc.io.json_io import Json
from specc.ir.dim import Dim
from specc.syntax import ast


def read_hf_config_field(entry: ast.ConfigField, env: LexicalScope) -> SpecValue | MissingValue:
    """Return the value of a field from the first source key that the file contains, or MISSING.

    For an optional field, null becomes `none`, and for a bool it becomes false, as in transformers.
    For any other field, null is treated as absent.
    """
    data = env.config_file
    if data is None:
        return MISSING
    for source in entry.sources:
        value = _read_source(source, entry, data, env)
        if not isinstance(value, MissingValue):
            return value
    members = [data.find_member(s.value) for s in entry.sources if isinstance(s, ast.StringLiteral)]
    if not any(members):
        return MISSING
    if entry.type.optional:
        return None
    return False if entry.type.name == "bool" else MISSING


def _read_source(
    source: ast.Expr, entry: ast.ConfigField, data: JsonObject, env: LexicalScope
) -> SpecValue | MissingValue:
    """Return the config file value that an expression after `from` selects, or MISSING."""
    match source:
        case ast.Call(function=ast.Name(path="rope_config")):
            default = entry.default and env.evaluate_value(entry.default)
            return read_rope_config(
                source, entry, data, default if isinstance(default, Rope) else None
            )
        # `len("id2label")` returns the number of classes, and `repeated("attention_types")` expands
        # repetitions
        case (
            ast.StringLiteral(value=path)
            | ast.Call(
                function=ast.Name(path="len" | "repeated"), args=(ast.StringLiteral(value=path),)
            )
        ):
            member = data.find_non_null_member(path)
        case _:
            raise_error(
                "E0406",
                'a config value is read by a key, `len("…")`, `repeated("…")` or `rope_config(…)`',
                source.span,
            )
    if member is None:
        return MISSING
    reader = _MemberReader(entry, member, env)
    function = source.function.path if isinstance(source, ast.Call) else ""
    if function == "len":
        return reader.count_items()
    value = reader.expand_layer_pattern() if function else member.value
    return reader.convert_value(value, entry.type)


MAX_EXPANDED_LAYERS = 4096
"""The maximum length of an expanded list, which has one value per layer."""


def _split_layer_pattern(pattern: JsonNode) -> tuple[tuple[JsonNode, ...], int]:
    """Return the values and the repeat count of a pattern such as `[["global", "local"], 12]`. The
    count is -1 for an invalid pattern.
    """
    match pattern:
        case JsonArray(items=(JsonArray(items=values), JsonScalar(value=bool()))):
            return values, -1
        case JsonArray(items=(JsonArray(items=values), JsonScalar(value=int() as times))):
            return values, times
    return (), -1


def _list_json_items(value: JsonNode, type: ast.TypeExpr) -> tuple[JsonNode, ...]:
    """Return the items of a list or pair. A single value is one item, or both items of a pair."""
    if isinstance(value, JsonArray):
        return value.items
    if isinstance(value, JsonObject) and type.name == "list":
        # a list may be an object `{"0": …, "1": …}`, like `id2label`
        members = [value.members.get(str(n)) for n in range(len(value.members))]
        items = tuple(member.value for member in members if member)
        if len(items) == len(members):
            return items
    return (value,) * (2 if type.name == "pair" else 1)


@dataclass(frozen=True, slots=True)
class _MemberReader:
    """A converter from a member of a config file to the declared type of a field."""

    entry: ast.ConfigField
    member: JsonMember
    env: LexicalScope

    def count_items(self) -> Dim:
        """Return the number of items of a JSON list or object. Raise E0403 for any other value."""
        match self.member.value:
            case JsonArray(items=items) | JsonObject(members=items):
                return Dim.from_value(len(items)).with_origin(self.member.get_source_location())
        title = f"{self.member.key.text} must be a list or an object"
        raise_error("E0403", title, self.member.value.span)

    def expand_layer_pattern(self) -> JsonArray:
        """Expand `[[["global", "local"], 12]]` to 24 values. Raise E0403 for an invalid list."""
        expanded: list[JsonNode] = []
        value = self.member.value
        patterns = value.items if isinstance(value, JsonArray) else ()
        for pattern in patterns:
            values, times = _split_layer_pattern(pattern)
            # check the length before a huge list is created
            if times < 0 or times * len(values) > MAX_EXPANDED_LAYERS - len(expanded):
                patterns = ()
                break
            expanded += times * values
        if not patterns:
            raise_error(
                "E0403",
                f"{self.member.key.text} must be a list of patterns with repeat counts",
                value.span,
                f'such as `[[["a", "b"], 3]]`, with at most {MAX_EXPANDED_LAYERS} values in total',
                related_labels=Label.tuple_from_span(self.entry.span, "declared here"),
            )
        return JsonArray(tuple(expanded), value.span)

    def convert_value(self, value: JsonNode, type: ast.TypeExpr) -> SpecValue:
        """Convert a JSON value to the declared type `type`, or return a record unchanged. A single
        value becomes a list with one item, or is used for both items of a pair.
        """
        if type.name == "record" and isinstance(value, JsonObject):
            return RawConfigSection(self.member.key.text.strip('"'), value)
        element = type.element_type
        if element is None:
            return self.convert_scalar(value, type)
        items = _list_json_items(value, type)
        if type.name == "pair" and len(items) != 2:
            self.raise_wrong_type_error(value, type, f"a list of {len(items)}")
        return tuple(self.convert_value(item, element) for item in items)

    def convert_scalar(self, value: JsonNode, type: ast.TypeExpr) -> SpecValue:
        """Convert a scalar to the declared type. Raise E0403 for a scalar of the wrong type."""
        if not isinstance(value, JsonScalar):
            self.raise_wrong_type_error(
                value, type, "a list" if isinstance(value, JsonArray) else "a record"
            )
        scalar = value.value
        match type.name:
            case "text" if isinstance(scalar, str):
                return scalar
            case "activation" if isinstance(scalar, str):
                return resolve_hf_activation(scalar, self.env, value.span)
            case "choice" if scalar in type.names:
                return StringChoice(str(scalar), type.names)
            case "bool" if isinstance(scalar, bool):
                return scalar
            # a bool is an int in Python, but not in a config file
            case "int" if isinstance(scalar, int) and not isinstance(scalar, bool):
                return Dim.from_value(scalar).with_origin(self.member.get_source_location())
            case "float" if isinstance(scalar, int | float) and not isinstance(scalar, bool):
                # infinity is allowed, because it disables a bound of `clip`, for example
                return scalar if math.isinf(scalar) else float(get_finite_number(value) or 0.0)
        self.raise_wrong_type_error(value, type, scalar)

    def raise_wrong_type_error(
        self, value: JsonNode, type: ast.TypeExpr, json_value: Json
    ) -> NoReturn:
        """Raise E0403 for a value of the wrong type, and quote a short value in the message."""
        kinds = {
            "int": "an integer",
            "float": "a number",
            "bool": "true or false",
            "text": "a string",
            "activation": "the name of an activation",
            "pair": "one number or a list of two",
        }
        expected = kinds.get(type.name, type.name)
        span, label = value.span, f"`{self.entry.name}` takes {expected}"
        if type.name == "choice" and isinstance(value, JsonScalar):
            json_value, expected, label = repr(json_value), f"one of {', '.join(type.names)}", ""
        elif json_value is not None and len(span.text) < 60:
            json_value = span.text
        title = f"{self.member.key.text} is {json_value}, expected {expected}"
        labels = Label.tuple_from_span(self.entry.span, "declared here")
        raise_error("E0403", title, span, label, related_labels=labels)


HF_ACTIVATION_ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "swish": "silu",
    "relu_squared": "relu2",
    "linear": "identity",
}
"""The spec names of activations that have a different name in config.json files."""


KNOWN_ACTIVATIONS = frozenset(HF_ACTIVATION_ALIASES) | {
    *("gelu", "gelu_10", "hardswish", "laplace", "leaky_relu", "mish", "quick_gelu"),
    *("relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "tanh"),
}
"""The activation names that may occur in a config.json."""


def resolve_hf_activation(name: str, env: LexicalScope, span: Span | None) -> SpecValue:
    """Return the activation that config.json calls `name`. Raise E0403 for an unknown name."""
    spec_name = ast.Name(HF_ACTIVATION_ALIASES.get(name, name), span=span)
    try:
        value = env.evaluate(spec_name)
    except SpeccError as failed:
        # suggest activation names that can occur in config.json files
        if any(d.code != "E0202" for d in failed.diagnostics):
            raise
        activation_names = sorted(KNOWN_ACTIVATIONS)
        spec_help = "define a block with this name in your spec: --spec my.specc"
        raise_error(
            "E0403",
            f'unknown activation "{name[:60]}"',
            span,
            "no activation has this name",
            notes=[f"known activations: {', '.join(activation_names)}"],
            helps=suggest_similar_name(name, activation_names, spec_help),
        )
    return convert_to_parameter_kind(value, (FUNCTION_KIND,), f'the activation "{name}"', span)
