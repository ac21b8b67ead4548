"""Trees of boxes as published matchers: the S-tree (riabov2003) and the Hilbert-packed tree."""
