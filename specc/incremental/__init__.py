"""Incremental decoding: derive the encoder and the decode step from a full graph.

Input: a graph that has been proved causal along its time axis. Output: the derived graphs, and the
states that are passed from step to step.
"""
