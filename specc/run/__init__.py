"""Compiled models at work: opened, fed, stepped, verified, and their attention looked
at.

In come files that an index or a manifest describes and a user's inputs, out go results,
texts and differences.
"""
