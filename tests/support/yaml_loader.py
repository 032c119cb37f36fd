"""Load YAML 1.2 with a generic loader, independently of specc."""

import re

import yaml


class CoreSchemaLoader(yaml.SafeLoader):
    """PyYAML with the plain scalars of the YAML 1.2 core schema: `on` is a string."""


CoreSchemaLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    CoreSchemaLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
    )


def load_core_yaml(text: str) -> object:
    """Return the value of a document. Raises yaml.YAMLError."""
    return yaml.load(text, CoreSchemaLoader)
