"""Read RoPE settings from config.json (`rope_theta`, `rope_scaling`, `rope_parameters`)."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import Label, Span, raise_error
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.frontend.json_parser_with_spans import (
    JsonArray,
    JsonMember,
    JsonObject,
    JsonScalar,
    get_finite_number,
)
from specc.frontend.rope_frequencies import (
    SCALING_DEFAULTS,
    SCALING_KINDS,
    compute_yarn_mscale,
    explain_invalid_rope_settings,
)
from specc.frontend.spec_values import Rope, RopeNumber
from specc.syntax import ast

SCALING_ALIASES = {"su": "longrope", "mrope": "default"}
"""The scaling kind for each former `rope_type`. The frequencies of `mrope` are not scaled."""
KINDS_BY_KEY = (("yarn", "short_factor", "longrope"), ("dynamic", "alpha", "ntk_alpha"))
"""A tuple (name, key, kind) states that a table with `rope_type` equal to `name` and a key `key`
has the scaling kind `kind`. The first Phi-3 files call `longrope` "yarn", and Hunyuan's files call
`ntk_alpha` "dynamic".
"""
ORIGINAL_LENGTH_KEY, MAX_LENGTH_KEY = "original_max_position_embeddings", "max_position_embeddings"
ROPE_KEYS = (
    *("rope_parameters", "rope_scaling", "rope_theta", MAX_LENGTH_KEY),
    ORIGINAL_LENGTH_KEY,
)
"""The config.json keys that contain RoPE settings or training lengths."""


@immutable_dataclass(kw_only=True)
class RopeConfigOptions:
    """The options of `rope_config(…)`: defaults for missing keys, and the names of keys.

    `theta` is the default for theta. If `theta` is not set, theta is that of the field's default.
    `max_length` is the maximum sequence length, and `original_length` is the maximum length before
    RoPE scaling. `layer_type` selects a layer type in files with settings per layer type.
    `theta_key` is the key of theta in older files. `is_scaled` is True if `rope_scaling` applies to
    the layers that use the field. `attention_factor_key` is the key of the attention factor. If the
    file contains a sub-config with the key `subconfig_key`, the RoPE settings are read from it.
    """

    theta: float | None = None
    max_length: float | None = None
    original_length: float | None = None
    layer_type: str = ""
    theta_key: str = "rope_theta"
    is_scaled: bool = True
    attention_factor_key: str = "attention_factor"
    subconfig_key: str = ""

    def find_rope_settings(self, data: JsonObject) -> JsonObject:
        """Return the config file object that contains the RoPE settings."""
        member = data.find_non_null_member(self.subconfig_key)
        return member.value if member and isinstance(member.value, JsonObject) else data


def parse_rope_config_options(source: ast.Call) -> RopeConfigOptions:
    """Parse the options of `rope_config(…)`. Raise E0406 for an unknown option."""
    values: dict[str, Any] = {}
    for option in source.options:
        field, literal_type = FIELDS_BY_OPTION.get(option.name, ("", None))
        value = _parse_literal(option.value)
        if type(value) is not literal_type:
            raise_error(
                "E0406",
                f"unknown option `{option.name}` of `rope_config`",
                option.span,
                helps=[
                    "expected the numbers `theta`, `context` and `original`, the strings "
                    "`layers`, `base`, `attention` and `section`, and `scaled=false`"
                ],
            )
        values[field] = value
    return RopeConfigOptions(**values)


def _parse_literal(expr: ast.Expr) -> float | str | bool | tuple[()]:
    """Return the value of a number, string or bool literal, or () for other expressions."""
    match expr:
        case ast.NumberLiteral(text):
            return float(text)
        case ast.StringLiteral(text):
            return text
        case ast.Name("true" | "false" as truth):
            return truth == "true"
    return ()


FIELDS_BY_OPTION: Mapping[str, tuple[str, type]] = {
    "theta": ("theta", float),
    "context": ("max_length", float),
    "original": ("original_length", float),
    "layers": ("layer_type", str),
    "base": ("theta_key", str),
    "scaled": ("is_scaled", bool),
    "attention": ("attention_factor_key", str),
    "section": ("subconfig_key", str),
}
"""For each option of `rope_config`, the field of `RopeConfigOptions` and the type of the field."""


def read_rope_config(
    source: ast.Call, entry: ast.ConfigField, data: JsonObject, default: Rope | None
) -> Rope:
    """Read RoPE settings from `rope_parameters`, or from `rope_theta` and `rope_scaling`. Raise
    E0403 if `rope_parameters` contradicts the older keys.

    The options of `source` provide defaults for numbers that are missing. If the file has no
    scaling kind, the scaling kind of `default` applies.
    """
    defaults = parse_rope_config_options(source)
    return _RopeReader(entry, defaults.find_rope_settings(data), defaults).read_rope(default)


@immutable_dataclass()
class _RopeReader:
    """A reader of RoPE settings from the config file `data` for the field `entry`."""

    entry: ast.ConfigField
    data: JsonObject
    defaults: RopeConfigOptions

    def read_rope(self, default: Rope | None) -> Rope:
        """Return the RoPE settings. If the file has no scaling kind, `default` applies."""
        parameters = self._select_layer_type(self._find_table("rope_parameters", self.data))
        scaling = self._find_table("rope_scaling", self.data) if self.defaults.is_scaled else None
        theta, theta_member = self._read_theta(parameters, default)
        if parameters and scaling and parameters.to_python() != scaling.to_python():
            title = '"rope_parameters" and "rope_scaling" differ'
            self.raise_invalid(title, scaling.span, first_span=parameters.span)
        table = parameters or scaling
        if table is None:
            rope = self._make_unscaled_rope(default, theta)
            span = theta_member.value.span if theta_member else None
        else:
            kind = self._read_scaling_kind(table)
            rope = Rope(theta, kind, _ScalingTable(self, table, kind).read_parameters())
            span = table.span
        if span and (reason := explain_invalid_rope_settings(rope)):
            self.raise_invalid(f"invalid RoPE settings: {reason}", span)
        return rope

    def raise_invalid(
        self,
        title: str,
        span: Span,
        label: str = "",
        *,
        first_span: Span | None = None,
        helps: tuple[str, ...] = (),
    ) -> NoReturn:
        """Raise E0403 with a label at the declaration of the field."""
        labels = Label.tuple_from_span(first_span, "given first here")
        labels += Label.tuple_from_span(self.entry.span, "declared here")
        raise_error("E0403", title, span, label, related_labels=labels, helps=helps)

    def read_number(self, member: JsonMember) -> float:
        """Return the value of a member as a float. Raise E0403 unless the value is a finite
        number.
        """
        value = get_finite_number(member.value)
        if value is None:
            title = f"{member.key.text} must be a number"
            self.raise_invalid(title, member.value.span, "expected a number")
        return float(value)

    def _find_table(self, key: str, data: JsonObject) -> JsonObject | None:
        """Return the object under a key of `data`, or None if the key is absent or null."""
        member = data.find_non_null_member(key)
        if member is None:
            return None
        if not isinstance(member.value, JsonObject):
            self.raise_invalid(f'"{key}" must be an object', member.value.span)
        return member.value

    def _make_unscaled_rope(self, default: Rope | None, theta: float) -> Rope:
        """Return the RoPE settings for a file without a scaling kind. The original length in the
        file overrides the original length of `default`.
        """
        if default is None:
            return Rope(theta)
        member = self.data.find_non_null_member(ORIGINAL_LENGTH_KEY)
        parameters = dict(default.parameters)
        if member is not None and "original" in parameters:
            parameters["original"] = self.read_number(member)
        return Rope(theta, default.kind, tuple(parameters.items()))

    def _select_layer_type(self, table: JsonObject | None) -> JsonObject | None:
        """If a table has settings per layer type, select those of one layer type, otherwise return
        the table unchanged. Raise E0403 if only one of the spec and the table distinguishes layer
        types.
        """
        if table is None:
            return None
        layer_types = [k for k, m in table.members.items() if isinstance(m.value, JsonObject)]
        layer_type = self.defaults.layer_type
        if not layer_type:
            if layer_types:
                title = f'"rope_parameters" has settings per layer type (`{layer_types[0]}`), '
                self.raise_invalid(f"{title}expected one set", table.span)
            return table
        member = table.find_non_null_member(layer_type)
        if member is not None and isinstance(member.value, JsonObject):
            return member.value
        # layer types that are not in the table use the defaults
        values = [m for m in table.members.values() if not m.is_null]
        if member is None and len(layer_types) == len(values):
            return None
        title = f'"rope_parameters" has no settings for layers of type `{layer_type}`'
        self.raise_invalid(title, table.span)

    def _read_theta(
        self, parameters: JsonObject | None, default: Rope | None
    ) -> tuple[float, JsonMember | None]:
        """Return theta and the member that contains theta, in the settings or at the top level of
        older files. Raise E0403 if a file contains two different values of theta.
        """
        nested_member = parameters.find_non_null_member("rope_theta") if parameters else None
        top_member = self.data.find_non_null_member(self.defaults.theta_key)
        values = [self.read_number(member) for member in (nested_member, top_member) if member]
        if len(set(values)) > 1 and top_member:
            title = f"two values of theta differ: {values[0]:g} and {values[1]:g}"
            self.raise_invalid(title, top_member.value.span)
        fallback = self.defaults.theta or (default.theta if default else None)
        theta = fallback if isinstance(fallback, float) else 10000.0
        return values[0] if values else theta, nested_member or top_member

    def _read_scaling_kind(self, table: JsonObject) -> str:
        """Return the scaling kind of a table, or `default` if the table has no scaling kind."""
        member = table.find_member("rope_type") or table.find_member("type")
        if member is None:
            return "default"
        name = member.value.value if isinstance(member.value, JsonScalar) else None
        kind = SCALING_ALIASES.get(name, name) if isinstance(name, str) else ""
        for ambiguous_name, key, actual_kind in KINDS_BY_KEY:
            if kind == ambiguous_name and table.find_non_null_member(key):
                return actual_kind
        # no config file has `axial` frequencies
        if kind in SCALING_KINDS and kind != "axial":
            return kind
        kinds = ", ".join(sorted({*SCALING_KINDS} - {"axial"}))
        title = f"unknown RoPE scaling {member.value.span.text}"
        self.raise_invalid(title, member.value.span, helps=(f"expected one of: {kinds}",))


@immutable_dataclass()
class _ScalingTable:
    """A table of RoPE settings with a scaling kind."""

    reader: _RopeReader
    table: JsonObject
    kind: str

    def read_parameters(self) -> tuple[tuple[str, RopeNumber], ...]:
        """Return the parameters of the scaling kind, keyed by the option names of `rope`."""
        return tuple(PARAMETER_READERS[self.kind](self).items())

    def read_linear(self) -> dict[str, RopeNumber]:
        """Return the factor of linear scaling."""
        return {"factor": self._read_factor()}

    def read_dynamic(self) -> dict[str, RopeNumber]:
        """Return the parameters of dynamic scaling, whose original length is the maximum length."""
        length = self._read_max_length()
        return {"factor": self._read_factor(), "original": length, "longest": length}

    def read_llama3(self) -> dict[str, RopeNumber]:
        """Return the parameters of Llama 3 scaling. Parameters with a default may be absent."""
        parameters: dict[str, RopeNumber] = {"factor": self._read_factor()}
        for key, default in SCALING_DEFAULTS[self.kind].items():
            # transformers' YaRN code treats zero like an absent value
            parameters[key] = self._read_number(key) or default
        return parameters | {"original": self._read_original_length()}

    def read_yarn(self) -> dict[str, RopeNumber]:
        """Return the parameters of YaRN. The attention factor may be None."""
        parameters = self.read_llama3() | {"attention_factor": self._read_attention_factor()}
        if (member := self.table.find_non_null_member("truncate")) is None:
            return parameters
        value = member.value.value if isinstance(member.value, JsonScalar) else None
        if not isinstance(value, bool):
            title = f"{member.key.text} must be true or false"
            self.reader.raise_invalid(title, member.value.span)
        return parameters | {"truncate": value}

    def read_longrope(self) -> dict[str, RopeNumber]:
        """Return the parameters of LongRoPE, with divisors for short and for long sequences."""
        short, long = self._read_divisors("short_factor"), self._read_divisors("long_factor")
        original = self._read_original_length()
        return {
            "factor": self._read_factor(),
            "divisors": short,
            "beyond": long,
            "attention_factor": self._read_number(self.reader.defaults.attention_factor_key),
            "original": original,
            # if the two lists of divisors are equal, they apply to every length
            **({} if short == long else {"longest": original}),
        }

    def read_proportional(self) -> dict[str, RopeNumber]:
        """Return the parameters of proportional scaling: the rotated fraction and the factor."""
        part = self._read_number("partial_rotary_factor")
        factor = self._read_number("factor") or 1.0
        return {"factor": factor, "part": 1.0 if part is None else part}

    def _read_divisors(self, key: str) -> tuple[float, ...]:
        """Return the list stored under a key, which contains one divisor per rotated pair."""
        member = self.table.find_non_null_member(key)
        if member is None or not isinstance(member.value, JsonArray):
            title = f'RoPE scaling "longrope" needs a list "{key}"'
            span = member.value.span if member else self.table.span
            self.reader.raise_invalid(title, span)
        items = [JsonMember(member.key, item) for item in member.value.items]
        return tuple(self.reader.read_number(item) for item in items)

    def _read_factor(self) -> float:
        """Return the scaling factor. For yarn and longrope, null stands for the ratio of the
        maximum length to the original length. For longrope, this ratio of lengths is also the
        default.
        """
        member = self.table.find_member("factor")
        if member and not member.is_null:
            return self.reader.read_number(member)
        if self.kind == "longrope" or (member and self.kind == "yarn"):
            return self._read_max_length() / self._read_original_length()
        title = f'RoPE scaling "{self.kind}" needs a "factor"'
        label = "expected the ratio of the extended to the original length"
        self.reader.raise_invalid(title, self.table.span, label)

    def _read_attention_factor(self) -> float | None:
        """Return the attention factor (arXiv:2405.04434, code), or None if the file has none."""
        explicit_factor, scale, all_dim = (
            self._read_number(key)
            for key in (self.reader.defaults.attention_factor_key, "mscale", "mscale_all_dim")
        )
        # an explicit attention factor takes precedence over `mscale` and `mscale_all_dim`
        if explicit_factor is not None or not scale or not all_dim:
            return explicit_factor
        factor = self._read_factor()
        return compute_yarn_mscale(factor, scale) / compute_yarn_mscale(factor, all_dim)

    def _read_original_length(self) -> int:
        """Return the original sequence length, which defaults to the maximum length."""
        defaults = self.reader.defaults
        # a top-level length, as in Phi-3's files, takes precedence if no layer type is set
        data = None if defaults.layer_type else self.reader.data
        member = data.find_non_null_member(ORIGINAL_LENGTH_KEY) if data else None
        if member is None and defaults.original_length is not None:
            return int(defaults.original_length)
        member = member or self.table.find_non_null_member(ORIGINAL_LENGTH_KEY)
        return self._read_length(member) if member else self._read_max_length()

    def _read_max_length(self) -> int:
        """Return the maximum sequence length."""
        member = self.reader.data.find_non_null_member(MAX_LENGTH_KEY)
        if member is not None:
            return self._read_length(member)
        if self.reader.defaults.max_length is None:
            title = f'RoPE scaling "{self.kind}" needs the original length'
            helps = (f'add "{ORIGINAL_LENGTH_KEY}" to its settings',)
            self.reader.raise_invalid(title, self.table.span, helps=helps)
        return int(self.reader.defaults.max_length)

    def _read_length(self, member: JsonMember) -> int:
        """Return a sequence length. Raise E0403 for a length below 1 or above 2^31 - 1."""
        length = int(self.reader.read_number(member))
        if not 0 < length < 2**31:
            title = f"{member.key.text} must be a sequence length"
            self.reader.raise_invalid(title, member.value.span)
        return length

    def _read_number(self, key: str) -> float | None:
        """Return the number under a key, or None if the key is absent or null."""
        member = self.table.find_non_null_member(key)
        return None if member is None else self.reader.read_number(member)


PARAMETER_READERS: dict[str, Callable[[_ScalingTable], dict[str, RopeNumber]]] = {
    "default": lambda _: {},
    "linear": _ScalingTable.read_linear,
    "dynamic": _ScalingTable.read_dynamic,
    "ntk_alpha": lambda table: {"alpha": table._read_number("alpha")},
    "llama3": _ScalingTable.read_llama3,
    "yarn": _ScalingTable.read_yarn,
    "longrope": _ScalingTable.read_longrope,
    "proportional": _ScalingTable.read_proportional,
}
"""The functions that read the parameters of each scaling kind."""
