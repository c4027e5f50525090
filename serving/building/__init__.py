"""Builds a model repository from a pipeline file: everything that happens before a server starts."""
