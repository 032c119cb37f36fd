"""Specs that a spec uses with a config of their own: which of several it is, and the part
of a config file that it reads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from specc.elaborate.blame import blamed
from specc.elaborate.config import Reader
from specc.elaborate.context import Env, joined
from specc.elaborate.json_nodes import JsonObject, JsonScalar, Member
from specc.elaborate.modules import Assigned, Part, Program
from specc.elaborate.values import Known, Picked, Record
from specc.lang import tree
from specc.text.diagnostic import Label, fail

TYPE = "model_type"
"""The key by which a config file says what kind of model a part of it is about."""


def entries_of(program: Program) -> list[tree.ConfigEntry]:
    """What a spec, and what it is an instance of, says of a config file."""
    return [e for item, _ in program.items(tree.Config) for e in item.entries]


def section(part: Part, data: JsonObject) -> JsonObject | None:
    """The part of a config file that a used spec reads; None where it reads none. E0227
    where the file has no such part.
    """
    keys = part.use.sources
    if not keys:
        return None
    member = next((m for m in map(data.given, keys) if m is not None), None)
    if member is not None and isinstance(member.value, JsonObject):
        return member.value
    quoted = " or ".join(f'"{key}"' for key in keys)
    used = f"`{part.name}` reads its config there"
    fail(
        "E0227",
        f"{data.span.source.name} has no table {quoted}",
        member.value.span if member else part.use.span,
        "this is none" if member else used,
        others=[Label(part.use.span, used)] if member and part.use.span else [],
        helps=[f'write `"{keys[0]}": {{…}}`, empty for what the spec has by itself'],
    )


def chosen(program: Program, data: JsonObject) -> Program:
    """The program, each part the spec that reads what the config file says it is. E0226
    where it may be none such.
    """
    parts: list[Part] = []
    for part in program.parts:
        inner = section(part, data)
        made = _of_type(part, inner.given(TYPE)) if inner and part.open else part
        if inner is not None:
            programs = list(made.programs)
            with blamed(part.use):
                programs[made.chosen or 0] = chosen(made.program, inner)
            made = replace(made, programs=tuple(programs))
        parts.append(made)
    return replace(program, parts=tuple(parts))


def _of_type(part: Part, member: Member | None) -> Part:
    """A part as the spec that reads a type; the first where the file names none."""
    if member is None:
        return replace(part, chosen=0)
    text = member.value.value if isinstance(member.value, JsonScalar) else None
    kinds = [types_of(program) for program in part.programs]
    for number, kind in enumerate(kinds):
        if text in kind:
            return replace(part, chosen=number)
    known = ", ".join(dict.fromkeys(k for kind in kinds for k in kind))
    fail(
        "E0228",
        f"`{part.name}` cannot be {member.value.span.text[:60]}",
        member.value.span,
        others=[Label(part.use.span, "it is one of these")] if part.use.span else [],
        notes=[f"those read {known}"],
        helps=[
            "name a spec that reads this type among them, or behind --spec your own"
        ],
    )


def types_of(program: Program) -> tuple[str, ...]:
    """The types of config files that a spec reads."""
    return tuple(
        value
        for entry in entries_of(program)
        if isinstance(entry, tree.Expect) and entry.key == TYPE
        for value in entry.values
    )


def tried(program: Program, fixed: Mapping[str, Known], path: str = "") -> Program:
    """The program, each part that is not settled the spec that is tried for it."""
    parts: list[Part] = []
    for part in program.parts:
        here = f"{path}{part.name}"
        word = fixed.get(here)
        found = part
        if part.open and isinstance(word, Picked):
            found = part.called(word.word) or part
        programs = list(found.programs)
        programs[found.chosen or 0] = tried(found.program, fixed, f"{here}.")
        parts.append(replace(found, programs=tuple(programs)))
    return replace(program, parts=tuple(parts))


def within(part: Part, program: Program, reader: Reader) -> tuple[Program, Reader]:
    """The used spec with the values that are given to it from outside, and how its config
    is read.
    """
    start = f"{part.name}."
    given = {
        path.removeprefix(start): _seen_from(program, value)
        for path, value in program.assigned.items()
        if path.startswith(start)
    }
    known = part.program.paths()
    for path, value in given.items():
        if path not in known and not _names_part(part.program, path):
            fail(
                "E0201",
                f"the config of `{part.program.module.file.model}` has no `{path}`",
                value.span,
                "unknown key",
                notes=[f"`{part.name}` is `{part.path}` here"],
            )
    raw = section(part, reader.raw) if reader.raw is not None else None
    inner = replace(part.program, assigned={**part.program.assigned, **given})
    published = reader.published if raw is not None else None
    path = reader.full(part.name)
    return inner, replace(reader, raw=raw, published=published, path=path)


def _names_part(program: Program, path: str) -> bool:
    """Whether a value says which spec a part of a part is."""
    return any(part.name == path for part in program.parts)


def _seen_from(program: Program, value: Assigned) -> Assigned:
    """A value with the module whose names it is written in."""
    named = program.chain[0] if program.chain else program.module
    return replace(value, module=value.module or named)


def used_specs(
    program: Program, config: Mapping[str, Known], scope: str = ""
) -> Iterator[tuple[Program, tree.Use, Env]]:
    """Every spec that a spec uses, and those that they use, with its `use` and an
    environment of its config and of the path that its weights stand under.
    """
    for part in program.parts:
        values = config[part.name]
        assert isinstance(values, Record)  # as it was read
        under = joined(scope, part.use.under.text if part.use.under else "")
        inner = part.program
        yield (
            inner,
            part.use,
            Env(module=inner.module, config=values.fields, scope=under),
        )
        yield from used_specs(inner, values.fields, under)


def uses_config(program: Program) -> bool:
    """Whether a spec, or one that it uses, takes values from a config file."""
    mine = any(entry.sources for entry in program.fields())
    return mine or any(part.use.sources for part in program.parts)
