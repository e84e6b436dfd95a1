# A NixOS of a few options. An option that is not declared here is an error, so
# the module under test can only use what this file knows.
{ lib, nixpkgs }:
{ modules, system ? "x86_64-linux", specialArgs ? { } }:
let
  inherit (lib) mkOption types;
  pkgs = nixpkgs.legacyPackages.${system};
  strs = mkOption { type = types.listOf types.str; default = [ ]; };
  anything = types.unspecified;
  atom = types.oneOf [ types.bool types.int types.float types.str types.path ];
  unitValue = {
    name = "systemd option";
    check = v: v == null || atom.check v || (builtins.isList v && lib.all atom.check v);
    merge = loc: vs:
      if lib.any builtins.isList vs then builtins.concatLists (map (v: if builtins.isList v then v else [ v ]) vs)
      else types.unspecified.merge loc (let h = lib.head vs; in
        if lib.all (v: v == h) vs then vs else throw "The option `${lib.concatStringsSep "." loc}' has conflicting definition values.");
  };
  service = {
    options = {
      enable = mkOption { type = types.bool; default = true; };
      description = mkOption { type = types.str; default = ""; };
      documentation = strs; wantedBy = strs; requiredBy = strs; after = strs; before = strs;
      wants = strs; requires = strs; bindsTo = strs; partOf = strs; conflicts = strs;
      restartTriggers = mkOption { type = types.listOf anything; default = [ ]; };
      reloadTriggers = mkOption { type = types.listOf anything; default = [ ]; };
      reloadIfChanged = mkOption { type = types.bool; default = false; };
      environment = mkOption { type = types.attrsOf (types.nullOr types.str); default = { }; };
      path = mkOption { type = types.listOf anything; default = [ ]; };
      serviceConfig = mkOption { type = types.attrsOf unitValue; default = { }; };
      unitConfig = mkOption { type = types.attrsOf unitValue; default = { }; };
    };
  };
  text = mkOption { type = types.lines; default = ""; };
  socket = {
    options = {
      enable = mkOption { type = types.bool; default = true; };
      description = mkOption { type = types.str; default = ""; };
      wantedBy = strs; requiredBy = strs; after = strs; before = strs; wants = strs;
      listenStreams = strs;
      socketConfig = mkOption { type = types.attrsOf unitValue; default = { }; };
      unitConfig = mkOption { type = types.attrsOf unitValue; default = { }; };
    };
  };
  base = {
    options = {
      assertions = mkOption { type = types.listOf anything; default = [ ]; };
      warnings = strs;
      environment.etc = mkOption {
        default = { };
        type = types.attrsOf (types.submodule { options = {
          source = mkOption { type = types.path; };
          mode = mkOption { type = types.str; default = "symlink"; };
        }; });
      };
      environment.systemPackages = mkOption { type = types.listOf types.package; default = [ ]; };
      networking.firewall.allowedTCPPorts = mkOption { type = types.listOf types.port; default = [ ]; };
      users.users = mkOption {
        default = { };
        type = types.attrsOf (types.submodule { options = {
          isSystemUser = mkOption { type = types.bool; default = false; };
          group = mkOption { type = types.str; default = ""; };
          description = mkOption { type = types.str; default = ""; };
          extraGroups = strs;
          home = mkOption { type = types.str; default = "/var/empty"; };
        }; });
      };
      users.groups = mkOption {
        default = { };
        type = types.attrsOf (types.submodule { options.members = strs; });
      };
      systemd.services = mkOption { default = { }; type = types.attrsOf (types.submodule service); };
      systemd.sockets = mkOption { default = { }; type = types.attrsOf (types.submodule socket); };
      systemd.tmpfiles.rules = strs;
      services.unbound.enable = lib.mkEnableOption "unbound";
      services.unbound.package = mkOption { type = types.package; };
      services.bind.enable = lib.mkEnableOption "BIND";
      services.bind.extraOptions = text;
      services.kresd.enable = lib.mkEnableOption "Knot Resolver";
      services.kresd.extraConfig = text;
      services.dnsdist.enable = lib.mkEnableOption "dnsdist";
      services.dnsdist.extraConfig = text;
      services.unbound.settings = mkOption { default = { }; type = types.attrsOf (types.attrsOf anything); };
      system.units = mkOption { type = anything; };
      system.build = mkOption { type = types.attrsOf anything; default = { }; };
    };
  };

  render = v: if builtins.isBool v then (if v then "true" else "false") else toString v;
  section = s: lib.concatStringsSep "" (lib.mapAttrsToList
    (k: v: lib.concatStringsSep "" (map (x: "${k}=${render x}\n") (if builtins.isList v then v else [ v ])))
    (lib.filterAttrs (_: v: v != null) s));
  list = k: v: lib.optionalAttrs (v != [ ]) { ${k} = lib.concatStringsSep " " v; };
  unitSection = s: "[Unit]\n" + section (
    lib.optionalAttrs (s.description != "") { Description = s.description; }
    // list "Documentation" (s.documentation or [ ]) // list "After" s.after // list "Before" s.before
    // list "Wants" s.wants // list "Requires" (s.requires or [ ]) // list "BindsTo" (s.bindsTo or [ ])
    // list "PartOf" (s.partOf or [ ]) // list "Conflicts" (s.conflicts or [ ])
    // list "X-Restart-Triggers" (map toString (s.restartTriggers or [ ]))
    // s.unitConfig);
  installSection = s: "\n[Install]\n" + section (list "WantedBy" s.wantedBy // list "RequiredBy" s.requiredBy);
  serviceText = s: unitSection s
  + "\n[Service]\n" + section (s.serviceConfig // lib.optionalAttrs (s.environment != { }) {
    Environment = lib.mapAttrsToList (k: v: "\"${k}=${v}\"") (lib.filterAttrs (_: v: v != null) s.environment);
  })
  + installSection s;
  socketText = s: unitSection s
    + "\n[Socket]\n" + section ({ ListenStream = s.listenStreams; } // s.socketConfig)
    + installSection s;

  out = { config, ... }: {
    config.system.units =
      let
        named = suffix: render: units: builtins.listToAttrs (lib.mapAttrsToList
          (n: u: lib.nameValuePair "${n}.${suffix}" (render u)) (lib.filterAttrs (_: u: u.enable) units));
      in
      named "service" serviceText config.systemd.services // named "socket" socketText config.systemd.sockets;
    config.system.build.toplevel =
      let
        failed = map (a: a.message) (builtins.filter (a: !a.assertion) config.assertions);
        script = lib.concatStringsSep "" (
          lib.mapAttrsToList (n: t: ''
            cp ${pkgs.writeText "unit" t} "$out/units/${n}"
          '') config.system.units
          ++ lib.mapAttrsToList (n: e: ''
            mkdir -p "$(dirname "$out/etc/${n}")"; ln -s ${e.source} "$out/etc/${n}"
          '') config.environment.etc);
      in
      if failed != [ ] then throw "Failed assertions:\n- ${lib.concatStringsSep "\n- " failed}"
      else pkgs.runCommand "nixos-system-stand-in" { } ''
        mkdir -p "$out/units" "$out/etc"
        ${script}
      '';
  };
in
lib.evalModules {
  modules = [ base out ] ++ modules;
  specialArgs = { inherit pkgs; } // specialArgs;
}
