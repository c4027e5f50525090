"""Persons over another background, from a person segmentation's probabilities."""
