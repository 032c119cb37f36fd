"""The Python interface: what the commands do, as functions. Three lines each.

    specc.check("my.specc")
    specc.compile("vit", "vit.onnx", weights="checkpoint/")
    specc.load("vit.onnx").run(pixels=array)

Everything that is wrong with what is given is raised as `specc.Failed`, whose `diagnostics` hold code, text,
place and help.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specc import compiling, driver, running
from specc.text.diagnostic import Failed

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
) -> compiling.Compiled:
    """Compile a spec to the ONNX model `output`.

    Weights come from `weights` (a safetensors file or a checkpoint folder), from the file the spec names,
    or are drawn from the seed `init`. `set` gives config values by dotted name: `{"encoder.layers": 4}`.
    `opset` 17 to 26 overrides the target's. `taps` name scopes whose values become further results.
    """
    options = compiling.Options(
        output=str(output),
        weights=str(weights) if weights else "",
        init=init,
        target=target,
        opset=opset,
        taps=tuple(taps),
    )
    return compiling.compile_spec(_open(spec, config, set, options.weights), options)


def load(model: str | Path, *, provider: str = "cpu", threads: int = 0) -> running.Loaded:
    """Open a compiled model on an execution provider: `cpu`, `cuda`, … There is no silent fall-back."""
    return running.open_model(str(model), provider=provider, threads=threads)


def _open(
    spec: str | Path, config: str | Path, given: Mapping[str, Any] | None, weights: str = ""
) -> driver.Spec:
    sets = [f"{name}={_text(value)}" for name, value in (given or {}).items()]
    return driver.open_spec(str(spec), config=str(config) if config else "", sets=sets, weights=weights)


def _text(value: Any) -> str:
    """A Python value as the language writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(value)
