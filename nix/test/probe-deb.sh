#!/bin/bash
# The Debian package: installed, used, upgraded, removed, purged.
. /usr/local/lib/probe.sh

check "install"                      dpkg -i /root/edm.deb
check "edm is active"                systemctl -q is-active edm
check "and enabled"                  systemctl -q is-enabled edm
check "it has a key of its own"      test "$(stat -c %U:%G:%a /etc/edm/cryptopan.key)" = root:edm:640
check "its settings are good"        runuser -u edm -- edm -config /etc/edm/edm.toml -check
check "it is healthy"                test "$(curl -s http://127.0.0.1:2112/healthz)" = ok
check "unbound joins the group"      usermod -aG edm unbound
check "unbound starts again"         systemctl restart unbound
check "unbound has connected"        until_true metric_is 'edm_connections{input="input_unix"}' 1
check "unbound answers"              ask new new
check "its answers arrive"           until_true metric_is edm_processed_dnstap_total 2
key=$(cat /etc/edm/cryptopan.key)
check "upgrade"                      dpkg -i /root/edm.deb
check "edm is active"                systemctl -q is-active edm
check "the key stays"                test "$key" = "$(cat /etc/edm/cryptopan.key)"
check "answers are rows"             has_rows session new 2
check "with systemd's socket"        systemctl stop edm
check "which is started"             systemctl enable --now edm.socket
check "unbound starts edm"           until_true systemctl -q is-active edm
check "unbound has connected"        until_true metric_is 'edm_connections{input="input_unix"}' 1
check "remove"                       dpkg -r edm
check "edm is gone"                  test "$(systemctl is-active edm)" = inactive -a ! -e /usr/bin/edm
check "its rows are not"             has_rows session new 2
check "purge"                        dpkg -P edm
check "nothing is left"              test ! -e /etc/edm -a ! -e /var/lib/edm -a ! -e /run/edm
finish
