"""Weight edits at load, off by default: tensors of a donor, or a direction taken out of them."""
