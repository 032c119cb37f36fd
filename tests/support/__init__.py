"""What tests share: small specs, reference models, random graphs, mutants, and the
measures of the house.
"""
