"""specc: compile attention models from a declarative spec to ONNX.

>>> import specc
>>> specc.compile("xor", "xor.onnx")
<specc compiled xor: xor.onnx, 1 file, ...>
>>> specc.load("xor.onnx").run(x=[[0, 1]])["y"].tolist()
[[1.0]]

`check` validates a spec, `compile` compiles a spec to ONNX, and `load` opens a compiled model as a
`Model`. Errors are raised as `SpeccError`. See docs/api.md.
"""

from typing import TYPE_CHECKING, Any

from specc.version import __version__

if TYPE_CHECKING:
    from specc.api import Diagnostic, GenerationResult, Model, SpeccError, check, compile, load

__all__ = [
    "Diagnostic",
    "GenerationResult",
    "Model",
    "SpeccError",
    "__version__",
    "check",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import public names lazily: `specc check` does not import NumPy, and `load` does not import
    the compiler.
    """
    if name not in __all__:
        raise AttributeError(f"module 'specc' has no attribute {name!r}")
    if name in ("check", "compile"):
        from specc import api

        return vars(api)[name]
    if name == "load":
        from specc.model_loading import load

        return load
    from specc import model

    return vars(model)[name]


def __dir__() -> list[str]:
    """Return the public names, which `help(specc)` and completion show."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"]
