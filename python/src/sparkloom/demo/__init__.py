"""The demo: a small real language model, EXL3-encoded, served by a pair of vLLM ranks without a GPU."""
