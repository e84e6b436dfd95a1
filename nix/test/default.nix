# Evaluates the flake's own outputs against the stand-in for nixpkgs, without
# the network. Run by run.sh; by hand:
#
#   nix-instantiate --eval --strict --json nix/test -A failures   prints []
#   nix-build nix/test -A system          units and settings, as they are booted
#   nix-instantiate --eval --strict --json nix/test -A contrib    the files in contrib/
let
  nixpkgs = let s = (import ./nixpkgs/flake.nix).outputs { self = s; }; in s;
  self = (import ../../flake.nix).outputs { inherit self nixpkgs; };
  lib = nixpkgs.lib;

  eval = module: lib.nixosSystem { modules = [ self.nixosModules.default module ]; };
  config = edm: (eval { services.edm = { enable = true; } // edm; }).config;
  unit = edm: (config edm).systemd.services.edm;
  service = edm: (unit edm).serviceConfig;
  socket = edm: name: (config ({ socketActivation = true; } // edm)).systemd.sockets.${name};
  text = edm: (config edm).system.units."edm.service";
  refused = m: !(builtins.tryEval (builtins.deepSeq (eval m).config.system.build.toplevel.drvPath true)).success;
  edmRefused = edm: refused { services.edm = { enable = true; } // edm; };
  withResolver = name: (eval {
    services.${name}.enable = true;
    services.edm = { enable = true; settings.input_unix = "/run/edm/y.sock"; ${name}.enable = true; };
  }).config;
  checks = unit: contains "edm -config .* -check-settings" (toString (builtins.head unit.restartTriggers).args);
  # part is a regular expression.
  contains = part: whole:
    let bare = builtins.unsafeDiscardStringContext; in builtins.length (builtins.split (bare part) (bare whole)) > 1;
  lines = lib.splitString "\n";

  # edm.toml.example with every key in force.
  example = builtins.fromTOML (lib.concatStringsSep "\n" (map
    (line: let m = builtins.match "#([a-z0-9_]+ = .*)" line; in if m == null then line else builtins.head m)
    (lines (builtins.readFile ../../edm.toml.example))));
  # The few that are empty by default and cannot all be.
  usable = { input_unix = "/run/edm/dnstap.sock"; cryptopan_key_file = "/run/credentials/edm.service/cryptopan_key_file"; };
  inputs = { input_tcp = "127.0.0.1:53535"; input_tls = ":53536"; };
  secret = { cryptopan_key_file = "/etc/keys/cryptopan"; };

  # One at least for every option of the module.
  tests = {
    enable-is-off = let c = (eval { }).config; in
      c.systemd.services == { } && c.systemd.sockets == { } && c.systemd.tmpfiles.rules == [ ] && c.users.users == { };
    enable-starts-on-boot = (unit { }).wantedBy == [ "multi-user.target" ];
    unknown-option-is-refused = edmRefused { setings = { }; };
    plain-import-works = (lib.nixosSystem { modules = [ ../../nixos-module.nix { services.edm.enable = true; } ]; })
      .config.systemd.services.edm.serviceConfig.Type == "notify";

    package-is-the-flakes = contains "${self.packages.x86_64-linux.edm}/bin/edm " (service { }).ExecStart;
    package-can-be-replaced = contains "/other/bin/edm " (service {
      package = { type = "derivation"; outPath = "/other"; meta.mainProgram = "edm"; };
    }).ExecStart;
    overlay-has-edm = (self.overlays.default nixpkgs.legacyPackages.x86_64-linux { }).edm.version
      == lib.removeSuffix "\n" (builtins.readFile ../../VERSION);
    systems-are-two = builtins.attrNames self.packages == [ "aarch64-linux" "x86_64-linux" ];

    settings-keep-any-key = (config { settings.pebble_sync = false; }).services.edm.settings.pebble_sync == false;
    settings-are-typed = edmRefused { settings.input_unix = 5; };
    settings-defaults-are-edms = let s = (config { }).services.edm.settings; in
      builtins.all (key: s.${key} == example.${key}) [ "input_unix_mode" "input_unix_group" "input_tcp" "input_tls" "data_dir" "metrics_listen" ];
    settings-have-an-input = (config { }).services.edm.settings.input_unix == "/run/edm/dnstap.sock";

    config-file-is-taken = (config { configFile = "/run/secrets/edm.toml"; }).environment.etc."edm/edm.toml".source == "/run/secrets/edm.toml";
    config-stands-at-a-path-that-stays = contains " -config /etc/edm/edm.toml" (service { }).ExecStart;
    config-change-restarts = (unit { }).restartTriggers == [ (config { }).environment.etc."edm/edm.toml".source ];
    check-config-is-on = checks (unit { });
    check-config-can-be-off = !(checks (unit { checkConfig = false; }));
    check-config-is-off-for-cross-builds = !((lib.nixosSystem {
      modules = [ self.nixosModules.default { services.edm.enable = true; } ];
      specialArgs.pkgs = nixpkgs.legacyPackages.aarch64-linux // {
        stdenv = nixpkgs.legacyPackages.aarch64-linux.stdenv // { buildPlatform = nixpkgs.legacyPackages.x86_64-linux.stdenv.buildPlatform; };
      };
    }).config.services.edm.checkConfig);

    credentials-are-loaded = (service { credentials.mqtt = "/run/keys/mqtt"; }).LoadCredential == [ "mqtt:/run/keys/mqtt" ];
    credentials-fill-their-setting =
      (config { credentials = secret; }).services.edm.settings.cryptopan_key_file == "/run/credentials/edm.service/cryptopan_key_file";
    credentials-leave-a-given-setting =
      (config { credentials = secret; settings.cryptopan_key_file = "/x"; }).services.edm.settings.cryptopan_key_file == "/x";
    credentials-of-another-name-set-nothing = !((config { credentials.mqtt = "/x"; }).services.edm.settings ? mqtt);
    credentials-in-the-store-are-refused = edmRefused { credentials.mqtt = "${./nixpkgs/lib.nix}"; };
    key-in-the-settings-is-refused = edmRefused { settings.cryptopan_key = "k"; };
    key-file-in-the-store-is-refused = edmRefused { settings.mqtt_signing_key_file = ./nixpkgs/lib.nix; }
      && edmRefused { settings.cryptopan_key_file = "${./nixpkgs/lib.nix}"; };

    user-and-group-are-made = let c = config { }; in c.users.users.edm.isSystemUser && c.users.users.edm.group == "edm" && c.users.groups ? edm;
    user-and-group-can-be-others = let c = config { user = "u"; group = "g"; }; s = c.systemd.services.edm.serviceConfig; in
      c.users.users == { } && c.users.groups == { } && s.User == "u" && s.Group == "g"
      && c.systemd.tmpfiles.rules == [ "d /run/edm 0755 u g -" ];
    not-root = (service { }).User == "edm" && (service { }).Group == "edm";

    firewall-stays-shut = (config { settings = inputs; }).networking.firewall.allowedTCPPorts == [ ];
    firewall-opens-the-inputs = (config { settings = inputs; openFirewall = true; }).networking.firewall.allowedTCPPorts == [ 53535 53536 ];
    firewall-needs-no-input = (config { openFirewall = true; }).networking.firewall.allowedTCPPorts == [ ];

    sockets-are-edms-own = (config { }).systemd.sockets == { } && (unit { }).requires == [ ];
    sockets-have-their-names =
      let c = config { socketActivation = true; settings = inputs; }; f = n: let s = c.systemd.sockets.${n}; in
        [ s.listenStreams s.socketConfig.FileDescriptorName s.socketConfig.Service s.wantedBy ]; in
      map f (builtins.attrNames c.systemd.sockets) == [
        [ [ "/run/edm/dnstap.sock" ] "input_unix" "edm.service" [ "sockets.target" ] ]
        [ [ "127.0.0.1:53535" ] "input_tcp" "edm.service" [ "sockets.target" ] ]
        [ [ "53536" ] "input_tls" "edm.service" [ "sockets.target" ] ]
      ] && c.systemd.services.edm.requires == [ "edm.socket" "edm-tcp.socket" "edm-tls.socket" ];
    sockets-have-mode-and-group = let s = (socket { settings.input_unix_group = "dns"; settings.input_unix_mode = "0600"; } "edm").socketConfig; in
      s.SocketMode == "0600" && s.SocketGroup == "dns" && s.SocketUser == "edm";
    sockets-are-the-groups = (socket { group = "g"; } "edm").socketConfig.SocketGroup == "g";
    sockets-take-the-right-to-bind = let s = service { socketActivation = true; }; in
      s.SocketBindDeny == "any" && s.SocketBindAllow == "tcp:2112" && !(service { } ? SocketBindDeny)
      && !(service { socketActivation = true; settings.metrics_listen = ""; } ? SocketBindAllow);

    notifies = (service { }).Type == "notify";
    is-watched = (service { }).WatchdogSec == "2min";
    restarts-on-failure = (service { }).Restart == "on-failure";
    reloads-by-signal = builtins.match "/nix/store/.*/bin/kill -HUP \\$MAINPID|/.*/bin/kill -HUP \\$MAINPID" (service { }).ExecReload != null;
    memory-has-a-limit = (service { }).MemoryMax == "2G" && (unit { }).environment.GOMEMLIMIT == "1740MiB";
    tasks-have-a-limit = (service { }).TasksMax == 512;
    no-core = (service { }).LimitCORE == 0;
    limits-can-be-replaced = let c = (eval {
      services.edm.enable = true;
      systemd.services.edm.serviceConfig = { MemoryMax = "8G"; WatchdogSec = 0; RuntimeDirectoryMode = "0750"; };
    }).config.systemd.services.edm.serviceConfig; in c.MemoryMax == "8G" && c.WatchdogSec == 0 && c.RuntimeDirectoryMode == "0750";

    state-is-systemds = let s = service { }; in s.StateDirectory == "edm" && s.StateDirectoryMode == "0750" && !(s ? ReadWritePaths);
    state-can-be-elsewhere-below = (service { settings.data_dir = "/var/lib/dns/edm"; }).StateDirectory == "dns/edm";
    state-can-be-elsewhere = let c = config { settings.data_dir = "/srv/edm"; }; s = c.systemd.services.edm.serviceConfig; in
      !(s ? StateDirectory) && s.ReadWritePaths == [ "/srv/edm" ]
      && c.systemd.tmpfiles.rules == [ "d /run/edm 0755 edm edm -" "d /srv/edm 0750 edm edm -" ];
    runtime-folder-outlives-edm = let s = service { }; in s.RuntimeDirectory == "edm" && s.RuntimeDirectoryPreserve;
    socket-can-be-elsewhere = (service { settings.input_unix = "/run/dns/s"; }).ReadWritePaths == [ "/run/dns" ]
      && !(service { settings.input_unix = "/run/dns/s"; socketActivation = true; } ? ReadWritePaths);
    socket-can-be-given-away =
      let s = service { settings.input_unix_group = "dns"; }; t = service { settings.input_unix_group = "edm"; };
        u = service { settings.input_unix_group = "dns"; socketActivation = true; }; in
      s.SupplementaryGroups == [ "dns" ] && !s.PrivateUsers && builtins.elem "@chown" s.SystemCallFilter
      && !(t ? SupplementaryGroups) && t.PrivateUsers && !(builtins.elem "@chown" t.SystemCallFilter)
      && !(u ? SupplementaryGroups) && u.PrivateUsers;

    unbound-sends-to-the-socket = let d = (withResolver "unbound").services.unbound; in
      d.settings.dnstap.dnstap-socket-path == "/run/edm/y.sock" && d.settings.dnstap.dnstap-enable
      && d.settings.dnstap.dnstap-log-client-response-messages && d.package == nixpkgs.legacyPackages.x86_64-linux.unbound-full;
    bind-sends-to-the-socket = contains "dnstap-output unix \"/run/edm/y.sock\";" (withResolver "bind").services.bind.extraOptions;
    kresd-sends-to-the-socket = contains "socket_path = '/run/edm/y.sock'" (withResolver "kresd").services.kresd.extraConfig;
    dnsdist-sends-to-the-socket = contains "newFrameStreamUnixLogger[(]'/run/edm/y.sock'" (withResolver "dnsdist").services.dnsdist.extraConfig;
    resolvers-join-the-group-and-wait = builtins.all
      (r: let s = (withResolver r.name).systemd.services.${r.unit}; in
        s.serviceConfig.SupplementaryGroups == [ "edm" ] && s.after == [ "edm.service" ] && s.wants == [ "edm.service" ])
      [ { name = "unbound"; unit = "unbound"; } { name = "bind"; unit = "bind"; } { name = "kresd"; unit = "kresd@"; } { name = "dnsdist"; unit = "dnsdist"; } ];
    resolvers-must-be-enabled = builtins.all (r: edmRefused { ${r}.enable = true; }) [ "unbound" "bind" "kresd" "dnsdist" ];
    resolvers-need-the-unix-socket = refused { services.unbound.enable = true; services.edm = { enable = true; unbound.enable = true; settings.input_unix = ""; }; };
    resolvers-are-left-alone = builtins.attrNames (config { }).systemd.services == [ "edm" ];

    names-no-path-of-other-systems = builtins.match ".*[= ]/(bin|sbin|usr)/.*" (builtins.replaceStrings [ "\n" ] [ " " ] (text { })) == null;
  };

  # ---- contrib: the same text, with the paths of other systems -------------
  host = (lib.nixosSystem {
    modules = [
      self.nixosModules.default
      {
        services.edm = {
          enable = true;
          socketActivation = true;
          package = { type = "derivation"; outPath = "/usr"; meta.mainProgram = "edm"; };
        };
        # Whether systemd owns the socket is for who installs it to say.
        systemd.services.edm.restartTriggers = lib.mkForce [ ];
        systemd.services.edm.requires = lib.mkForce [ ];
        systemd.services.edm.serviceConfig.SocketBindDeny = lib.mkForce null;
        systemd.services.edm.serviceConfig.SocketBindAllow = lib.mkForce null;
      }
    ];
    specialArgs.pkgs = nixpkgs.legacyPackages.x86_64-linux // { coreutils = "/usr"; };
  }).config;
  made = name: body: "# Made from nixos-module.nix by nix/update-contrib.sh. Change that, not this.\n" + body;
  contrib = lib.mapAttrs made {
    "systemd/edm.service" = host.system.units."edm.service";
    "systemd/edm.socket" = host.system.units."edm.socket";
    "sysusers.d/edm.conf" = lib.concatStringsSep "" (lib.mapAttrsToList
      (name: user: "u ${name} - \"${user.description}\" ${host.services.edm.settings.data_dir}\n") host.users.users);
    "tmpfiles.d/edm.conf" = lib.concatStringsSep "" (map (rule: rule + "\n") host.systemd.tmpfiles.rules);
  };
in
{
  inherit tests self contrib;
  failures = builtins.filter (name: !tests.${name}) (builtins.attrNames tests);

  # Booted by boot.sh.
  system = (eval {
    services.unbound.enable = true;
    services.edm = {
      enable = true;
      unbound.enable = true;
      socketActivation = true;
      settings = {
        input_tcp = "127.0.0.1:53535";
        pebble_sync = false;
        well_known_domains_file = "/etc/edm/well-known.txt";
        mqtt_server = "mqtt://127.0.0.1:1883";
      };
      credentials = { cryptopan_key_file = "/etc/keys/cryptopan"; mqtt_signing_key_file = "/etc/keys/signing"; };
    };
  }).config.system.build.toplevel;

  # Every key of edm.toml.example, through the module and edm's own check.
  everyKey = (config {
    # A key in the settings is refused, by the module and beside a file with one.
    settings = removeAttrs (example // usable) [ "cryptopan_key" ];
  }).environment.etc."edm/edm.toml".source;

  # edm itself refuses this one, while it is built.
  badConfig = (config { settings = usable // { pebble-sync = true; }; }).system.build.toplevel;

  # What the resolvers are told, for their own checks.
  resolvers = {
    bind = (withResolver "bind").services.bind.extraOptions;
    dnsdist = (withResolver "dnsdist").services.dnsdist.extraConfig;
    # As NixOS writes it.
    unbound = "dnstap:\n" + lib.concatStringsSep "" (lib.mapAttrsToList
      (key: value: "  ${key}: ${if value == true then "yes" else if value == false then "no" else "\"${value}\""}\n")
      (withResolver "unbound").services.unbound.settings.dnstap);
  };
}
