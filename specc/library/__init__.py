"""Spec files: built-in models, the standard library, user files, and their config.json."""
