"""How far a model is from its teacher, and whether its long answers hold together."""
