"""Changes of vLLM's behaviour that need no source patch: one module each, off unless the options say so.

`install` reads the options of the cluster file's `patches` section from the environment variable
`SPARKLOOM_PATCHES` (one JSON object, the same on every rank; `sparkloom render` writes it). Without the
variable vLLM stays stock. A hook first checks that upstream still has the form that it changes, and
refuses with the reason when it has not: a silent no-op would be worse than a server that does not start.
"""

from sparkloom.vllm.hooks.install import install

__all__ = ["install"]
