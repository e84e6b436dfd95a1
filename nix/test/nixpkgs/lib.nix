# The few functions of nixpkgs' lib that this project's Nix files call, written
# from their documented behaviour. Not a copy: what is not here is an error.
let
  inherit (builtins) attrNames concatLists concatMap concatStringsSep elem elemAt
    filter foldl' genList getAttr hasAttr head isAttrs isBool isFloat isFunction
    isInt isList isPath isString length listToAttrs mapAttrs match stringLength
    substring toJSON;

  unique = foldl' (acc: x: if elem x acc then acc else acc ++ [ x ]) [ ];
  showLoc = concatStringsSep ".";

  # ---- properties ------------------------------------------------------
  isProp = t: v: isAttrs v && (v._type or null) == t;
  mkIf = condition: content: { _type = "if"; inherit condition content; };
  mkMerge = contents: { _type = "merge"; inherit contents; };
  mkOverride = priority: content: { _type = "override"; inherit priority content; };
  mkOptionDefault = mkOverride 1500;
  mkDefault = mkOverride 1000;
  mkForce = mkOverride 50;

  discharge = v:
    if isProp "merge" v then concatMap discharge v.contents
    else if isProp "if" v then
      if !isBool v.condition then throw "mkIf called with a non-Boolean condition"
      else if v.condition then discharge v.content else [ ]
    else [ v ];

  # Attribute sets of definitions with mkIf and mkMerge moved to the leaves.
  pushDown = v:
    if isProp "merge" v then concatMap pushDown v.contents
    else if isProp "if" v then map (mapAttrs (_: mkIf v.condition)) (pushDown v.content)
    else if isProp "override" v then map (mapAttrs (_: mkOverride v.priority)) (pushDown v.content)
    else [ v ];

  strongest = vs:
    let
      prio = v: if isProp "override" v then v.priority else 100;
      min = foldl' (a: v: if prio v < a then prio v else a) 10000 vs;
    in
    map (v: if isProp "override" v then v.content else v) (filter (v: prio v == min) vs);

  mergeDefs = loc: type: defs:
    let
      vs = strongest (concatMap discharge defs);
      bad = filter (v: !(type.check v)) vs;
    in
    if vs == [ ] then { defined = false; }
    else {
      defined = true;
      value =
        if bad != [ ] then
          throw "A definition for option `${showLoc loc}' is not of type `${type.description or type.name}': ${show (head bad)}"
        else type.merge loc vs;
    };

  show = v:
    let r = builtins.tryEval (if isFunction v then "<function>" else toJSON v);
    in if r.success then r.value else "<value>";

  # ---- types -----------------------------------------------------------
  mergeEqual = loc: vs:
    if filter (v: v != head vs) vs == [ ] then head vs
    else throw "The option `${showLoc loc}' has conflicting definition values: ${show vs}";
  scalar = name: check: { inherit name check; merge = mergeEqual; };
  types = rec {
    bool = scalar "boolean" isBool;
    int = scalar "signed integer" isInt;
    float = scalar "floating point number" isFloat;
    str = scalar "string" isString;
    path = scalar "absolute path" (v: isPath v || (isString v && match "/.*" v != null) || (isAttrs v && v ? outPath));
    package = scalar "package" (v: isAttrs v && (v.type or null) == "derivation");
    port = scalar "16 bit unsigned integer" (v: isInt v && v >= 0 && v <= 65535);
    lines = scalar "strings concatenated with \"\\n\"" isString // { merge = _: concatStringsSep "\n"; };
    unspecified = { name = "unspecified"; check = _: true; merge = _: vs: head (lib.reverseList vs); };
    enum = xs: scalar "one of ${show xs}" (v: elem v xs);
    nullOr = t: {
      name = "null or ${t.name}";
      check = v: v == null || t.check v;
      merge = loc: vs:
        if filter (v: v != null) vs == [ ] then null
        else if elem null vs then throw "The option `${showLoc loc}' is both null and not null"
        else t.merge loc vs;
    };
    listOf = t: {
      name = "list of ${t.name}";
      check = isList;
      merge = loc: vs: map (d: d.value) (filter (d: d.defined)
        (map (v: mergeDefs (loc ++ [ "*" ]) t [ v ]) (concatLists vs)));
    };
    attrsOf = t: {
      name = "attribute set of ${t.name}";
      check = isAttrs;
      merge = loc: vs:
        let
          sets = concatMap pushDown vs;
          names = unique (concatMap attrNames sets);
          one = n: mergeDefs (loc ++ [ n ]) t (map (getAttr n) (filter (hasAttr n) sets));
        in
        listToAttrs (map (n: { name = n; value = (one n).value; }) (filter (n: (one n).defined) names));
    };
    oneOf = ts: {
      name = concatStringsSep " or " (map (t: t.name) ts);
      check = v: builtins.any (t: t.check v) ts;
      merge = loc: vs:
        let ok = filter (t: builtins.all t.check vs) ts;
        in if ok == [ ] then mergeEqual loc vs else (head ok).merge loc vs;
    };
    either = a: b: oneOf [ a b ];
    submodule = m: {
      name = "submodule";
      check = v: isAttrs v || isFunction v || isPath v;
      merge = loc: vs: (evalModules {
        modules = (if isList m then m else [ m ])
          ++ map (v: if isAttrs v then { config = v; } else v) vs;
        prefix = loc;
        specialArgs = { name = elemAt loc (length loc - 1); };
      }).config;
    };
  };

  # ---- modules ---------------------------------------------------------
  evalModules = { modules, specialArgs ? { }, prefix ? [ ] }:
    let
      args = { inherit lib config options; } // specialArgs;
      load = m:
        let
          raw = if isPath m || isString m then import m else m;
          set = if isFunction raw then raw args else raw; # so that `...` must be there
          structured = set ? options || set ? config;
          meta = [ "_file" "key" "imports" "freeformType" ];
          known = meta ++ [ "options" "config" "meta" ];
          stray = filter (n: !(elem n known)) (attrNames set);
          norm =
            if !structured then { config = removeAttrs set meta; imports = set.imports or [ ]; }
              // lib.optionalAttrs (set ? freeformType) { inherit (set) freeformType; }
            else if stray != [ ] then throw "module ${toString (set._file or "<unknown>")} has unsupported attribute `${head stray}'"
            else set;
        in
        [ norm ] ++ concatMap load (norm.imports or [ ]);
      loaded = concatMap load modules;

      isOption = v: isProp "option" v;
      mergeOpts = loc: sets:
        let
          names = unique (concatMap attrNames sets);
          one = n:
            let vs = map (getAttr n) (filter (hasAttr n) sets);
            in
            if filter isOption vs == [ ] then mergeOpts (loc ++ [ n ]) vs
            else if length vs == 1 then head vs
            else throw "The option `${showLoc (loc ++ [ n ])}' is already declared";
        in
        listToAttrs (map (n: { name = n; value = one n; }) names);
      options = mergeOpts prefix (map (m: m.options or { }) loaded);
      free = let fs = concatMap (m: if m ? freeformType then [ m.freeformType ] else [ ]) loaded;
        in if fs == [ ] then null else head fs;

      # -> { config; loose = list of sets that no option matched }
      evalTree = loc: opts: defs:
        let
          sets = concatMap pushDown defs;
          defNames = unique (concatMap attrNames sets);
          at = n: map (getAttr n) (filter (hasAttr n) sets);
          declared = attrNames opts;
          value = n:
            let o = opts.${n}; l = loc ++ [ n ]; in
            if isOption o then
              let
                r = mergeDefs l o.type (at n ++ (if o ? default then [ (mkOptionDefault o.default) ] else [ ]));
                v = if r.defined then r.value
                  else throw "The option `${showLoc l}' is used but not defined.";
              in { config = (o.apply or (x: x)) v; loose = [ ]; }
            else evalTree l o (at n);
          sub = listToAttrs (map (n: { name = n; value = value n; }) declared);
          strayNames = filter (n: !(elem n declared)) defNames;
          stray = concatMap (s: let ns = filter (n: hasAttr n s) strayNames;
            in if ns == [ ] then [ ] else [ (listToAttrs (map (n: { name = n; value = s.${n}; }) ns)) ]) sets;
        in
        {
          config = mapAttrs (_: v: v.config) sub;
          loose = stray ++ concatMap (n: map (x: { ${n} = x; }) (if isOption opts.${n} then [ ] else sub.${n}.loose)) declared;
        };

      tree = evalTree prefix options (map (m: m.config or { }) loaded);
      livingLoose = filter (s: s != { }) (map (s: lib.filterAttrs (_: v: discharge v != [ ]) s) tree.loose);
      config =
        if free != null then lib.recursiveUpdate ((types.attrsOf types.unspecified).merge prefix [ ] // freeValue) tree.config
        else tree.config;
      freeValue = if tree.loose == [ ] then { } else free.merge prefix tree.loose;
      checkedConfig =
        if free == null && livingLoose != [ ] then
          throw "The option `${showLoc (prefix ++ [ (head (attrNames (head livingLoose))) ])}' does not exist."
        else config;
    in
    { config = checkedConfig; inherit options; };

  lib = {
    inherit types evalModules mkIf mkMerge mkDefault mkForce mkOverride unique;
    inherit (builtins) all any attrNames attrValues concatMap concatStringsSep elem filter head length mapAttrs;
    mkOption = attrs: attrs // { _type = "option"; };
    mkEnableOption = what: lib.mkOption { type = types.bool; default = false; example = true; description = "Whether to enable ${what}."; };
    mkPackageOption = pkgs: name: { default ? name, ... }: lib.mkOption {
      type = types.package;
      default = pkgs.${if isList default then head default else default};
      description = "The ${name} package to use.";
    };
    literalExpression = text: { _type = "literalExpression"; inherit text; };
    genAttrs = names: f: listToAttrs (map (n: { name = n; value = f n; }) names);
    nameValuePair = name: value: { inherit name value; };
    optional = c: x: if c then [ x ] else [ ];
    optionals = c: xs: if c then xs else [ ];
    optionalAttrs = c: s: if c then s else { };
    optionalString = c: s: if c then s else "";
    mapAttrsToList = f: s: map (n: f n s.${n}) (attrNames s);
    filterAttrs = p: s: listToAttrs (concatMap (n: if p n s.${n} then [{ name = n; value = s.${n}; }] else [ ]) (attrNames s));
    recursiveUpdate = a: b: a // mapAttrs (n: v: if isAttrs v && isAttrs (a.${n} or null) && !(v ? outPath) then lib.recursiveUpdate a.${n} v else v) b;
    reverseList = xs: let n = length xs; in genList (i: elemAt xs (n - i - 1)) n;
    hasPrefix = p: s: substring 0 (stringLength p) s == p;
    removePrefix = p: s: if lib.hasPrefix p s then substring (stringLength p) (-1) s else s;
    hasSuffix = p: s: let n = stringLength s - stringLength p; in n >= 0 && substring n (-1) s == p;
    splitString = sep: s: filter isString (builtins.split sep s); # of a character that means itself in a regular expression
    last = xs: elemAt xs (length xs - 1);
    toInt = s: let v = builtins.fromJSON s; in if isInt v then v else throw "`${s}' is not a number";
    removeSuffix = p: s: if lib.hasSuffix p s then substring 0 (stringLength s - stringLength p) s else s;
    escapeShellArg = s: "'${builtins.replaceStrings [ "'" ] [ "'\\''" ] (toString s)}'";
    getExe = p: "${p}/bin/${p.meta.mainProgram}";
    platforms.linux = [ "x86_64-linux" "aarch64-linux" ];
    licenses.bsd2 = { spdxId = "BSD-2-Clause"; };
  };
in
lib
