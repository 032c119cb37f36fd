"""From syntax tree and config values to the IR graph: names, calls, loops, types, shapes."""
