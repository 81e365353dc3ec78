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
  listed 'yes$' 20 && return $result
}

check every_rail_is_active all_active
check every_rail_is_listed listed 'ACTIVE .* 1: 10\..*RoCE v2.* yes$' 20
check a_port_that_is_down_is_said said_when_down
for rail in 0 1 2 3; do check "pingpong_over_rail_$rail" pingpong "$rail"; done
exit $failed
