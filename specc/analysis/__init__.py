"""Analyses of a graph for causality, batch independence, padding, length limits and cost. Each
analysis returns properties or diagnostics of a graph and does not modify the graph.
"""
