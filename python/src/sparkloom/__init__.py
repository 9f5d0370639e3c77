"""Two DGX Sparks as one OpenAI-compatible server of EXL3 models on vLLM."""

__version__ = "0.1.0"
