"""Draft a spec from a checkpoint directory: nearest built-in spec, its config, misfits."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from specc.diagnostics.diagnostic import Failed, raise_error
from specc.driver.python_arguments import open_spec_argument
from specc.driver.spec_instance import SpecInstance, write_instance
from specc.driver.spec_loader import OpenedSpec, warn_unread_keys
from specc.driver.tied_weights import mark_ties
from specc.driver.weight_sources import WeightSources, load_parameter_values
from specc.frontend.config_values import ConfigReader
from specc.frontend.json_nodes import JsonObject, JsonScalar
from specc.frontend.spec_modules import Program, build_program
from specc.frontend.spec_to_graph import elaborate_model
from specc.frontend.used_specs import MODEL_TYPE_KEY, choose_used_specs
from specc.huggingface.model_family import (
    count_known_keys,
    graph_for_architecture,
    supported_model_types,
)
from specc.io.safe_read import escape_text
from specc.ir.model import ModelDefinition
from specc.library.spec_files import SpecLibrary, load_config_json
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import print_dsl
from specc.weights.checkpoint import open_weights

TRIED = 4
"""Specs of which the tensors are compared, of those whose keys fit best."""
LISTED = 12
"""Names of one kind that are listed."""


@dataclass(frozen=True, kw_only=True)
class SpecDraft:
    """An instance of the shipped spec `base` that makes its `graph`, with the values of a
    config.json in it; `unplaced` says, a line each, what is in the checkpoint and not in
    it, or the other way about. `certain`: the spec is for files of this type.
    """

    file: ast.File
    base: str
    graph: str
    values: int
    certain: bool
    unplaced: tuple[str, ...]


def draft_spec(folder: str, name: str, sign: str, above: tuple[str, ...] = ()) -> SpecDraft:
    """The draft called `name`. Fails with E0948 where no shipped spec is near, E0802 and
    E0410 to E0415 for a config.json that cannot be read.
    """
    data = load_config_json(folder)
    names = _tensors(folder)
    kind = _type(data)
    base = supported_model_types().get(kind, "")
    spec, model = _elaborated(base, data) if base else _nearest(folder, data, names)
    spec = replace(spec, checkpoint=folder)
    parts = dict(_parts(spec.program))
    kept, lost = _values(spec, model, parts, name)
    unplaced = [f"the value of `{path}`, {text}" for path, text in lost.items()]
    unplaced += _keys(spec, data)
    unplaced += _weights(spec, model, names)
    beginning = SpecInstance(
        name=name, extends=spec.named, values={**parts, **kept}, above=above, only=True, sign=sign
    )
    return SpecDraft(
        file=write_instance(beginning),
        base=spec.named,
        graph=model.graph.name,
        values=len(kept),
        certain=bool(base),
        unplaced=tuple(unplaced),
    )


def _type(data: JsonObject) -> str:
    """The type that a config.json names; empty where it names none."""
    member = data.given(MODEL_TYPE_KEY)
    if member is None or not isinstance(member.value, JsonScalar):
        return ""
    value = member.value.value
    return value if isinstance(value, str) else ""


def _tensors(folder: str) -> frozenset[str]:
    """The names of a checkpoint's tensors; none where it has no weights yet."""
    try:
        with closing(open_weights(folder)) as checkpoint:
            return frozenset(checkpoint.tensors)
    except Failed as failed:
        # a config.json alone says something as well; damaged files are said to be
        if any(d.code not in ("E0802", "E0518") for d in failed.diagnostics):
            raise
        return frozenset()


def _elaborated(base: str, data: JsonObject) -> tuple[OpenedSpec, ModelDefinition]:
    """A shipped spec with the values of a config file, whatever type that is of."""
    library = SpecLibrary()
    program = choose_used_specs(build_program(library.open(base), library), data)
    reader = ConfigReader(published=library.published, raw=data)
    spec = OpenedSpec(program, library, reader, base)
    graph = ""
    with suppress(Failed):  # of another family, whose classes this one does not know
        graph = graph_for_architecture(program, data)
    return spec, _model(spec, graph)


def _model(spec: OpenedSpec, graph: str = "") -> ModelDefinition:
    """The model with numbers. Shipped specs are known to be right for every size, so that
    this is not proved again.
    """
    made = elaborate_model(spec.program, spec.library, spec.reader, graph)
    return mark_ties(spec.program, spec.library, spec.reader, made)


def _nearest(
    folder: str, data: JsonObject, names: frozenset[str]
) -> tuple[OpenedSpec, ModelDefinition]:
    """The spec whose parameters are called most like the tensors, of those that read most
    of the keys. E0948 where none does.
    """
    read = count_known_keys(data)
    # Keys such as `vocab_size` are in every config.json: two in common mean nothing.
    near = [name for name in read if read[name] > 2]
    wanted = _patterns(names)
    found: list[tuple[float, int, OpenedSpec, ModelDefinition]] = []
    for base in near[:TRIED]:
        with suppress(Failed):
            spec, model = _elaborated(base, data)
            alike = len(wanted & _patterns(frozenset(model.graph.parameters)))
            found.append((alike / max(len(wanted), 1), read[base], spec, model))
    if not found:
        raise_error(
            "E0948",
            f"no shipped spec is near the model in `{escape_text(folder)}`",
            notes=[f"its config.json is of the type `{escape_text(_type(data))[:60]}`"],
            helps=[
                "begin with the spec that is most like it: specc new bert my.yaml",
                "docs/families.md says how a family is written",
            ],
        )
    best = max(found, key=lambda one: one[:2])
    return best[2], best[3]


def _patterns(names: frozenset[str]) -> set[str]:
    """What names end in, numbers of layers left open: families differ in what stands
    before.
    """
    return {".".join(re.sub(r"\d+", "{i}", name).split(".")[-3:]) for name in names}


def _parts(program: Program, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Which specs are used, of those that may be several, by path."""
    for part in program.parts:
        path = f"{prefix}{part.name}"
        if len(part.programs) > 1:
            yield path, part.path
        yield from _parts(part.program, f"{path}.")


def _values(
    spec: OpenedSpec, model: ModelDefinition, parts: Mapping[str, str], name: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Config values that are not those the spec, with these `parts`, has anyway, as text
    by path: those that an instance gives the same model by, and the rest.
    """
    types = {path: entry.type for path, entry in spec.program.paths().items()}
    base = spec.named
    own = (_meant(base, parts, name) or {}) if parts else _defaults(open_spec_argument(base))
    wanted = {path: value for path, value in _flat(model.config) if own.get(path, ...) != value}
    texts = {path: _text(value, types.get(path)) for path, value in wanted.items()}
    known = {path: text for path, text in texts.items() if text is not None}
    kept = _understood(base, parts, known, name)
    made = _meant(base, {**parts, **kept}, name)
    if made is not None:
        kept = {path: kept[path] for path in kept if made.get(path, ...) == wanted[path]}
    lost = {path: json.dumps(wanted[path]) for path in wanted if path not in kept}
    return kept, lost


def _understood(
    base: str, parts: Mapping[str, str], texts: dict[str, str], name: str
) -> dict[str, str]:
    """Values without those that cannot be read even alone, which would spoil the others."""
    if _meant(base, {**parts, **texts}, name) is not None:
        return texts
    alone = {path: _meant(base, {**parts, path: text}, name) for path, text in texts.items()}
    return {path: text for path, text in texts.items() if alone[path] is not None}


def _defaults(spec: OpenedSpec) -> dict[str, object]:
    """What the spec has anyway; nothing where values must be given."""
    with suppress(Failed):
        return dict(_flat(_model(spec).config))
    return {}


def _flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Values by dotted path. What a rope is made of is one value."""
    for key, value in config.items():
        if isinstance(value, dict) and "theta" not in value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: object, kind: ast.TypeName | None) -> str | None:
    """A value as the language writes it; None for one that it cannot."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value) if _is_text(kind) else value
        case list():
            items = [_text(item, kind) for item in value]
            known = [item for item in items if item is not None]
            return f"[{', '.join(known)}]" if len(known) == len(items) else None
        case {"theta": float(theta), **rest} if rest == {"kind": "default"}:
            return f"rope(theta={theta!r})"
    return None


def _is_text(kind: ast.TypeName | None) -> bool:
    """Whether a field holds texts, or a list of them."""
    inner = kind.of if kind is not None and kind.of is not None else kind
    return inner is not None and inner.name == "text"


def _meant(base: str, values: Mapping[str, str], name: str) -> dict[str, object] | None:
    """The config of the instance with these values; None where it cannot be read."""
    with suppress(Failed):
        text = print_dsl(
            write_instance(SpecInstance(name=name, extends=base, values=values, only=True))
        )
        return dict(_flat(_model(open_spec_argument(text)).config))
    return None


def _keys(spec: OpenedSpec, data: JsonObject) -> Iterator[str]:
    """The keys of a config.json that nothing reads."""
    for warning in warn_unread_keys(spec.program, data):
        yield f"of config.json: {'; '.join([warning.title, *warning.notes])}"


def _weights(spec: OpenedSpec, model: ModelDefinition, names: frozenset[str]) -> Iterator[str]:
    """What `compile` would say of the tensors, in short."""
    if not names:
        yield "weights: the folder has none that can be read"
        return
    try:
        load_parameter_values(spec, model.graph, WeightSources()).close()
    except Failed as failed:
        said = ["; ".join([d.title, *d.notes]) for d in failed.diagnostics]
        yield from (f"of the tensors: {line}" for line in said[:LISTED])
        if len(said) > LISTED:
            yield f"of the tensors: {len(said) - LISTED} more messages"
