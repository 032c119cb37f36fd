"""The frontend, which elaborates a spec's syntax tree and config values into an IR graph."""
