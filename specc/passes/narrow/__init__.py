"""Computing in 16 bits what suffers no harm by it, and in 32 what does.

In comes a graph as every target gets it, out goes one with casts, or a graph taken
apart, whose states are then as narrow as what made them.
"""
