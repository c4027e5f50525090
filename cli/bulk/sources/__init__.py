"""Where images come from: files, folders, files that hold many, lists of these, here or behind an address."""

from onestream.cli.bulk.sources.arguments import Unit, counter, samples, samples_of, units
from onestream.cli.bulk.sources.samples import Sample, as_text
from onestream.preprocess.storage.remote import is_address, local_path

__all__ = ["Sample", "Unit", "as_text", "counter", "is_address", "local_path", "samples", "samples_of", "units"]
