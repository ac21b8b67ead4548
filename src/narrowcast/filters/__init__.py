"""The filter language: from text to boxes.

`parse` makes a tree with a slot for each literal (`syntax`); `bind` gives its attributes positions and its
comparisons domains; `normal` takes out NOT and makes an OR of conjunctions; `ranges` turns predicates into
ranges of keys; `template` multiplies these into boxes, and `compiler` does all that once for every shape.
`evaluate` is the reference, `checks` decides what boxes cannot, `explain` shows why.
"""
