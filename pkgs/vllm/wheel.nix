# vLLM's own wheel, patched after it is unpacked: minutes instead of hours, with kernels for every architecture that
# upstream ships (sm_121 runs the code of its family).  Changes to compiled files cannot apply here.
{ lib, callPackage }:
final: prev: {
  vllm = prev.vllm.overridePythonAttrs (old: {
    # Nothing is unpacked into a source tree for a wheel, so `patches` would do nothing.
    postInstall =
      (old.postInstall or "")
      + lib.concatMapStrings (patch: ''
        patch --directory=$out/${final.python.sitePackages} --strip=1 < ${patch}
      '') (callPackage ./patches.nix { });
    passthru = (old.passthru or { }) // {
      fromSource = false;
    };
  });
}
