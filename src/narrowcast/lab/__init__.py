"""The papers: their experiments, simulations and figures, and methods that are kept for comparison only.

Nothing outside this package imports it. Registries know its methods by name and module, and load them on use.
"""
