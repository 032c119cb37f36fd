"""What is proved about graphs, and what turns one graph into another."""
