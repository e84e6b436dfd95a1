# What both probes need. They run in the container, as root.
exec 2>&1
check() { # NAME COMMAND...
  local name=$1; shift
  if "$@" >/tmp/said 2>&1; then echo "ok   $name"; else echo "FAIL $name"; sed 's/^/     | /' /tmp/said; fi | tee -a /tmp/checks
}
until_true() { # COMMAND...   for 20 s at most
  local end=$((SECONDS + 20))
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done
}
metric() { curl -sf http://127.0.0.1:2112/metrics | awk -v m="$1" '$1 == m { n = $2 } END { print n + 0 }'; }
metric_is() { [ "$(metric "$1")" = "$2" ]; }
ask() { # NAME...
  local name
  for name; do dig +short +tries=3 +time=2 @127.0.0.1 "$name.example" A || return; done | grep -c 192.0.2.1
}
says() { journalctl -u edm -o cat | grep -q "$@"; }
has_rows() { # KIND NAME COUNT
  [ "$(rows /var/lib/edm | grep -cx "$1 $2.example")" = "$3" ]
}
finish() {
  if grep -q '^FAIL' /tmp/checks; then
    # Without the stacks that Go prints.
    journalctl -u edm -u edm.socket -u unbound -u mosquitto --no-pager -o short-monotonic | grep -E '"level"|systemd|unbound|mosquitto' | tail -40
    grep -A20 '^FAIL' /tmp/checks
  fi
  echo done
}
