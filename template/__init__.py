"""A segmentation project whose results do not depend on the number of processes."""
