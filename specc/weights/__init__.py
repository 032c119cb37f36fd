"""Parameters of a model and where their numbers come from: a checkpoint, matched by
name, or a seed.
"""
