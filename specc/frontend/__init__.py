"""The frontend. It elaborates the syntax tree of a spec and its config values to an IR graph."""
