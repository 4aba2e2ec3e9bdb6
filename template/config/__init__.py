"""The configuration: read, checked and refused in a sentence, written with short names."""
