// How every program of a ThreadSanitizer build is run; TSAN_OPTIONS comes after it.

// A program ends at its first race, and does not wait at its end for more of them. Threads that nobody joins are not
// looked for: a daemon that a second signal ends has some, and so has gRPC; a std::thread would end the program itself.
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=0:report_thread_leaks=0";
}

extern "C" const char* __tsan_default_suppressions() {
  return
      // gRPC's copies and frees by functions of the C library, which its own counts and queues order.
      "called_from_lib:libgrpc.so\n"
      "called_from_lib:libgrpc++.so\n"
      "called_from_lib:libgpr.so\n"
      "called_from_lib:libupb.so\n"
      "called_from_lib:libssl.so\n"
      "called_from_lib:libcrypto.so\n"
      // The source of gRPC's random pauses, which has a lock of its own.
      "called_from_lib:libabsl_random_internal_pool_urbg.so\n"
      // The graph in which absl::Mutex looks for deadlocks, which has a lock of its own.
      "called_from_lib:libabsl_graphcycles_internal.so\n"
      // Copies, comparisons and prints of gRPC's own statuses.
      "called_from_lib:libabsl_status.so\n"
      "called_from_lib:libabsl_strings.so\n"
      "called_from_lib:libabsl_cord.so\n"
      "called_from_lib:libabsl_cord_internal.so\n"
      "called_from_lib:libabsl_time.so\n"
      "called_from_lib:libabsl_time_zone.so\n"
      // Reads the text of a status, which gRPC wrote after the call was begun, maybe with the program's std::string.
      "race:grpc::internal::CallOpClientRecvStatus::FinishOp\n"
      // The whole call where the method does not exist, which libgrpc++.so serves by bytes.
      "race:CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>\n"
      // A connection that gRPC has closed, unseen, whose number the kernel gave to a descriptor of a system call that
      // is not intercepted either: that of a trainer's process. Only the number is in a race, no memory.
      "race_top:accept4$\n"
      "race_top:epoll_ctl$\n";
}
