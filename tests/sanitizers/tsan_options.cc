// How every program of a ThreadSanitizer build is run; TSAN_OPTIONS comes after it.

// A program ends at its first race, and does not wait at its end for more of them.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=0"; }

extern "C" const char* __tsan_default_suppressions() {
  return
      // What gRPC copies and frees by functions of the C library, by its own counts and queues.
      "called_from_lib:libgrpc.so\n"
      "called_from_lib:libgrpc++.so\n"
      "called_from_lib:libgpr.so\n"
      // Where gRPC's own statuses are copied, compared and printed.
      "called_from_lib:libabsl_status.so\n"
      "called_from_lib:libabsl_strings.so\n"
      "called_from_lib:libabsl_time.so\n"
      "called_from_lib:libabsl_time_zone.so\n"
      // Looks at a descriptor that gRPC may have closed and the kernel given to somebody else meanwhile, to find that out:
      // daemon/service/connection_ledger.h.
      "race:SocketBehind\n";
}
