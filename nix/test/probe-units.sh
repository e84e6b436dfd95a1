#!/bin/bash
# The units that the NixOS module makes, with socket activation.
. /usr/local/lib/probe.sh
asked=0
log_has_no() { ! says "$@"; }

check "edm is active"                 systemctl -q is-active edm
check "systemd owns the sockets"      test "$(systemctl show -P SubState edm.socket edm-tcp.socket | xargs)" = "running running"
check "the socket is the group's"     test "$(stat -c %U:%G:%a /run/edm/dnstap.sock)" = edm:edm:660
check "edm is not root"               test "$(stat -c %U "/proc/$(systemctl show -P MainPID edm)")" = edm
check "edm has no capabilities"       grep -q '^CapBnd:.0*$' "/proc/$(systemctl show -P MainPID edm)/status"
check "the state is edm's alone"      test "$(stat -c %U:%a /var/lib/edm)" = edm:750
check "the watchdog is on"            test "$(systemctl show -P WatchdogUSec edm)" = 2min
check "unbound is active"             systemctl -q is-active unbound
check "unbound has connected"         until_true metric_is 'edm_connections{input="input_unix"}' 1
check "the broker is reached"         until_true metric_is edm_mqtt_up 1

mosquitto_sub -V 5 -t 'events/up/boot/new_qname' > /var/log/events &
sleep 1 # until it has subscribed: what is sent before is not for it
check "unbound answers"               ask well-known new new other
asked=$((asked + 4))
check "its answers arrive"            until_true metric_is edm_processed_dnstap_total $asked
event_came() { grep -q '"payload":"[^"]' /var/log/events; }
check "a new name is an event"        until_true event_came
event() { grep -o '"payload":"[^"]*"' /var/log/events | cut -d'"' -f4 | while read -r p; do echo "$p==" | tr _- /+ | base64 -d 2>/dev/null; echo; done; }
names_new() { event | grep -q '"qname":"new.example."'; }
check "of its name"                   until_true names_new
check "once"                          test "$(event | grep -c '"qname":"new.example."')" = 1

end_interval() { systemctl kill -s USR1 edm && until_true says 'session file written'; }
check "the interval ends"             end_interval
check "answers are rows"              has_rows session new 2
check "well-known names are counted"  until_true has_rows histogram well-known 1

echo other.example >> /etc/edm/well-known.txt
before=$(systemctl show -P MainPID edm)
check "reload"                        systemctl reload edm
check "it is done"                    until_true says '"msg":"reloaded"'
check "in the same process"           test "$before" = "$(systemctl show -P MainPID edm)"
check "unbound answers"               ask other
asked=$((asked + 1))
check "the new list counts"           until_true metric_is 'edm_frames_total{result="well_known"}' 2
echo 'a..b' >> /etc/edm/well-known.txt
check "reload of a bad list"          systemctl reload edm
unhealthy() { curl -s http://127.0.0.1:2112/healthz | grep -q reload; }
check "is told"                       until_true unhealthy
check "edm goes on"                   systemctl -q is-active edm
sed -i '$d' /etc/edm/well-known.txt

names=$(seq -f 'stop%g' 40)
check "unbound answers"               ask $names
asked=$((asked + 40))
check "its answers arrive"            until_true metric_is edm_processed_dnstap_total $asked
began=$(date +%s%N)
check "stop"                          systemctl stop edm.socket edm-tcp.socket edm.service
took=$((($(date +%s%N) - began) / 1000000))
check "in less than 10 s ($took ms)"  test $took -lt 10000
check "in order"                      test "$(systemctl show -P Result edm)" = success
check "nothing is lost"               test "$(rows /var/lib/edm | wc -l)" = $asked
check "the sockets are gone"          test ! -e /run/edm/dnstap.sock

# From here on with a watchdog that does not take two minutes.
mkdir -p /run/systemd/system/edm.service.d
printf '[Service]\nWatchdogSec=4s\n' > /run/systemd/system/edm.service.d/watchdog.conf
systemctl daemon-reload
check "start of the sockets alone"    systemctl start edm.socket edm-tcp.socket
check "unbound starts edm"            until_true systemctl -q is-active edm
check "unbound has connected again"   until_true metric_is 'edm_connections{input="input_unix"}' 1
systemctl restart edm & restart=$!
refused=0 connects=0
while kill -0 $restart 2>/dev/null; do
  (exec 3<>/dev/tcp/127.0.0.1/53535) 2>/dev/null || refused=$((refused + 1))
  connects=$((connects + 1))
  sleep 0.02
done
check "restart refuses none of $connects connects" test $connects -gt 0 -a $refused = 0
check "unbound comes back"            until_true metric_is 'edm_connections{input="input_unix"}' 1
check "a process that stands still"   systemctl kill -s STOP --kill-who=main edm
restarted() { [ "$(systemctl show -P NRestarts edm)" = 1 ] && systemctl -q is-active edm; }
check "is started again"              until_true restarted
check "by the watchdog"               says 'Watchdog timeout'
check "and the log has what it was at" says '^goroutine '
finish
