"""Analyses of a graph: causality, batch independence, padding, length limits and cost.

In comes a graph, out go facts and diagnostics; no graph is changed here.

In comes a graph, out go numbers and outlines for people; no graph is changed here.
"""
