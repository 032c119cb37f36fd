"""Batch inference over data sets (`specc map`): read rows of data files and write part files."""
