"""Matchers that search a tree of boxes: the S-tree (riabov2003) and a Hilbert-packed tree."""
