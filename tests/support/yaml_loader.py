"""A YAML text as programs read it that know YAML 1.2 and nothing of specc."""

import re

import yaml


class CoreSchemaLoader(yaml.SafeLoader):
    """PyYAML with the plain scalars of the core schema of YAML 1.2: `on` is a text."""


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
    """The value of a text. Raises yaml.YAMLError."""
    return yaml.load(text, CoreSchemaLoader)
