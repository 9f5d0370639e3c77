"""The vLLM matrix on a machine with a GPU: stage a site, run the rows, judge, write a receipt."""
