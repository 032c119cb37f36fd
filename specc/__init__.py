"""specc: describe an attention model in a page, get an ONNX model that runs.

>>> import specc
>>> specc.compile("digits", "digits.onnx")          # doctest: +SKIP
>>> specc.load("digits.onnx").run(pixels=image)     # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from specc.version import __version__

if TYPE_CHECKING:
    from specc.api import Diagnostic, Failed, Result, check, compile, load

__all__ = [
    "Diagnostic",
    "Failed",
    "Result",
    "__version__",
    "check",
    "compile",
    "load",
]


def __getattr__(name: str) -> Any:
    """Load the public functions when they are first asked for: `specc check` must not
    pay for NumPy.
    """
    if name not in __all__:
        raise AttributeError(f"module 'specc' has no attribute {name!r}")
    from specc import api

    return vars(api)[name]
