"""What the training loader costs: ``python -m benchmarks.training``; its method is in ../README.md."""
