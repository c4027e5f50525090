"""What client and server say to each other beyond tensors. Imports neither of them, and nothing heavy."""
