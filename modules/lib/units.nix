# systemd units from python/src/sparkloom/units/facts.json, the same facts that `sparkloom units` renders for DGX OS.
{ lib }:
let
  facts = lib.importJSON ../../python/src/sparkloom/units/facts.json;

  # Puts a value at every @name@; a percent sign would be a specifier to systemd.
  fill =
    values: text:
    let
      names = builtins.attrNames values;
    in
    builtins.replaceStrings (map (name: "@${name}@") names) (
      map (name: lib.replaceStrings [ "%" ] [ "%%" ] (toString values.${name})) names
    ) text;

  deep =
    values: x:
    if builtins.isString x then
      fill values x
    else if builtins.isList x then
      map (deep values) x
    else if builtins.isAttrs x then
      lib.mapAttrs (_: deep values) x
    else
      x;
in
{
  inherit facts;

  # Sections of a unit with every placeholder filled; `variants` adds the parts for this node (`with_api_key`).
  sections =
    { name, values, variants ? [ ] }:
    let
      unit = facts.units.${name};
      added = lib.foldl' (
        body: variant:
        lib.recursiveUpdate body (
          lib.mapAttrs (
            section: keys: lib.mapAttrs (key: lines: lib.toList (body.${section}.${key} or [ ]) ++ lib.toList lines) keys
          ) (unit.${variant} or { })
        )
      ) (lib.getAttrs (lib.intersectLists [ "Unit" "Service" "Path" "Install" ] (builtins.attrNames unit)) unit) variants;
    in
    deep values added;
}
