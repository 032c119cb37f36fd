"""Bytes from outside and to outside: opened with limits, read strictly, written whole
or not at all.

In come paths that a user named, out go bytes, JSON values whose every field was
checked, and files that are complete or absent. Nothing here knows what a spec or a
model is.
"""
