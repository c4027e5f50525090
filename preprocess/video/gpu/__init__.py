"""Video on a GPU: NVDEC decodes, and the pixels stay there."""
