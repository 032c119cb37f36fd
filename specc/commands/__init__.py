"""One module a command: `arguments` declares its options, `run` does the work and gives the exit code."""
