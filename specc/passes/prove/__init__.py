"""What is true of a graph: causality, batch independence, which padding can reach a
result.

In comes a graph, out go facts and diagnostics; no graph is changed here.
"""
