"""Analyses of a graph: causality, batch independence, padding, length limits and cost. Each
analysis takes a graph, does not change it, and returns properties or diagnostics.
"""
