"""The steps of the plain classifier around its network."""
