# Pins of what is neither a flake input nor in python/poetry.lock, and how each hash was obtained.
# `nix run .#update-pins` names the new values; pkgs/README.md says how every pin is moved.
{ fetchurl }:
{
  # vLLM (0.33.0) and ExLlamaV3 (1.6.5) need no entry: their archives and wheels are in python/poetry.lock, with hashes.

  # vLLM takes the Python sources of triton_kernels from this tag (cmake/external_projects/triton_kernels.cmake names
  # only the tag, and the full revision could not be established).
  triton = {
    version = "3.5.1";
    obtained = "public: sha256 of GitHub's archive of the tag, in the recipe of another package set for vLLM";
    src = fetchurl {
      url = "https://github.com/triton-lang/triton/archive/refs/tags/v3.5.1.tar.gz";
      sha256 = "03d7c41f6f2dc1dfa3445776c4a893dc34b1e0ece42b953f036c071ff6409b80";
    };
  };
}
