"""Parity of cascades: by stage, on the regions that the reference finds, and from picture to answer."""
