"""Metadata of compiled models: a model's manifest, and a package's index and generation metadata.

The compiler writes the metadata as JSON. The parsers validate every field.
"""
