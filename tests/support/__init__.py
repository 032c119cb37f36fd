"""Helpers of the test suite: small configs, reference models, random graphs, mutants, and lint
metrics.
"""
