# The changes of patches/vllm in the order of its `series` file; none where there is no such file.
{ lib }:
let
  folder = ../../patches/vllm;
  lines = lib.splitString "\n" (builtins.readFile (folder + "/series"));
  named = builtins.filter (line: line != "" && !lib.hasPrefix "#" line) (map lib.trim lines);
in
lib.optionals (builtins.pathExists (folder + "/series")) (map (name: folder + "/${name}") named)
