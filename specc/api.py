"""The Python interface: what the commands do, as functions. Three lines each.

    specc.check("my.specc")
    specc.compile("vit", "vit.onnx", weights="checkpoint/")
    specc.load("vit.onnx").run(pixels=array)

Everything that is wrong with what is given is raised as `specc.Failed`, whose `diagnostics` hold code, text,
place and help.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from specc import compiling, driver, running
from specc.input import shown
from specc.text.diagnostic import Failed, fail

__all__ = ["Failed", "check", "compile", "load"]


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
) -> compiling.Compiled:
    """Compile a spec to the ONNX model `output`.

    Weights come from `weights` (a safetensors file or a checkpoint folder), from the file the spec names,
    or are drawn from the seed `init`. `set` gives config values by dotted name: `{"encoder.layers": 4}`.
    `opset` 17 to 26 overrides the target's. `taps` name scopes whose values become further results. `graph` picks
    one of several, `weights_as` is `link`, `copy` or `inline`, `defaults_inside` computes absent inputs in the model.
    """
    options = compiling.Options(
        output=str(output),
        weights=str(weights) if weights else "",
        init=init,
        target=target,
        opset=opset,
        taps=tuple(taps),
        graph=graph,
        weights_as=weights_as,
        defaults_inside=defaults_inside,
    )
    return compiling.compile_spec(_open(spec, config, set, options.weights), options)


def load(model: str | Path, *, provider: str = "cpu", threads: int = 0) -> running.Loaded:
    """Open a compiled model on an execution provider: `cpu`, `cuda`, … There is no silent fall-back."""
    return running.open_model(str(model), provider=provider, threads=threads)


def _open(spec: str | Path, config: str | Path, given: Mapping[str, Any] | None, weights: str = "") -> driver.Spec:
    sets = [f"{name}={text}" for name, text in _texts("", given or {})]
    return driver.open_spec(str(spec), config=str(config) if config else "", sets=sets, weights=weights)


def _texts(prefix: str, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Config values by dotted path, as the language writes them."""
    for key, value in given.items():
        path = f"{prefix}{key}"
        if "=" in path:
            fail("E0407", f"`{shown(path)}` is no name of a config value")
        if isinstance(value, Mapping):
            yield from _texts(f"{path}.", value)
        else:
            yield path, _text(value, path)


def _text(value: Any, path: str) -> str:
    """A Python value as the language writes it. E0203 for one that has no such form."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case str():
            return value
        case list() | tuple():
            return f"[{', '.join(_text(item, path) for item in value)}]"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
    fail(
        "E0203",
        f"`{shown(path)}` cannot be set to {shown(repr(value))[:60]}",
        helps=["give a number, a truth, a text, a list or none"],
    )
