# The rails of both sets are there and up, and real queue pairs talk over each rail of the pair.
# shellcheck shell=bash disable=SC2317
failed=0
check() { # NAME COMMAND...
  local name=$1
  shift
  if "$@"; then echo "$name ... ok"; else echo "FAIL: $name" && failed=1; fi
}

all_active() {
  local active
  active=$(rdma link | grep -c 'state ACTIVE')
  echo "$active of 20 active"
  ((active == 20))
}

# listens PORT: somebody listens there within a minute
listens() {
  local hex
  hex=$(printf ':%04X ' "$1")
  for _ in {1..300}; do
    grep -hq "$hex.* 0A " /proc/net/tcp /proc/net/tcp6 && return 0
    sleep 0.2
  done
  return 1
}

pingpong() {
  local rail=$1 port=$((18500 + $1))
  ibv_rc_pingpong -d "rxe_n0r$rail" -g 1 -p "$port" -n 100 &
  local server=$!
  listens "$port" && timeout 60 ibv_rc_pingpong -d "rxe_n1r$rail" -g 1 -p "$port" -n 100 127.0.0.1 && wait "$server"
}

# listed WHAT COUNT: so many ports of railsd --list-devices hold WHAT
listed() {
  local found
  for _ in {1..50}; do
    found=$("$BUILD/daemon/railsd" --list-devices | grep -c "$1")
    ((found == $2)) && return 0
    sleep 0.5
  done
  "$BUILD/daemon/railsd" --list-devices
  return 1
}

said_when_down() {
  ip link set n1r3 down
  listed 'rxe_n[01]r3/1 .* no: rxe_n[01]r3/1: the port is not active' 2
  local result=$?
  ip link set n1r3 up
  listed 'yes$' 20 && return "$result"
}

# examine CODE: doctor ends with CODE; what it said is in /tmp/said
examine() {
  printf 'node: n0\nsocket_dir: /tmp/doctor\nrails:\n  - {device: "rxe_n0r[0-3]"}\n' >/tmp/doctor.yaml
  local code=0
  "$BUILD/client/railsctl/railsctl" doctor --config /tmp/doctor.yaml >/tmp/said || code=$?
  cat /tmp/said
  ((code == $1))
}

# said COUNT WHAT: so many lines of it hold WHAT
said() { (($(grep -c "$2" /tmp/said) == $1)); }

examined_when_down() {
  ip link set n0r3 down
  listed 'rxe_n[01]r3/1 .* no: rxe_n[01]r3/1: the port is not active' 2 && examine 1
  local result=$?
  ip link set n0r3 up
  listed 'yes$' 20 && return "$result"
}

check every_rail_is_active all_active
check every_rail_is_listed listed 'ACTIVE .* 1: 10\..*RoCE v2.* yes$' 20
check a_port_that_is_down_is_said said_when_down
check doctor_finds_no_error examine 0
check doctor_sees_the_rails said 4 'ok      devices       rxe_n0r[0-3]/1 (rail[0-3]): active, .*RoCE v2 GID 1: ::ffff:10\.'
check doctor_sees_their_files said 1 'ok      permissions   /dev/infiniband/uverbs0.* may be opened'
check doctor_sees_packets_of_4096 said 1 'ok      mtu           4200 on all rails'
check doctor_finds_a_port_that_is_down examined_when_down
check doctor_names_it said 1 'ERROR   devices       rxe_n0r3/1 (rail3): the port is DOWN'
for rail in 0 1 2 3; do check "pingpong_over_rail_$rail" pingpong "$rail"; done
exit $failed
