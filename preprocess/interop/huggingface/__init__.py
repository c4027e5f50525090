"""Definitions from and for image processors of Hugging Face's transformers."""
