"""The steps of the plain detector around its network."""
