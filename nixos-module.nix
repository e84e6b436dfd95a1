# NixOS module of edm. Through the flake it is nixosModules.default; it also
# works as a plain import of this file. contrib/ is made from its text.
{ config, lib, pkgs, ... }:

let
  cfg = config.services.edm;
  settings = cfg.settings;
  format = pkgs.formats.toml { };

  unchecked = format.generate "edm.toml" settings;
  # Opens no file but the configuration: lists and keys are not there yet.
  checked = pkgs.runCommand "edm.toml" { nativeBuildInputs = [ cfg.package ]; } ''
    edm -config ${unchecked} -check-settings
    cp ${unchecked} "$out"
  '';
  configFile =
    if cfg.configFile != null then cfg.configFile
    else if cfg.checkConfig then checked
    else unchecked;

  inStore = path: builtins.isPath path || lib.hasPrefix builtins.storeDir (toString path);
  # The settings that name a file with a secret in it.
  secretFiles = lib.filterAttrs (key: _: lib.hasSuffix "key_file" key) settings;

  # Who may open the unix socket.
  socketGroup = if settings.input_unix_group != "" then settings.input_unix_group else cfg.group;
  # A user namespace knows one group. To give the socket another one, edm has to
  # be in it, outside of a user namespace, and may call chown.
  givesSocketAway = socketGroup != cfg.group && !cfg.socketActivation;

  runtimeDir = "/run/edm";
  socketDir = builtins.dirOf settings.input_unix;
  bindsElsewhere = settings.input_unix != "" && !cfg.socketActivation && socketDir != runtimeDir;
  underState = lib.hasPrefix "/var/lib/" settings.data_dir;

  port = address: lib.toInt (lib.last (lib.splitString ":" address));
  # ":53535" is every address to edm; systemd writes it without the colon.
  stream = address: lib.removePrefix ":" address;

  socketUnit = setting: listen: extra: {
    description = "Socket of edm for dnstap (${setting})";
    wantedBy = [ "sockets.target" ];
    listenStreams = [ listen ];
    socketConfig = {
      FileDescriptorName = setting;
      Service = "edm.service";
    } // extra;
  };
  socketUnits = lib.optionalAttrs (settings.input_unix != "")
    {
      edm = socketUnit "input_unix" settings.input_unix {
        SocketMode = settings.input_unix_mode;
        SocketUser = cfg.user;
        SocketGroup = socketGroup;
        RemoveOnStop = true;
      };
    } // lib.optionalAttrs (settings.input_tcp != "") {
    edm-tcp = socketUnit "input_tcp" (stream settings.input_tcp) { };
  } // lib.optionalAttrs (settings.input_tls != "") {
    edm-tls = socketUnit "input_tls" (stream settings.input_tls) { };
  };

  # A resolver whose service may open the socket, and is started after it is there.
  resolverService = {
    wants = [ "edm.service" ];
    after = [ "edm.service" ];
    serviceConfig.SupplementaryGroups = [ socketGroup ];
  };
  resolver = name: what: {
    enable = lib.mkEnableOption "sending the answers of services.${name}, which must be enabled, to edm${what}";
  };

  string = default: description: lib.mkOption {
    type = lib.types.str;
    inherit default description;
  };
in
{
  options.services.edm = {
    enable = lib.mkEnableOption "edm, which reads dnstap from DNS resolvers";

    package = lib.mkOption {
      type = lib.types.package;
      default = pkgs.callPackage ./nix/package.nix { };
      defaultText = lib.literalExpression "the package of edm's flake";
      description = "The edm to run.";
    };

    settings = lib.mkOption {
      default = { };
      example = lib.literalExpression ''
        {
          well_known_domains_file = "/etc/edm/well-known.dawg";
          pebble_sync = false;
        }
      '';
      description = ''
        Contents of edm.toml; edm.toml.example has every key. Those listed here
        are the ones that the module looks at.
      '';
      type = lib.types.submodule {
        freeformType = format.type;
        options = {
          input_unix = string "${runtimeDir}/dnstap.sock" "Unix socket that resolvers connect to. Empty: none.";
          input_unix_mode = string "0660" "Mode of that socket, octal.";
          input_unix_group = string "" "Group of that socket. Empty: {option}`services.edm.group`.";
          input_tcp = string "" "host:port for plain TCP. Empty: none.";
          input_tls = string "" "host:port for TLS. Empty: none.";
          data_dir = string "/var/lib/edm" "Folder that everything is written below.";
          metrics_listen = string "127.0.0.1:2112" "host:port of the metrics. Empty: none.";
        };
      };
    };

    configFile = lib.mkOption {
      type = lib.types.nullOr lib.types.path;
      default = null;
      example = "/run/secrets/edm.toml";
      description = ''
        A file in the place of {option}`services.edm.settings`, which then only
        tell the module where the inputs and the data are, and must agree with it.
      '';
    };

    checkConfig = lib.mkOption {
      type = lib.types.bool;
      default = pkgs.stdenv.buildPlatform.canExecute pkgs.stdenv.hostPlatform;
      defaultText = lib.literalExpression "true, where the machine that builds can run edm";
      description = "Have edm check the settings while the system is built.";
    };

    credentials = lib.mkOption {
      type = lib.types.attrsOf lib.types.str;
      default = { };
      example = { cryptopan_key_file = "/run/keys/edm-cryptopan"; };
      description = ''
        Files with secrets, which systemd hands to edm when it starts
        (LoadCredential), so that they can belong to root. NAME becomes
        /run/credentials/edm.service/NAME. One that is named like a setting
        that ends in _file is also put into that setting.

        edm gets a copy. A certificate that is renewed while edm runs is better
        given by its own path, in a folder that edm may read.
      '';
    };

    user = lib.mkOption {
      type = lib.types.str;
      default = "edm";
      description = "User that edm runs as. It is made if it is edm.";
    };

    group = lib.mkOption {
      type = lib.types.str;
      default = "edm";
      description = "Group that edm runs as, and that may open its socket. It is made if it is edm.";
    };

    openFirewall = lib.mkOption {
      type = lib.types.bool;
      default = false;
      description = "Open the ports of input_tcp and input_tls. Whoever reaches input_tcp can send anything.";
    };

    socketActivation = lib.mkOption {
      type = lib.types.bool;
      default = false;
      description = ''
        Let systemd own the sockets of all inputs: while edm restarts no
        resolver is refused, and edm needs no right to bind.
      '';
    };

    unbound = resolver "unbound" "";
    bind = resolver "bind" ". Needs a named with dnstap in {option}`services.bind.package`";
    kresd = resolver "kresd" "";
    dnsdist = resolver "dnsdist" ". Needs a dnsdist with dnstap";
  };

  config = lib.mkIf cfg.enable (lib.mkMerge [
    {
      assertions = [
        {
          assertion = lib.all (path: !(inStore path)) (lib.attrValues cfg.credentials);
          message = "services.edm.credentials: everybody can read the Nix store, so a secret must not lie there.";
        }
        {
          assertion = lib.all (path: !(inStore path)) (lib.attrValues secretFiles);
          message = "services.edm.settings: everybody can read the Nix store, so a file with a key must not lie there.";
        }
        {
          assertion = cfg.configFile != null || (settings.cryptopan_key or "") == "";
          message = "services.edm.settings.cryptopan_key would lie in the Nix store, which everybody can read: use services.edm.credentials.cryptopan_key_file.";
        }
      ];

      services.edm.settings = lib.mapAttrs (name: _: lib.mkDefault "/run/credentials/edm.service/${name}")
        (lib.filterAttrs (name: _: lib.hasSuffix "_file" name) cfg.credentials);

      users.users = lib.mkIf (cfg.user == "edm") {
        edm = {
          isSystemUser = true;
          group = cfg.group;
          description = "edm, which reads dnstap";
        };
      };
      users.groups = lib.mkIf (cfg.group == "edm") { edm = { }; };

      networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall
        (map port (lib.filter (address: address != "") [ settings.input_tcp settings.input_tls ]));

      # At a path that stays, so that a reload reads the new one.
      environment.etc."edm/edm.toml".source = configFile;

      # The folder of the socket is there before edm is: systemd may own the socket.
      systemd.tmpfiles.rules = [ "d ${runtimeDir} 0755 ${cfg.user} ${cfg.group} -" ]
        ++ lib.optional (!underState) "d ${settings.data_dir} 0750 ${cfg.user} ${cfg.group} -";

      systemd.sockets = lib.mkIf cfg.socketActivation socketUnits;

      systemd.services.edm = {
        description = "edm, which reads dnstap from DNS resolvers";
        wantedBy = [ "multi-user.target" ];
        after = [ "network.target" ];
        requires = lib.optionals cfg.socketActivation
          (map (name: "${name}.socket") (lib.attrNames socketUnits));
        restartTriggers = [ configFile ];
        # The garbage collector works harder before MemoryMax is reached.
        environment.GOMEMLIMIT = lib.mkDefault "1740MiB";
        serviceConfig = {
          Type = "notify";
          ExecStart = "${lib.getExe cfg.package} -config /etc/edm/edm.toml";
          ExecReload = "${pkgs.coreutils}/bin/kill -HUP $MAINPID";
          Restart = "on-failure";
          RestartSec = "5s";
          # A list of ten million names takes half a minute to load.
          TimeoutStartSec = lib.mkDefault "5min";
          # edm writes what it has and ends within ten seconds.
          TimeoutStopSec = lib.mkDefault "30s";
          # Longer than any write to a slow disk, or loading a list, takes.
          WatchdogSec = lib.mkDefault "2min";

          User = cfg.user;
          Group = cfg.group;
          StateDirectoryMode = lib.mkDefault "0750";
          RuntimeDirectory = "edm";
          RuntimeDirectoryMode = lib.mkDefault "0755";
          # A socket of systemd's is in it.
          RuntimeDirectoryPreserve = true;
          UMask = lib.mkDefault "0027";

          # 300 MiB with ten million names seen, and a well-known list of ten
          # million twice, while it is loaded anew: 1.5 GiB.
          MemoryMax = lib.mkDefault "2G";
          # Threads: two a CPU, and those that wait for the disk.
          TasksMax = lib.mkDefault 512;
          # A core has the addresses of clients in it.
          LimitCORE = 0;

          AmbientCapabilities = "";
          CapabilityBoundingSet = "";
          DevicePolicy = "closed";
          LockPersonality = true;
          MemoryDenyWriteExecute = true;
          NoNewPrivileges = true;
          PrivateDevices = true;
          PrivateMounts = true;
          PrivateTmp = true;
          PrivateUsers = !givesSocketAway;
          ProcSubset = "pid";
          ProtectClock = true;
          ProtectControlGroups = true;
          ProtectHome = true;
          ProtectHostname = true;
          ProtectKernelLogs = true;
          ProtectKernelModules = true;
          ProtectKernelTunables = true;
          ProtectProc = "invisible";
          ProtectSystem = "strict";
          RemoveIPC = true;
          RestrictAddressFamilies = [ "AF_UNIX" "AF_INET" "AF_INET6" ];
          RestrictNamespaces = true;
          RestrictRealtime = true;
          RestrictSUIDSGID = true;
          SystemCallArchitectures = "native";
          SystemCallErrorNumber = "EPERM";
          SystemCallFilter = [ "@system-service" "~@privileged @resources" ]
            ++ lib.optional givesSocketAway "@chown";
        }
        // lib.optionalAttrs (cfg.credentials != { }) {
          LoadCredential = lib.mapAttrsToList (name: path: "${name}:${path}") cfg.credentials;
        }
        // lib.optionalAttrs underState {
          StateDirectory = lib.removePrefix "/var/lib/" settings.data_dir;
        }
        // lib.optionalAttrs (!underState || bindsElsewhere) {
          ReadWritePaths = lib.optional (!underState) settings.data_dir ++ lib.optional bindsElsewhere socketDir;
        }
        // lib.optionalAttrs givesSocketAway {
          SupplementaryGroups = [ socketGroup ];
        }
        // lib.optionalAttrs cfg.socketActivation ({
          SocketBindDeny = "any";
        } // lib.optionalAttrs (settings.metrics_listen != "") {
          SocketBindAllow = "tcp:${toString (port settings.metrics_listen)}";
        });
      };
    }

    (lib.mkIf cfg.unbound.enable {
      services.unbound = {
        package = lib.mkDefault pkgs.unbound-full; # pkgs.unbound has no dnstap
        settings.dnstap = {
          dnstap-enable = true;
          dnstap-socket-path = settings.input_unix;
          dnstap-send-identity = true;
          dnstap-log-client-response-messages = true;
        };
      };
      systemd.services.unbound = resolverService;
    })

    (lib.mkIf cfg.bind.enable {
      services.bind.extraOptions = ''
        dnstap { client response; };
        dnstap-output unix "${settings.input_unix}";
      '';
      systemd.services.bind = resolverService;
    })

    (lib.mkIf cfg.kresd.enable {
      services.kresd.extraConfig = ''
        modules = {
          dnstap = {
            socket_path = '${settings.input_unix}',
            client = { log_responses = true },
          }
        }
      '';
      systemd.services."kresd@" = resolverService;
    })

    (lib.mkIf cfg.dnsdist.enable {
      services.dnsdist.extraConfig = ''
        local edm = newFrameStreamUnixLogger('${settings.input_unix}')
        addResponseAction(AllRule(), DnstapLogResponseAction('dnsdist', edm))
        addCacheHitResponseAction(AllRule(), DnstapLogResponseAction('dnsdist', edm))
        addSelfAnsweredResponseAction(AllRule(), DnstapLogResponseAction('dnsdist', edm))
      '';
      systemd.services.dnsdist = resolverService;
    })

    {
      assertions = map
        (name: {
          assertion = !cfg.${name}.enable || (config.services.${name}.enable && settings.input_unix != "");
          message = "services.edm.${name}.enable needs services.${name}.enable and services.edm.settings.input_unix.";
        }) [ "unbound" "bind" "kresd" "dnsdist" ];
    }
  ]);
}
