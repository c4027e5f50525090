"""Serving on Triton: pipeline files, model repositories, what runs in them, and the server around it."""
