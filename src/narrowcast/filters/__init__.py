"""Filter language: compiles filter text to boxes over keys.

`parse` makes a tree with a slot for each literal (`syntax`); `bind` adds attribute positions and comparison
domains; `normal_form` removes NOT and makes an OR of conjunctions; `ranges` turns predicates into ranges of
keys; `filter_template` multiplies the ranges into boxes, and `compiler` does this once for all filters of one
shape. `evaluate` is the reference implementation, `checks` decides what boxes cannot express, `explain` shows
which predicates decided.
"""
