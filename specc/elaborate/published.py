"""Config fields from a published config.json: aliases in order, null as absent, types checked, origins kept."""

from dataclasses import dataclass
from typing import Any

from specc.elaborate.config import ABSENT
from specc.elaborate.config_json import Json, JsonList, JsonObject, JsonScalar, Member
from specc.elaborate.context import Context, Env
from specc.elaborate.rope import fault, yarn_scale
from specc.elaborate.typing import STATIC, activation
from specc.elaborate.values import Picked, RawConfig, Rope
from specc.ir.dim import Dim
from specc.lang import tree
from specc.text.diagnostic import Label, fail
from specc.text.source import Span


def published(context: Context, entry: tree.Field, env: Env) -> Any:
    """The value of a field whose `from` finds something, or ABSENT."""
    data = env.raw
    if not isinstance(data, JsonObject):
        return ABSENT
    for source in entry.sources:
        found = _from(context, source, entry, data, env)
        if found is not ABSENT:
            return found
    return ABSENT


def check_expected(program_entries: list[tree.Expect], data: JsonObject) -> None:
    """E0405 for a config file of another family, or another form of it, than the spec is made for.

    Among the values of an expectation `none` is for a key that is absent or null.
    """
    for entry in program_entries:
        member = data.find(entry.key)
        if _said(member) not in entry.values:
            shown = f"`{_said(member)}`" if member and not _null(member) else "missing"
            others = [Label(entry.span, "this spec says so")] if entry.span else []
            fail(
                "E0405",
                f'"{entry.key}" is {shown}, this spec reads {" or ".join(entry.values)}',
                member.value.span if member else None,
                others=others,
            )


def _said(member: Member | None) -> str:
    """The value of a key as `expect` writes it: a text, `true`, `false`, a number, or `none`."""
    if member is None or _null(member):
        return "none"
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    return value if isinstance(value, str) else member.value.span.text


def _from(context: Context, source: Any, entry: tree.Field, data: JsonObject, env: Env) -> Any:
    match source:
        case tree.Text(value=path):
            member = data.find(path)
            if member is None or _null(member):
                return ABSENT
            return _typed(context, member, entry.type, entry, env)
        case tree.Call(function=tree.Name(path="len"), args=(tree.Text(value=path),)):
            member = data.find(path)
            if member is None or _null(member):
                return ABSENT
            count = _count(member)
            return Dim.of(count).since(member.origin())
        case tree.Call(function=tree.Name(path="rope_config")):
            return _rope(source, entry, data)
    fail("E0406", 'a config value comes from a text path, `len("…")` or `rope_config(…)`', source.span)


def _null(member: Member) -> bool:
    return isinstance(member.value, JsonScalar) and member.value.value is None


def _count(member: Member) -> int:
    if isinstance(member.value, JsonList):
        return len(member.value.items)
    if isinstance(member.value, JsonObject):
        return len(member.value.members)
    fail("E0403", f"{member.key.text} has no length", member.value.span)


def _typed(context: Context, member: Member, type: tree.TypeName, entry: tree.Field, env: Env) -> Any:
    value: Json = member.value
    if type.name == "record" and isinstance(value, JsonObject):
        return RawConfig(member.key.text.strip('"'), value)
    if type.name == "list":
        if isinstance(value, JsonObject) and (items := _numbered(value)) is not None:
            return tuple(_scalar(context, item, type.of, member, entry, env) for item in items if type.of)
        if not isinstance(value, JsonList):
            one = type.of and _scalar(context, value, type.of, member, entry, env)
            return (one,)
        assert type.of is not None
        return tuple(_scalar(context, item, type.of, member, entry, env) for item in value.items)
    return _scalar(context, value, type, member, entry, env)


def _numbered(value: JsonObject) -> list[Json] | None:
    """The values of `{"0": …, "1": …}` in order, as labels are written; None where keys are no such numbers."""
    keys = [str(n) for n in range(len(value.members))]
    return [value.members[key].value for key in keys] if set(keys) == set(value.members) else None


def _scalar(context: Context, value: Json, type: tree.TypeName, member: Member, entry: tree.Field, env: Env) -> Any:
    span = value.span
    plain = value.value if isinstance(value, JsonScalar) else _no(value, member, type, entry)
    match type.name:
        case "int" if isinstance(plain, int) and not isinstance(plain, bool):
            return Dim.of(plain).since(member.origin())
        case "float" if isinstance(plain, int | float) and not isinstance(plain, bool):
            return float(plain)
        case "bool" if isinstance(plain, bool):
            return plain
        case "text" if isinstance(plain, str):
            return plain
        case "choice" if plain in type.names:
            return Picked(str(plain), type.names)
        case "activation" if isinstance(plain, str):
            return activation(context, plain, env, span)
    if type.name == "choice":
        fail(
            "E0403", f"{member.key.text} is {plain!r}; this spec knows {', '.join(type.names)}", span, others=_at(entry)
        )
    return _wrong(plain, member, type, entry, span)


def _no(value: Json, member: Member, type: tree.TypeName, entry: tree.Field) -> Any:
    what = "a list" if isinstance(value, JsonList) else "a record"
    return _wrong(what, member, type, entry, value.span)


def _wrong(value: Any, member: Member, type: tree.TypeName, entry: tree.Field, span: Span) -> Any:
    kinds = {"int": "a whole number", "float": "a number", "bool": "true or false", "text": "a text"}
    wanted = kinds.get(type.name, type.name)
    assert type.name in STATIC or type.name in ("choice", "list")
    shown = span.text if isinstance(value, str | bool | int | float) and len(span.text) < 60 else value
    title = f"{member.key.text} is {shown} where {wanted} is expected"
    fail("E0403", title, span, f"`{entry.name}` takes {wanted}", others=_at(entry))


def _at(entry: tree.Field) -> list[Label]:
    return [Label(entry.span, "declared here")] if entry.span else []


SCALED = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def _rope(source: tree.Call, entry: tree.Field, data: JsonObject) -> Any:
    """Both forms of rotary settings: `rope_parameters`, or `rope_theta` with `rope_scaling`. They must agree."""
    usual = {o.name: float(o.value.text) for o in source.options if isinstance(o.value, tree.Num)}
    theta = usual.get("theta", 10000.0)
    inner, old = _settings("rope_parameters", data, entry), _settings("rope_scaling", data, entry)
    top, found = data.find("rope_theta"), inner.find("rope_theta") if inner else None
    values = [_number(m, entry) for m in (found, top) if m and not _null(m)]
    if len(set(values)) > 1 and top:
        fail("E0403", f"two rotary bases differ: {values[0]:g} and {values[1]:g}", top.value.span, others=_at(entry))
    theta = values[0] if values else theta
    scaling = inner or old
    if inner and old and inner.plain() != old.plain():
        title = '"rope_parameters" and "rope_scaling" are both given, and differ'
        fail("E0403", title, old.span, others=[Label(inner.span, "given first here"), *_at(entry)])
    if scaling is None:
        made = Rope(theta)
        if (why := fault(made)) and (where := found or top):
            fail("E0403", f"the rotary settings cannot be used: {why}", where.value.span, others=_at(entry))
        return made
    named = scaling.find("rope_type") or scaling.find("type")
    kind = named.value.value if named and isinstance(named.value, JsonScalar) else None if named else "default"
    if kind not in SCALED:
        shown = named.value.span.text if named else kind
        fail("E0403", f"the rotary scaling {shown} is not known", scaling.span, others=_at(entry))
    made = Rope(theta, str(kind), _Scaling(scaling, str(kind), entry, data, usual.get("context")).numbers())
    if why := fault(made):
        fail("E0403", f"the rotary settings cannot be used: {why}", scaling.span, others=_at(entry))
    return made


def _settings(key: str, data: JsonObject, entry: tree.Field) -> JsonObject | None:
    """The object under a key; nothing where it is absent or null."""
    member = data.find(key)
    if member is None or _null(member):
        return None
    if not isinstance(member.value, JsonObject):
        fail("E0403", f'"{key}" is no table of settings', member.value.span, others=_at(entry))
    return member.value


def _number(member: Member, entry: tree.Field) -> float:
    value = member.value.value if isinstance(member.value, JsonScalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        title = f"{member.key.text} is no number"
        fail("E0403", title, member.value.span, "a number is expected", others=_at(entry))
    return float(value)


@dataclass(frozen=True)
class _Scaling:
    """A table of rotary settings, in the config file `data`. `context` is how long texts are where it is silent."""

    table: JsonObject
    kind: str
    entry: tree.Field
    data: JsonObject
    context: float | None

    def numbers(self) -> tuple[tuple[str, Any], ...]:
        """The settings that the kind has, by the names that `frequencies` knows."""
        if self.kind == "default":
            return ()
        made: list[tuple[str, Any]] = [("factor", self.factor())]
        if self.kind == "llama3":
            made += [("low", self.number("low_freq_factor") or 1.0), ("high", self.number("high_freq_factor") or 4.0)]
        if self.kind == "yarn":
            # zero is no number of turns: the published code takes it as absent
            made += [("fast", self.number("beta_fast") or 32.0), ("slow", self.number("beta_slow") or 1.0)]
            made += [("attention", self.attention())]
            if self.truth("truncate") is False:
                made.append(("truncate", False))
        if self.kind in ("llama3", "yarn"):
            made.append(("original", self.original()))
        return tuple(made)

    def factor(self) -> float:
        """How much longer texts are. For yarn null is the ratio of both lengths."""
        member = self.table.find("factor")
        if member is None or (_null(member) and self.kind != "yarn"):
            title = f'the rotary scaling "{self.kind}" has no "factor"'
            fail("E0403", title, self.table.span, "how much longer texts are is due here", others=_at(self.entry))
        return self.length() / self.original() if _null(member) else _number(member, self.entry)

    def attention(self) -> float | None:
        """What cos and sin are multiplied by, where the file says so (arXiv:2405.04434, authors' code)."""
        given, scale, all_dim = (self.number(n) for n in ("attention_factor", "mscale", "mscale_all_dim"))
        if given is not None or not scale or not all_dim:
            return given
        return yarn_scale(self.factor(), scale) / yarn_scale(self.factor(), all_dim)

    def original(self) -> int:
        """How long texts were before the scaling: the model's greatest length, unless it is given."""
        for table in (self.data, self.table):
            member = table.find("original_max_position_embeddings")
            if member is not None and not _null(member):
                return int(_number(member, self.entry))
        return self.length()

    def length(self) -> int:
        """How long texts may be."""
        member = self.data.find("max_position_embeddings")
        if member is not None and not _null(member):
            return int(_number(member, self.entry))
        if self.context is None:
            title = f'the rotary scaling "{self.kind}" does not say how long texts were before'
            helps = ['give "original_max_position_embeddings" beside its factor']
            fail("E0403", title, self.table.span, others=_at(self.entry), helps=helps)
        return int(self.context)

    def number(self, key: str) -> float | None:
        """The number under a key; nothing where it is absent or null."""
        member = self.table.find(key)
        return None if member is None or _null(member) else _number(member, self.entry)

    def truth(self, key: str) -> bool | None:
        """The truth value under a key; nothing where it is absent or null."""
        member = self.table.find(key)
        if member is None or _null(member):
            return None
        value = member.value.value if isinstance(member.value, JsonScalar) else None
        if not isinstance(value, bool):
            fail("E0403", f"{member.key.text} is neither true nor false", member.value.span, others=_at(self.entry))
        return value
