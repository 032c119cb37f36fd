"""Backends are packages found by entry point, loaded only by the command that needs one."""

from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType

from specc.text.diagnostic import fail


def load(name: str) -> ModuleType:
    """The package that announces itself as backend `name`, e.g. `onnx`. E0801 when it cannot be loaded."""
    found = {e.name: e.value for e in entry_points(group="specc.backends")}
    module = found.get(name, f"specc_{name}")
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        fail(
            "E0801",
            f"the {name} backend needs the package `{error.name}`, which is not installed",
            helps=[f'pip install "specc[{name}]"'],
        )
