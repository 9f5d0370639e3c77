# Typed NixOS options from the JSON Schema of the cluster file: one option per field, same name, same default, same
# bounds, same text.  The schema is the only source, so the module cannot drift from what `sparkloom` reads.
{ lib }:
let
  inherit (lib) types;

  # ECMA character classes to POSIX ones, the only ones that Nix's `match` knows: inside brackets and outside.
  posix =
    let
      inside = builtins.replaceStrings [ "\\d" "\\w" "\\s" "\\." "\\-" ] [ "0-9" "A-Za-z0-9_" "[:space:]" "." "-" ];
      outside = builtins.replaceStrings [ "\\d" "\\w" "\\s" ] [ "[0-9]" "[A-Za-z0-9_]" "[[:space:]]" ];
      piece = part: if builtins.isList part then inside (builtins.head part) else outside part;
    in
    pattern: lib.concatMapStrings piece (builtins.split "(\\[[^]]*])" pattern);

  # A schema pattern may match anywhere; `match` always matches the whole string.
  anchored =
    pattern:
    (if lib.hasPrefix "^" pattern then "" else ".*")
    + posix (lib.removeSuffix "$" (lib.removePrefix "^" pattern))
    + (if lib.hasSuffix "$" pattern then "" else ".*");

  checked =
    base: what: check:
    types.addCheck base check // { description = "${base.description}${what}"; };

  bounds =
    node:
    lib.concatStringsSep " and " (
      lib.optional (node ? minimum) "at least ${builtins.toJSON node.minimum}"
      ++ lib.optional (node ? exclusiveMinimum) "above ${builtins.toJSON node.exclusiveMinimum}"
      ++ lib.optional (node ? maximum) "at most ${builtins.toJSON node.maximum}"
      ++ lib.optional (node ? exclusiveMaximum) "below ${builtins.toJSON node.exclusiveMaximum}"
    );

  numeric =
    base: node:
    if bounds node == "" then
      base
    else
      checked base " (${bounds node})" (
        x:
        (node.minimum or x) <= x
        && x <= (node.maximum or x)
        && (node ? exclusiveMinimum -> x > node.exclusiveMinimum)
        && (node ? exclusiveMaximum -> x < node.exclusiveMaximum)
      );

  text =
    node:
    let
      base = if node ? pattern then types.strMatching (anchored node.pattern) else types.str;
      ipv4 = checked types.str " (an IPv4 address)" (import ./network.nix { inherit lib; }).isIpv4;
      long = x: (node.minLength or 0) <= builtins.stringLength x && builtins.stringLength x <= (node.maxLength or 65536);
    in
    if (node.format or "") == "ipv4" then ipv4 else types.addCheck base long // { inherit (base) description; };

  sized =
    base: node:
    if node ? minItems || node ? maxItems then
      checked base " (${toString (node.minItems or 0)} to ${toString (node.maxItems or "any number of")} entries)" (
        xs: (node.minItems or 0) <= builtins.length xs && builtins.length xs <= (node.maxItems or 65536)
      )
    else
      base;
  # A dictionary: any names, or names of one pattern.
  dictionary =
    schema: node:
    let
      patterns = builtins.attrNames (node.patternProperties or { });
      named = pattern: name: builtins.match (anchored pattern) name != null;
    in
    if patterns == [ ] then
      types.attrsOf (typeOf schema node.additionalProperties)
    else
      checked (types.attrsOf (typeOf schema node.patternProperties.${builtins.head patterns})) "" (
        value: lib.all (named (builtins.head patterns)) (builtins.attrNames value)
      );

  # Follows `$ref`; keys beside the reference win.
  resolve =
    schema: node:
    if node ? "$ref" then
      resolve schema schema."$defs".${lib.removePrefix "#/$defs/" node."$ref"} // removeAttrs node [ "$ref" ]
    else if node ? allOf && builtins.length node.allOf == 1 then
      resolve schema (builtins.head node.allOf) // removeAttrs node [ "allOf" ]
    else
      node;

  # The NixOS type of a schema node.
  typeOf =
    schema: raw:
    let
      node = resolve schema raw;
      branches = builtins.filter (branch: (branch.type or "") != "null") node.anyOf;
    in
    if node ? const then
      types.enum [ node.const ]
    else if node ? enum then
      types.enum node.enum
    else if node ? anyOf then
      (if builtins.length branches < builtins.length node.anyOf then types.nullOr else lib.id) (
        types.oneOf (map (typeOf schema) branches)
      )
    else if node.type == "object" && node ? properties then
      types.submodule { options = optionsOf schema node; }
    else if node.type == "object" then
      dictionary schema node
    else if node.type == "array" then
      sized (types.listOf (typeOf schema node.items)) node
    else
      {
        boolean = types.bool;
        integer = numeric types.int node;
        number = numeric types.number node;
        string = text node;
      }
      .${node.type};

  # Options of an object node. A field that may be left out has the schema's default, or the empty value of its type.
  optionsOf =
    schema: object:
    lib.mapAttrs (
      name: raw:
      let
        node = resolve schema raw;
        empty = {
          object = { };
          array = [ ];
        };
      in
      lib.mkOption (
        {
          type = typeOf schema raw;
          description = node.description or name;
        }
        // lib.optionalAttrs (node ? const || node ? default) { default = node.default or node.const; }
        // lib.optionalAttrs (!(node ? default) && !builtins.elem name (object.required or [ ]) && empty ? ${node.type or ""}) {
          default = empty.${node.type};
        }
      )
    ) (removeAttrs object.properties [ "$schema" ]);
  # What the user said: values that differ from the schema's defaults, nulls left out.  A value written in the file
  # wins over the profile's, so defaults must not be written.
  sparse =
    schema: raw: value:
    let
      node = resolve schema raw;
      branches = builtins.filter (branch: (branch.type or "") != "null") (node.anyOf or [ ]);
      field =
        name: inner:
        let
          sub = resolve schema node.properties.${name};
          said = sparse schema sub inner;
          required = builtins.elem name (node.required or [ ]);
        in
        lib.optional (inner != null && (required || (inner != (sub.default or null) && (said != { } && said != [ ])))) (
          lib.nameValuePair name said
        );
    in
    if value == null then
      null
    else if branches != [ ] then
      sparse schema (builtins.head branches) value
    else if node.type or "" == "object" && node ? properties then
      builtins.listToAttrs (lib.concatLists (lib.mapAttrsToList field value))
    else if node.type or "" == "array" then
      map (sparse schema node.items) value
    else
      value;
in
{
  inherit resolve optionsOf sparse;
}
