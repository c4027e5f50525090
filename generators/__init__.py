"""Writes files of the repository that are made of its code: nothing that is installed needs this."""
