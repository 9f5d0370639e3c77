"""Measure an OpenAI-compatible server by a stated protocol and keep a receipt."""
