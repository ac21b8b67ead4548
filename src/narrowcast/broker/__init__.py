"""The live side: carrying messages to those who want them."""
