"""``python -m benchmarks.reading``: how well ``read`` reads, beside rapidocr with the same networks. See README.md."""
