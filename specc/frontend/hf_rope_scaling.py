"""Read rotary settings of a Hugging Face config.json (`rope_theta`, `rope_scaling`,
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

SCALING_KINDS = (*("default", "linear", "dynamic", "llama3", "yarn", "longrope"), "proportional")
SCALING_ALIASES = {"su": "longrope"}
"""What a scaling rule was called in older files."""
ROPE_KEYS = (
    *("rope_parameters", "rope_scaling", "rope_theta", "max_position_embeddings"),
    "original_max_position_embeddings",
)
"""Where a config.json says how positions turn, and up to which they were trained."""


@dataclass(frozen=True, kw_only=True)
class RopeDefaults:
    """What a spec says of rotary settings: what holds where a file is silent, and where
    it looks.

    `context` is how long texts are, `original` how long they were before the scaling.
    `layers` are the layers that are meant, of files that have a table for each type of
    layer; `base` is what older ones call their theta, and `scaled` whether
    `rope_scaling` is about them.
    """

    theta: float = 10000.0
    context: float | None = None
    original: float | None = None
    layers: str = ""
    base: str = "rope_theta"
    scaled: bool = True


def parse_rope_defaults(source: ast.Call) -> RopeDefaults:
    """The options of `rope_config(…)`. E0406 for one that it does not have."""
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
            case ast.Option("scaled", ast.Name("true" | "false" as truth)):
                usual = replace(usual, scaled=truth == "true")
            case _:
                raise_error(
                    "E0406",
                    f"`rope_config` has no such option as `{option.name}`",
                    option.span,
                    helps=[
                        "it has `theta`, `context` and `original`, which are numbers, "
                        "`layers` and `base`, which are texts, and `scaled=false`"
                    ],
                )
    return usual


def read_rope_config(
    source: ast.Call, entry: ast.Field, data: JsonObject, default: Rope | None
) -> Rope:
    """Both forms of rotary settings: `rope_parameters`, or `rope_theta` with
    `rope_scaling`. They must agree. The options of `source` hold where a number is left
    out, and the way of the `default` to scale where the file names none.
    """
    usual = parse_rope_defaults(source)
    inner = _select_layer_type(_get_settings("rope_parameters", data, entry), usual, entry)
    old = _get_settings("rope_scaling", data, entry) if usual.scaled else None
    theta, stated = _read_theta(inner, data, entry, usual.base)
    if stated is None:
        theta = usual.theta
    if inner and old and inner.plain() != old.plain():
        title = '"rope_parameters" and "rope_scaling" are both given, and differ'
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
    """The frequencies of a file that names no way to scale. How long texts were before
    it may say all the same, at its top.
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
    """The settings that are meant, of a table that may have some for each type of
    layer. E0403 where it has them and one set is expected, or the other way round.
    """
    if table is None:
        return None
    nested = [k for k, m in table.members.items() if isinstance(m.value, JsonObject)]
    if not usual.layers:
        if nested:
            title = f'"rope_parameters" are those of `{nested[0]}`, one set is expected'
            raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))
        return table
    member = table.given(usual.layers)
    if member is not None and isinstance(member.value, JsonObject):
        return member.value
    # Of other types of layers alone: these have the usual settings.
    if member is None and len(nested) == sum(not m.null for m in table.members.values()):
        return None
    title = f'"rope_parameters" has no settings of layers of `{usual.layers}`'
    raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))


def _raise_unusable_rope(why: str, span: Span, entry: ast.Field) -> NoReturn:
    title = f"the rotary settings cannot be used: {why}"
    raise_error("E0403", title, span, others=_make_declaration_labels(entry))


def _make_declaration_labels(entry: ast.Field) -> list[Label]:
    return [Label(entry.span, "declared here")] if entry.span else []


def _read_theta(
    inner: JsonObject | None, data: JsonObject, entry: ast.Field, base: str
) -> tuple[float, JsonMember | None]:
    """The base, and the member that says it: among the settings, or beside them as
    older files have it. E0403 where both are given and differ.
    """
    within = inner.find("rope_theta") if inner else None
    top = data.find(base)
    values = [_read_number(m, entry) for m in (within, top) if m and not m.null]
    if len(set(values)) > 1 and top:
        title = f"two rotary bases differ: {values[0]:g} and {values[1]:g}"
        raise_error("E0403", title, top.value.span, others=_make_declaration_labels(entry))
    if not values:
        return 0.0, None
    return values[0], within or top


def _read_scaling_kind(table: JsonObject, entry: ast.Field) -> str:
    """The scaling rule of a table; one that names none has the usual frequencies."""
    named = table.find("rope_type") or table.find("type")
    if named is None:
        return "default"
    kind = named.value.value if isinstance(named.value, JsonScalar) else None
    if isinstance(kind, str):
        kind = SCALING_ALIASES.get(kind, kind)
    # the first files of Phi-3 have divisors under the name of another rule
    if kind == "yarn" and table.given("short_factor"):
        return "longrope"
    if isinstance(kind, str) and kind in SCALING_KINDS:
        return kind
    title = f"the rotary scaling {named.value.span.text} is not known"
    raise_error("E0403", title, table.span, others=_make_declaration_labels(entry))


def _get_settings(key: str, data: JsonObject, entry: ast.Field) -> JsonObject | None:
    """The object under a key; nothing where it is absent or null."""
    member = data.given(key)
    if member is None:
        return None
    if not isinstance(member.value, JsonObject):
        raise_error(
            "E0403",
            f'"{key}" is no table of settings',
            member.value.span,
            others=_make_declaration_labels(entry),
        )
    return member.value


def _read_number(member: JsonMember, entry: ast.Field) -> float:
    value = get_finite_number(member.value)
    if value is None:
        title = f"{member.key.text} is no number"
        raise_error(
            "E0403",
            title,
            member.value.span,
            "a number is expected",
            others=_make_declaration_labels(entry),
        )
    return float(value)


@dataclass(frozen=True)
class _ScalingTable:
    """A table of rotary settings, in the config file `data`."""

    table: JsonObject
    kind: str
    entry: ast.Field
    data: JsonObject
    usual: RopeDefaults

    def numbers(self) -> tuple[tuple[str, RopeNumber], ...]:
        """The settings that the kind has, by the names that `frequencies` knows."""
        if self.kind == "default":
            return ()
        if self.kind == "longrope":
            return self.long()
        if self.kind == "proportional":
            return _read_proportional(self)
        numbers: list[tuple[str, RopeNumber]] = [("factor", self.factor())]
        # its own length is the model's, whatever it says of another
        if self.kind == "dynamic":
            numbers += [("original", self.length()), ("longest", self.length())]
        if self.kind == "llama3":
            numbers += [
                ("low", self.number("low_freq_factor") or 1.0),
                ("high", self.number("high_freq_factor") or 4.0),
            ]
        if self.kind == "yarn":
            # zero is no number of turns: the published code takes it as absent
            numbers += [
                ("fast", self.number("beta_fast") or 32.0),
                ("slow", self.number("beta_slow") or 1.0),
            ]
            numbers += [("attention", self.attention())]
            if _read_boolean(self, "truncate") is False:
                numbers.append(("truncate", False))
        if self.kind in ("llama3", "yarn"):
            numbers.append(("original", self.original()))
        return tuple(numbers)

    def long(self) -> tuple[tuple[str, RopeNumber], ...]:
        """Divisors for texts up to the original length, and for those beyond it."""
        return (
            ("factor", self.factor()),
            ("divisors", self.divisors("short_factor")),
            ("beyond", self.divisors("long_factor")),
            ("attention", self.number("attention_factor")),
            ("original", self.original()),
            ("longest", self.original()),
        )

    def divisors(self, key: str) -> tuple[float, ...]:
        """A number for each pair that turns."""
        member = self.table.given(key)
        if member is None or not isinstance(member.value, JsonList):
            title = f'the rotary scaling "longrope" needs a list under "{key}"'
            where = member.value.span if member else self.table.span
            raise_error("E0403", title, where, others=_make_declaration_labels(self.entry))
        items = [JsonMember(member.key, item) for item in member.value.items]
        return tuple(_read_number(item, self.entry) for item in items)

    def factor(self) -> float:
        """How much longer texts are. Null is the ratio of both lengths for yarn and
        longrope, and for longrope so is nothing.
        """
        member = self.table.find("factor")
        if self.kind == "longrope" and (member is None or member.null):
            return self.length() / self.original()
        if member is None or (member.null and self.kind != "yarn"):
            title = f'the rotary scaling "{self.kind}" has no "factor"'
            raise_error(
                "E0403",
                title,
                self.table.span,
                "how much longer texts are is due here",
                others=_make_declaration_labels(self.entry),
            )
        return self.length() / self.original() if member.null else _read_number(member, self.entry)

    def attention(self) -> float | None:
        """What cos and sin are multiplied by, where the file says so (arXiv:2405.04434,
        authors' code).
        """
        given, scale, all_dim = (
            self.number(n) for n in ("attention_factor", "mscale", "mscale_all_dim")
        )
        # the factor itself wins over the two it would be made of
        if given is not None or not scale or not all_dim:
            return given
        return compute_yarn_scale(self.factor(), scale) / compute_yarn_scale(self.factor(), all_dim)

    def original(self) -> int:
        """How long texts were before the scaling: the model's greatest length, unless
        it is given.
        """
        key = "original_max_position_embeddings"
        # some files have it at the top, as Phi-3's do; the top counts first, unless
        # there is a table for each type of layer
        top = None if self.usual.layers else self.data.given(key)
        if top is None and self.usual.original is not None:
            return int(self.usual.original)
        member = top or self.table.given(key)
        return self.rows(member) if member else self.length()

    def length(self) -> int:
        """How long texts may be."""
        member = self.data.given("max_position_embeddings")
        if member is not None:
            return self.rows(member)
        if self.usual.context is None:
            title = f'the rotary scaling "{self.kind}" does not say how long texts were before'
            helps = ['give "original_max_position_embeddings" beside its factor']
            raise_error(
                "E0403",
                title,
                self.table.span,
                others=_make_declaration_labels(self.entry),
                helps=helps,
            )
        return int(self.usual.context)

    def rows(self, member: JsonMember) -> int:
        """A length of texts, of one token at least."""
        rows = int(_read_number(member, self.entry))
        if not 0 < rows < 2**31:
            title = f"{member.key.text} is no length of texts"
            raise_error(
                "E0403", title, member.value.span, others=_make_declaration_labels(self.entry)
            )
        return rows

    def number(self, key: str) -> float | None:
        """The number under a key; nothing where it is absent or null."""
        member = self.table.given(key)
        return None if member is None else _read_number(member, self.entry)


def _read_proportional(scaling: _ScalingTable) -> tuple[tuple[str, RopeNumber], ...]:
    """The factor, which this kind alone may leave out, and how much of a head turns."""
    part = scaling.number("partial_rotary_factor")
    factor = scaling.number("factor") or 1.0
    return ("factor", factor), ("part", 1.0 if part is None else part)


def _read_boolean(scaling: _ScalingTable, key: str) -> bool | None:
    """The truth value under a key; nothing where it is absent or null."""
    member = scaling.table.given(key)
    if member is None:
        return None
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    if not isinstance(value, bool):
        raise_error(
            "E0403",
            f"{member.key.text} is neither true nor false",
            member.value.span,
            others=_make_declaration_labels(scaling.entry),
        )
    return value
