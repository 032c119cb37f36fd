"""Metadata of compiled models: the manifest of a model, and the index and generation metadata of a
package.

The compiler writes the metadata as JSON. Parsers of the metadata validate every field.
"""
