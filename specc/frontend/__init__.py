"""Elaborate a syntax tree with config values to an IR graph: names, calls, loops, types, shapes"""
