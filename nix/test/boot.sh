#!/usr/bin/env bash
# Boots a real systemd in a container of this machine's own root, under an
# overlay so that nothing here changes, with Debian's unbound and mosquitto, and
# runs a probe in it, which is the file of that name beside this one.
#
#   boot.sh units SYSTEM ROWS    SYSTEM: nix-build nix/test -A system
#   boot.sh deb FILE ROWS        ROWS: the program of nix/test/rows
#
# Ends with 77, and the reason in the last line, where there can be no container.
set -euo pipefail
kind=$1 what=$(readlink -f "$2") rows=$(readlink -f "$3")
here=$(dirname "$(readlink -f "$0")")
source=$here/../..
work=$(mktemp -d /var/tmp/edm-boot.XXXXXX)
trap 'umount -q "$work/root" "$work" 2>/dev/null || true; rm -rf "$work"' EXIT
unable() { echo "this machine forbids containers: ${1%%$'\n'*}"; exit 77; }

mount -t tmpfs tmpfs "$work" 2>"$work/why" || unable "$(cat "$work/why")"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" 2>"$work/why" ||
  unable "$(cat "$work/why")"
root=$work/root units=$work/root/etc/systemd/system

boot() { # TIMEOUT TARGET
  : > "$root/etc/machine-id"
  timeout "$1" systemd-nspawn -q -D "$root" --boot --private-network --register=no --keep-unit --link-journal=no \
    -M "edm-boot-$$" --console=pipe "systemd.unit=$2" </dev/null >"$work/console" 2>&1
}

# Is it the machine that does not let us, or edm?
printf '[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/touch /var/log/booted\nExecStart=/bin/systemctl poweroff --force\n' > "$units/try.service"
printf '[Unit]\nRequires=try.service\nAllowIsolate=yes\n' > "$units/try.target"
boot 60 try.target || true
[ -e "$root/var/log/booted" ] || unable "$(tail -1 "$work/console")"

# As on a machine that has never seen edm, and may start services.
rm -rf "$root"/usr/sbin/policy-rc.d "$root"/etc/{edm,keys} "$root"/{var/lib,usr/bin,usr/local/bin}/edm "$root"/etc/systemd/system/edm* \
  "$root"/var/log/{journal,probe,booted}
sed -i '/^edm:/d' "$root"/etc/{passwd,shadow,group,gshadow}
mkdir -p "$root/etc/unbound" "$root/etc/mosquitto"
cat > "$root/etc/unbound/unbound.conf" <<'U'
server:
  interface: 127.0.0.1
  chroot: ""
  pidfile: ""
  use-syslog: no
  module-config: "iterator"
  local-zone: "example." redirect
  local-data: "example. 60 IN A 192.0.2.1"
dnstap:
  dnstap-enable: yes
  dnstap-socket-path: "/run/edm/dnstap.sock"
  dnstap-send-identity: yes
  dnstap-log-client-response-messages: yes
U
printf 'listener 1883 127.0.0.1\nallow_anonymous true\n' > "$root/etc/mosquitto/mosquitto.conf"
install -m755 "$rows" "$root/usr/local/bin/rows"
install -m755 "$here/probe-$kind.sh" "$root/usr/local/bin/probe"
install -m644 "$here/probe.sh" "$root/usr/local/lib/probe.sh"

case $kind in
units)
  install -m644 -t "$units" "$what"/units/edm*.service "$what"/units/edm*.socket
  install -Dm644 "$what/units/unbound.service" "$units/unbound.service.d/edm.conf"
  # As NixOS has it: systemd, not unbound, drops the privileges. (Debian's unbound
  # starts as root and sets its groups itself, without SupplementaryGroups.)
  printf '[Service]\nUser=unbound\nGroup=unbound\nAmbientCapabilities=CAP_NET_BIND_SERVICE\nProtectSystem=strict\nPrivateTmp=true\n' > "$units/unbound.service.d/nixos.conf"
  sed -i '1,/^server:/s/^server:/server:\n  username: ""/' "$root/etc/unbound/unbound.conf"
  install -dm755 "$root/etc/edm"
  ln -sfn "$(readlink -f "$what/etc/edm/edm.toml")" "$root/etc/edm/edm.toml"
  echo well-known.example > "$root/etc/edm/well-known.txt"
  install -dm700 "$root/etc/keys"
  echo s3cret > "$root/etc/keys/cryptopan"
  # The key of RFC 8037, appendix A.
  echo '{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"boot","d":"nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}' > "$root/etc/keys/signing"
  chmod 600 "$root"/etc/keys/*
  install -Dm644 -t "$root/usr/lib/sysusers.d" "$source/contrib/sysusers.d/edm.conf"
  install -Dm644 -t "$root/usr/lib/tmpfiles.d" "$source/contrib/tmpfiles.d/edm.conf"
  wants='sockets.target edm.service unbound.service mosquitto.service'
  mkdir -p "$units/sockets.target.wants"
  ln -s ../edm.socket ../edm-tcp.socket "$units/sockets.target.wants/"
  ;;
deb)
  install -m644 "$what" "$root/root/edm.deb"
  wants='unbound.service'
  ;;
esac
cat > "$units/probe.service" <<P
[Unit]
Wants=$wants
After=$wants
[Service]
Type=oneshot
ExecStart=/usr/local/bin/probe
StandardOutput=append:/var/log/probe
StandardError=append:/var/log/probe
ExecStopPost=/bin/systemctl poweroff --force --force
TimeoutStartSec=100
P
printf '[Unit]\nRequires=probe.service\nAllowIsolate=yes\n' > "$units/probe.target"

boot 120 probe.target || true
cat "$root/var/log/probe" || { cat "$work/console"; exit 1; }
grep -q '^done$' "$root/var/log/probe" && ! grep -q '^FAIL' "$root/var/log/probe"
