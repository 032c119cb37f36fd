"""The Python interface: what the commands do, as functions. Three lines each.

    specc.check("my.specc")
    specc.compile("vit", "vit.onnx", weights="checkpoint/")
    specc.load("vit.onnx").run(pixels=array)

Everything that is wrong with what is given is raised as `specc.Failed`, whose `diagnostics` hold code, text,
place and help.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from specc import compiling, driver, packaging, running
from specc.entrance import Entrance
from specc.input import shown
from specc.lang.limits import NESTING
from specc.manifest import Manifest
from specc.package_index import is_package
from specc.packages import open_package
from specc.text.diagnostic import Failed, fail
from specc.writers.writer import Writer, open_writer, writer_of
from specc.writers.writing import Writing

__all__ = ["Failed", "Model", "check", "compile", "load"]


def check(spec: str | Path, *, config: str | Path = "", set: Mapping[str, Any] | None = None) -> driver.Checked:
    """Check a spec, a path or the name of a shipped one: shapes for every size, then with the config's numbers."""
    return driver.check(_open(spec, config, set))


def compile(
    spec: str | Path,
    output: str | Path,
    *,
    weights: str | Path = "",
    init: int | None = None,
    config: str | Path = "",
    set: Mapping[str, Any] | None = None,
    target: str = "ort-cpu",
    opset: int = 0,
    taps: Sequence[str] = (),
    graph: str = "",
    weights_as: str = "",
    defaults_inside: bool = False,
    parts: str | Sequence[str] = (),
    names: str = "specc",
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
) -> compiling.Compiled:
    """Compile a spec to the ONNX model `output`.

    Weights come from `weights` (a safetensors file or a checkpoint folder), from the file the spec names,
    or are drawn from the seed `init`. `set` gives config values by dotted name: `{"encoder.layers": 4}`.
    `opset` 17 to 26 overrides the target's. `taps` name scopes whose values become further results. `graph` picks
    one of several, `weights_as` is `link`, `copy` or `inline`, `defaults_inside` computes absent inputs in the model.
    With `parts` (`score`, `encode`, `step`, `generate`, or "all") the output is a folder with these graphs over the
    same weights; `names` says whose names its inputs and outputs have: `specc`, `hf` or `genai`. `generate` alone may
    be one file; `settings` (`strategy`, `beams`, `temperature`, …) are then its defaults before the spec's.
    What lies at `output` is replaced if specc wrote it, and anything else only with `force`; an input never.
    """
    chosen = packaging.parts_of(parts)
    _check_settings(settings, chosen)
    options = compiling.Options(
        output=os.fspath(output),
        weights=str(weights) if weights else "",
        init=init,
        target=target,
        opset=opset,
        taps=tuple(taps),
        graph=graph,
        weights_as=weights_as,
        defaults_inside=defaults_inside,
        parts=chosen,
        names=names,
        settings=dict(settings or {}),
        force=force,
    )
    opened = _open(spec, config, set, options.weights)
    return packaging.compile_package(opened, options) if chosen else compiling.compile_spec(opened, options)


@dataclass(frozen=True)
class Model:
    """A compiled model, or a package: `run` computes the whole graph, `generate` writes."""

    scoring: running.Loaded | None
    writer: Writer | None

    @property
    def whole(self) -> running.Loaded:
        """The whole graph. E0832 where a package lacks it."""
        if self.scoring is None:
            fail("E0832", "this package has no `score` graph", helps=["compile it with `score` among its parts"])
        return self.scoring

    def run(self, **inputs: Any) -> dict[str, Any]:
        """The results by name for these inputs: arrays, nested lists, texts. E09xx on inputs it cannot take."""
        if self.scoring is not None and self.scoring.manifest.decodes is not None:
            fail("E0832", "this model decodes by itself and has no other results", helps=["use `generate`"])
        return self.whole.run(**inputs)

    def attention(self, **inputs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The results, and the weights of every attention by its scope: [batch, heads, query, key]."""
        return self.whole.attention(**inputs)

    def generate(self, *given: Any, **settings: Any) -> Writing:
        """Write behind what is given: see `specc.writers.writer.Writer.generate`. E0701 for a model that does not."""
        if self.writer is None:
            fail("E0701", "this model does not generate", helps=["compile a spec that says `generate`"])
        return self.writer.generate(*given, **settings)

    def prepared(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Checked arrays for every input of the whole graph, defaults filled in."""
        return self.whole.prepared(inputs)

    @property
    def entrance(self) -> Entrance:
        """What may be given to it."""
        return self.writer.entrance if self.scoring is None and self.writer else self.whole.entrance

    @property
    def path(self) -> Path:
        """Where the whole graph lies."""
        return self.whole.path

    @property
    def manifest(self) -> Manifest:
        """What the whole graph says about itself."""
        return self.whole.manifest

    @property
    def session(self) -> Any:
        """The whole graph in the runtime."""
        return self.whole.session

    def weights(self) -> dict[str, Any]:
        """The parameters by the spec's names."""
        return self.whole.weights()


def load(model: str | Path, *, provider: str = "cpu", threads: int = 0) -> Model:
    """Open a compiled model, or a package, on an execution provider: `cpu`, `cuda`, … There is no silent fall-back."""
    if not is_package(model):
        scoring = running.open_model(str(model), provider=provider, threads=threads)
        return Model(scoring, writer_of(scoring))
    package = open_package(model)
    roles = package.roles
    whole = package.load("score", provider=provider, threads=threads) if "score" in roles else None
    writes = (
        open_writer(package, provider=provider, threads=threads) if "step" in roles and package.index.about else None
    )
    return Model(whole, writes or (writer_of(whole) if whole else None))


def _check_settings(settings: object, parts: Sequence[str]) -> None:
    """E0731 for settings that are none, E0753 for settings of a model that does not decode by itself."""
    if settings is not None and not isinstance(settings, Mapping):
        fail("E0731", f"settings of generation have names, {shown(repr(settings))[:60]} has none")
    if settings and "generate" not in parts:
        fail(
            "E0753",
            "`settings` are those of a model that decodes by itself, and none is asked for",
            helps=['add "generate" to `parts`', "or give them to `generate` when the model is run"],
        )


def _open(spec: str | Path, config: str | Path, given: Mapping[str, Any] | None, weights: str = "") -> driver.Spec:
    sets = [f"{name}={text}" for name, text in _texts("", given or {})]
    return driver.open_spec(str(spec), config=str(config) if config else "", sets=sets, weights=weights)


def _texts(prefix: str, given: Mapping[str, Any], depth: int = 0) -> Iterator[tuple[str, str]]:
    """Config values by dotted path, as the language writes them."""
    if depth > NESTING:
        fail("E0203", f"values are nested more than {NESTING} deep", helps=["does a value hold itself?"])
    for key, value in given.items():
        path = f"{prefix}{key}"
        if "=" in path:
            fail("E0407", f"`{shown(path)}` is no name of a config value")
        if isinstance(value, Mapping):
            yield from _texts(f"{path}.", value, depth + 1)
        else:
            yield path, _text(value, path)


def _text(value: Any, path: str, depth: int = 0) -> str:
    """A Python value as the language writes it. E0203 for one that has no such form."""
    if depth > NESTING:
        fail(
            "E0203", f"the value of `{shown(path)}` is nested more than {NESTING} deep", helps=["does it hold itself?"]
        )
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return value
        case list() | tuple():
            return f"[{', '.join(_text(item, path, depth + 1) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    fail(
        "E0203",
        f"`{shown(path)}` cannot be set to {shown(repr(value))[:60]}",
        helps=["give a number, a truth, a text, a list or none"],
    )
