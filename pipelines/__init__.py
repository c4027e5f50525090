"""The pipelines that come with the package, as YAML files, and their networks."""
