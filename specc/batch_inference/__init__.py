"""Batch inference over data sets (`specc map`): reads files of rows and writes part files."""
