"""Patches of vision-language models against transformers' image processors."""
