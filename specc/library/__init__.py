"""Spec files (built-in models, the standard library and user files) and config.json files."""
