"""The operations of an augmentation: each a frozen value that draws its part of a variation."""
