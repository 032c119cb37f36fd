"""Analyses of a graph: causality, batch independence, padding, length limits and cost. An analysis
takes a graph and returns facts or diagnostics. It does not change the graph.
"""
