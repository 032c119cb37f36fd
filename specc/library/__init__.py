"""Find and read spec files (built-in, standard library, user files) and config.json files."""
