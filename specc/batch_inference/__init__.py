"""Batch inference over data sets (`specc map`): files of rows in, part files out."""
