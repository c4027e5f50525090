"""From a pipeline file to a model repository: everything that happens before a server starts."""
