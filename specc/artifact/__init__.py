"""Metadata of compiled models: the manifest of a model and the index and generation facts of a
package.

The compiler writes them as JSON. Everything that is read back is validated.
"""
