"""A GPU as this package sees it: streams, events, memory, and kernels of our own."""
