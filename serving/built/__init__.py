"""What is written into a model repository and read where it is served: configuration, certificate, versions."""
