# Process 1 of the guest: runs the tests, one after the other, and powers off. The output of test T goes to
# /run/out/T.log, its exit status to /run/out/T.status; lines that begin with "@@ " are for the host.
# shellcheck shell=bash
# shellcheck source=/dev/null
source /run/out/settings.sh
here=/run/host$ROOT/tests/verbs/guest
export BUILD=/run/host$BUILD PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/run/host$ROOT/tests/integration:$here
say() { echo "@@ $*"; }
uptime_seconds() { cut -d' ' -f1 /proc/uptime; }

power_off() {
  sync
  echo o >/proc/sysrq-trigger
  while :; do sleep 1; done
}

hostname railsd-guest
ulimit -c 0
say "boot $(uptime_seconds) s, kernel $(uname -r)"
# shellcheck source=tests/verbs/guest/rails.sh
source "$here/rails.sh"
{ make_rails n 2 4 && make_rails t 3 4; } >/run/out/rails.log 2>&1 || {
  say "vm the rails could not be made, see rails.log"
  power_off
}
say "rails $(uptime_seconds) s, $(rdma link | wc -l) devices"
# TESTS: NAME:SECONDS ...
for entry in $TESTS; do
  test=${entry%%:*} seconds=${entry#*:}
  say "start $test"
  case $test in
    *.sh) command=(bash "$here/$test") ;;
    *.py) command=(python3 "$here/$test" --build "$BUILD" -v) ;;
  esac
  before=$(uptime_seconds)
  # A session of its own: whatever a test leaves behind is gone before the next one.
  setsid timeout --kill-after=10 "$seconds" "${command[@]}" </dev/null >"/run/out/$test.log" 2>&1
  status=$?
  for pid in /proc/[0-9]*; do
    pid=${pid#/proc/}
    # Kernel threads have no command line.
    if ((pid != $$)) && [[ -s /proc/$pid/cmdline ]]; then kill -9 "$pid" 2>/dev/null; fi
  done
  dmesg -c >"/run/out/$test.dmesg" 2>/dev/null
  echo "$status" >"/run/out/$test.status"
  say "end $test $status $(awk -v a="$before" '{print $1 - a}' /proc/uptime)"
done
say "done $(uptime_seconds) s"
power_off
