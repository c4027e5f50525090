"""What clips and streams share: colour, orientation, bounds, and from a frame to a definition's pixels."""
