"""Architectures as people draw them: blocks with what flows between them, their cost as
formulas and curves, and how two of them differ.

In goes a graph, out come drawings and a page (`draw`, `page`) or lines of text (`diff`).
"""
