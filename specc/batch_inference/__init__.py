"""Batch inference over data sets (`specc map`): read data files row by row and write part files."""
