"""The attribute dialects of the wild, normalised onto the fields of a span."""
