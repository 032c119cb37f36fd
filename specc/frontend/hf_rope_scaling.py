"""Read RoPE settings of a Hugging Face config.json (`rope_theta`, `rope_scaling`,
`rope_parameters`).
"""

from dataclasses import dataclass, replace
from typing import NoReturn

from specc.diagnostics.diagnostic import Label, raise_error
from specc.diagnostics.source import Span
from specc.frontend.json_nodes import (
    JsonList,
    JsonMember,
    JsonObject,
    JsonScalar,
    get_finite_number,
)
from specc.frontend.rope_frequencies import compute_yarn_scale, explain_invalid_rope
from specc.frontend.spec_values import Rope, RopeNumber
from specc.syntax import ast

SCALING_KINDS = (
    *("default", "linear", "dynamic", "ntk_alpha", "llama3", "yarn", "longrope"),
    "proportional",
)
SCALING_ALIASES = {"su": "longrope", "mrope": "default"}
"""Names of scaling kinds in older files; the position axes of M-RoPE have keys of their own."""
ROPE_KEYS = (
    *("rope_parameters", "rope_scaling", "rope_theta", "max_position_embeddings"),
    "original_max_position_embeddings",
)
"""The keys of a config.json with RoPE settings and training lengths."""


@dataclass(frozen=True, kw_only=True)
class RopeDefaults:
    """RoPE settings of a spec: defaults for missing keys, and which keys to read.

    `context` is the maximum sequence length, `original` the one before scaling. `layers`
    selects a layer type in files with settings per layer type; `base` is the key of theta
    in older files, and `scaled` whether `rope_scaling` applies to these layers. `attention`
    is the key of the factor of cos and sin, `section` the sub-config that has the settings
    where the file has it.
    """

    theta: float = 10000.0
    context: float | None = None
    original: float | None = None
    layers: str = ""
    base: str = "rope_theta"
    scaled: bool = True
    attention: str = "attention_factor"
    section: str = ""

    def find_section(self, data: JsonObject) -> JsonObject:
        """Return the table of a config file that has the settings."""
        member = data.given(self.section)
        return member.value if member and isinstance(member.value, JsonObject) else data


def parse_rope_defaults(source: ast.Call) -> RopeDefaults:
    """Parse the options of `rope_config(…)`. Raise E0406 for an unknown one."""
    usual = RopeDefaults()
    for option in source.options:
        match option:
            case ast.Option("theta", ast.NumberLiteral(text)):
                usual = replace(usual, theta=float(text))
            case ast.Option("context", ast.NumberLiteral(text)):
                usual = replace(usual, context=float(text))
            case ast.Option("original", ast.NumberLiteral(text)):
                usual = replace(usual, original=float(text))
            case ast.Option("layers", ast.TextLiteral(value)):
                usual = replace(usual, layers=value)
            case ast.Option("base", ast.TextLiteral(value)):
                usual = replace(usual, base=value)
            case ast.Option("attention", ast.TextLiteral(value)):
                usual = replace(usual, attention=value)
            case ast.Option("section", ast.TextLiteral(value)):
                usual = replace(usual, section=value)
            case ast.Option("scaled", ast.Name("true" | "false" as truth)):
                usual = replace(usual, scaled=truth == "true")
            case _:
                raise_error(
                    "E0406",
                    f"`rope_config` has no option `{option.name}`",
                    option.span,
                    helps=[
                        "it takes the numbers `theta`, `context` and `original`, the strings "
                        "`layers`, `base`, `attention` and `section`, and `scaled=false`"
                    ],
                )
    return usual


def read_rope_config(
    source: ast.Call, entry: ast.Field, data: JsonObject, default: Rope | None
) -> Rope:
    """Read both forms of RoPE settings: `rope_parameters`, or `rope_theta` with
    `rope_scaling`. They must agree. The options of `source` are defaults for missing
    numbers, and the scaling kind of `default` holds where the file names none.
    """
    usual = parse_rope_defaults(source)
    data = usual.find_section(data)
    inner = _select_layer_type(_get_settings("rope_parameters", data, entry), usual, entry)
    old = _get_settings("rope_scaling", data, entry) if usual.scaled else None
    theta, stated = _read_theta(inner, data, entry, usual.base)
    if stated is None:
        theta = usual.theta
    if inner and old and inner.plain() != old.plain():
        title = '"rope_parameters" and "rope_scaling" differ'
        others = [Label(inner.span, "given first here"), *_make_declaration_labels(entry)]
        raise_error("E0403", title, old.span, others=others)
    table = inner or old
    if table is None:
        rope = _make_unscaled_rope(default, theta, entry, data)
        if (why := explain_invalid_rope(rope)) and stated:
            _raise_unusable_rope(why, stated.value.span, entry)
        return rope
    scaling = _ScalingTable(table, _read_scaling_kind(table, entry), entry, data, usual)
    rope = Rope(theta, scaling.kind, scaling.numbers())
    if why := explain_invalid_rope(rope):
        _raise_unusable_rope(why, table.span, entry)
    return rope


def _make_unscaled_rope(
    default: Rope | None, theta: float, entry: ast.Field, data: JsonObject
) -> Rope:
    """Return the RoPE settings of a file without a scaling kind. It may still give the
    original length at the top level.
    """
    if default is None:
        return Rope(theta)
    member = data.given("original_max_position_embeddings")
    numbers = dict(default.numbers)
    if member is not None and "original" in numbers:
        numbers["original"] = _read_number(member, entry)
    return Rope(theta, default.kind, tuple(numbers.items()))


def _select_layer_type(
    table: JsonObject | None, usual: RopeDefaults, entry: ast.Field
) -> JsonObject | None:
    """Return the settings that apply, from a table that may have some for each layer type.
    Raise E0403 if it has them but the spec expects one set, or the other way round.
    """
    if table is None:
        return None
    nested = [k for k, m in table.members.items() if isinstance(m.value, JsonObject)]
    if not usual.layers:
        if nested:
            title = (
                f'"rope_parameters" has settings per layer type (`{nested[0]}`), expected one set'
            )
            raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))
        return table
    member = table.given(usual.layers)
    if member is not None and isinstance(member.value, JsonObject):
        return member.value
    # settings of other layer types only: these layers have the defaults
    if member is None and len(nested) == sum(not m.null for m in table.members.values()):
        return None
    title = f'"rope_parameters" has no settings for layers of type `{usual.layers}`'
    raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))


def _raise_unusable_rope(why: str, span: Span, entry: ast.Field) -> NoReturn:
    title = f"invalid RoPE settings: {why}"
    raise_error("E0403", title, span, others=_make_declaration_labels(entry))


def _make_declaration_labels(entry: ast.Field) -> list[Label]:
    return [Label(entry.span, "declared here")] if entry.span else []


def _read_theta(
    inner: JsonObject | None, data: JsonObject, entry: ast.Field, base: str
) -> tuple[float, JsonMember | None]:
    """Return theta and its member: among the settings, or at the top level in older files.
    Raise E0403 if both are given and differ.
    """
    within = inner.find("rope_theta") if inner else None
    top = data.find(base)
    values = [_read_number(m, entry) for m in (within, top) if m and not m.null]
    if len(set(values)) > 1 and top:
        title = f"two values of theta differ: {values[0]:g} and {values[1]:g}"
        raise_error("E0403", title, top.value.span, others=_make_declaration_labels(entry))
    if not values:
        return 0.0, None
    return values[0], within or top


def _read_scaling_kind(table: JsonObject, entry: ast.Field) -> str:
    """Return the scaling kind of a table; `default` if it names none."""
    named = table.find("rope_type") or table.find("type")
    if named is None:
        return "default"
    kind = named.value.value if isinstance(named.value, JsonScalar) else None
    if isinstance(kind, str):
        kind = SCALING_ALIASES.get(kind, kind)
    # the first Phi-3 files have divisors under the name "yarn"
    if kind == "yarn" and table.given("short_factor"):
        return "longrope"
    # Hunyuan's files have a factor of theta under the name "dynamic"
    if kind == "dynamic" and table.given("alpha"):
        return "ntk_alpha"
    if isinstance(kind, str) and kind in SCALING_KINDS:
        return kind
    title = f"unknown RoPE scaling {named.value.span.text}"
    raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))


def _get_settings(key: str, data: JsonObject, entry: ast.Field) -> JsonObject | None:
    """Return the object under a key, or None if it is absent or null."""
    member = data.given(key)
    if member is None:
        return None
    if not isinstance(member.value, JsonObject):
        raise_error(
            "E0403",
            f'"{key}" must be an object',
            member.value.span,
            others=_make_declaration_labels(entry),
        )
    return member.value


def _read_number(member: JsonMember, entry: ast.Field) -> float:
    value = get_finite_number(member.value)
    if value is None:
        title = f"{member.key.text} must be a number"
        raise_error(
            "E0403",
            title,
            member.value.span,
            "expected a number",
            others=_make_declaration_labels(entry),
        )
    return float(value)


@dataclass(frozen=True)
class _ScalingTable:
    """A table of RoPE settings in the config file `data`."""

    table: JsonObject
    kind: str
    entry: ast.Field
    data: JsonObject
    usual: RopeDefaults

    def numbers(self) -> tuple[tuple[str, RopeNumber], ...]:
        """Return the settings of the kind, under the names of `compute_rope_frequencies`."""
        if self.kind == "default":
            return ()
        if self.kind == "longrope":
            return self.long()
        if self.kind == "ntk_alpha":
            return (("alpha", self.number("alpha")),)
        if self.kind == "proportional":
            return _read_proportional(self)
        numbers: list[tuple[str, RopeNumber]] = [("factor", self.factor())]
        # for `dynamic` the original length is the maximum length of the model
        if self.kind == "dynamic":
            numbers += [("original", self.length()), ("longest", self.length())]
        if self.kind == "llama3":
            numbers += [
                ("low", self.number("low_freq_factor") or 1.0),
                ("high", self.number("high_freq_factor") or 4.0),
            ]
        if self.kind == "yarn":
            # the published code treats zero as absent
            numbers += [
                ("fast", self.number("beta_fast") or 32.0),
                ("slow", self.number("beta_slow") or 1.0),
            ]
            numbers += [("attention", self.get_attention())]
            if _read_boolean(self, "truncate") is False:
                numbers.append(("truncate", False))
        if self.kind in ("llama3", "yarn"):
            numbers.append(("original", self.original()))
        return tuple(numbers)

    def long(self) -> tuple[tuple[str, RopeNumber], ...]:
        """Return the divisors up to the original length, and those for longer sequences."""
        short, long = self.read_divisors("short_factor"), self.read_divisors("long_factor")
        return (
            ("factor", self.factor()),
            ("divisors", short),
            ("beyond", long),
            ("attention", self.number(self.usual.attention)),
            ("original", self.original()),
            # equal divisors apply at every length
            *([] if short == long else [("longest", self.original())]),
        )

    def read_divisors(self, key: str) -> tuple[float, ...]:
        """Return one number per rotated pair."""
        member = self.table.given(key)
        if member is None or not isinstance(member.value, JsonList):
            title = f'RoPE scaling "longrope" needs a list "{key}"'
            where = member.value.span if member else self.table.span
            raise_error("E0403", title, where, others=_make_declaration_labels(self.entry))
        items = [JsonMember(member.key, item) for item in member.value.items]
        return tuple(_read_number(item, self.entry) for item in items)

    def factor(self) -> float:
        """Return the scaling factor. Null means the ratio of the two lengths for yarn and
        longrope; for longrope so does a missing key.
        """
        member = self.table.find("factor")
        if self.kind == "longrope" and (member is None or member.null):
            return self.length() / self.original()
        if member is None or (member.null and self.kind != "yarn"):
            title = f'RoPE scaling "{self.kind}" needs a "factor"'
            raise_error(
                "E0403",
                title,
                self.table.span,
                "expected the ratio of the extended to the original length",
                others=_make_declaration_labels(self.entry),
            )
        return self.length() / self.original() if member.null else _read_number(member, self.entry)

    def get_attention(self) -> float | None:
        """Return the factor of cos and sin, if the file gives it (arXiv:2405.04434, authors'
        code).
        """
        given, scale, all_dim = (
            self.number(n) for n in (self.usual.attention, "mscale", "mscale_all_dim")
        )
        # the factor itself overrides the two it would be computed from
        if given is not None or not scale or not all_dim:
            return given
        return compute_yarn_scale(self.factor(), scale) / compute_yarn_scale(self.factor(), all_dim)

    def original(self) -> int:
        """Return the original sequence length; it defaults to the maximum length."""
        key = "original_max_position_embeddings"
        # at the top level in some files, as in Phi-3's, which takes precedence unless
        # there are settings per layer type
        top = None if self.usual.layers else self.data.given(key)
        if top is None and self.usual.original is not None:
            return int(self.usual.original)
        member = top or self.table.given(key)
        return self.rows(member) if member else self.length()

    def length(self) -> int:
        """Return the maximum sequence length."""
        member = self.data.given("max_position_embeddings")
        if member is not None:
            return self.rows(member)
        if self.usual.context is None:
            title = f'RoPE scaling "{self.kind}" needs the original length'
            helps = ['add "original_max_position_embeddings" to its settings']
            raise_error(
                "E0403",
                title,
                self.table.span,
                others=_make_declaration_labels(self.entry),
                helps=helps,
            )
        return int(self.usual.context)

    def rows(self, member: JsonMember) -> int:
        """Return a sequence length, at least 1."""
        rows = int(_read_number(member, self.entry))
        if not 0 < rows < 2**31:
            title = f"{member.key.text} must be a sequence length"
            raise_error(
                "E0403", title, member.value.span, others=_make_declaration_labels(self.entry)
            )
        return rows

    def number(self, key: str) -> float | None:
        """Return the number under a key, or None if it is absent or null."""
        member = self.table.given(key)
        return None if member is None else _read_number(member, self.entry)


def _read_proportional(scaling: _ScalingTable) -> tuple[tuple[str, RopeNumber], ...]:
    """Return the factor, which only this kind may omit, and the rotated fraction of a head."""
    part = scaling.number("partial_rotary_factor")
    factor = scaling.number("factor") or 1.0
    return ("factor", factor), ("part", 1.0 if part is None else part)


def _read_boolean(scaling: _ScalingTable, key: str) -> bool | None:
    """Return the boolean under a key, or None if it is absent or null."""
    member = scaling.table.given(key)
    if member is None:
        return None
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    if not isinstance(value, bool):
        raise_error(
            "E0403",
            f"{member.key.text} must be true or false",
            member.value.span,
            others=_make_declaration_labels(scaling.entry),
        )
    return value
