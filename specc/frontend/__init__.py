"""The frontend, which elaborates the syntax tree and config values of a spec to an IR graph."""
