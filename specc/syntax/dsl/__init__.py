"""The DSL: grammar, LALR parser, tree builders, syntax errors and printer."""
