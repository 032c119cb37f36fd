"""The frontend, which elaborates a syntax tree with config values to an IR graph."""
