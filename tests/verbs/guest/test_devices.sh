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

check every_rail_is_active all_active
for rail in 0 1 2 3; do check "pingpong_over_rail_$rail" pingpong "$rail"; done
exit $failed
