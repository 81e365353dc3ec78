/* An all-to-all(v) between processes, one for each rank, every byte checked.
 *
 *   all_to_all SOCKET_DIR WORLD RANK
 *
 * SOCKET_DIR is that of the daemon of the rank's node. */
#include <rails/rails.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORLD = 64, ROUNDS = 3 };

static uint32_t world, rank;
static uint64_t send_bytes[MAX_WORLD], receive_bytes[MAX_WORLD];

/* Ends the program if there is an error. */
static void check(rails_error *error, const char *what) {
  if (error == NULL) return;
  fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, rails_code_name(error->code), error->text);
  rails_error_free(error);
  exit(1);
}

/* Ranks send unequal lengths to each other, like a router of experts. */
static uint64_t length(uint32_t from, uint32_t to) { return 4096 * ((from * 7 + to * 5) % 4 + 1) + from; }

/* Byte `i` that `from` sends to `to` in a round. */
static unsigned char pattern(unsigned round, uint32_t from, uint32_t to, uint64_t i) {
  return (unsigned char)(i * 31 + (i >> 8) + from * 17 + to * 101 + round);
}

static void fill(unsigned char *at, unsigned round) {
  uint32_t to;
  uint64_t i;
  for (to = 0; to < world; ++to) {
    for (i = 0; i < send_bytes[to]; ++i) *at++ = pattern(round, rank, to, i);
  }
}

static void check_bytes(const unsigned char *at, unsigned round) {
  uint32_t from;
  uint64_t i;
  for (from = 0; from < world; ++from) {
    for (i = 0; i < receive_bytes[from]; ++i) {
      if (*at++ == pattern(round, from, rank, i)) continue;
      fprintf(stderr, "rank %u: byte %llu from rank %u is wrong\n", rank, (unsigned long long)i, from);
      exit(1);
    }
  }
}

/* Waits until the buffers are ours again. */
static void finish(rails_job *job) {
  rails_report report = RAILS_REPORT_INIT;
  int32_t done = 0;
  while (!done) check(rails_job_wait(job, INT64_C(60000000000), &done), "the job");
  check(rails_job_report(job, &report), "the report");
  printf("rank %u job %llu: sent %llu bytes, received %llu, %.3f ms\n", rank, (unsigned long long)report.seq,
         (unsigned long long)report.bytes_sent, (unsigned long long)report.bytes_received,
         (double)report.elapsed_ns / 1e6);
  rails_job_free(job);
}

/* The same ranges again and again: the daemon checks them once. */
static void run_prepared(rails_group *group, const rails_buffers *buffers) {
  rails_range ranges[2][MAX_WORLD];
  rails_flow flows[2][MAX_WORLD];
  rails_layout layout = RAILS_LAYOUT_INIT;
  rails_prepared *prepared = NULL;
  rails_job *job = NULL;
  uint64_t sent = 0, received = 0;
  uint32_t peer;
  for (peer = 0; peer < world; ++peer) {
    rails_range send = {buffers->send, 0, 0}, receive = {buffers->receive, 0, 0};
    send.offset = sent;
    send.length = send_bytes[peer];
    receive.offset = received;
    receive.length = receive_bytes[peer];
    ranges[0][peer] = send;
    ranges[1][peer] = receive;
    flows[0][peer].rank = flows[1][peer].rank = peer;
    flows[0][peer].range_count = flows[1][peer].range_count = 1;
    flows[0][peer].ranges = &ranges[0][peer];
    flows[1][peer].ranges = &ranges[1][peer];
    sent += send_bytes[peer];
    received += receive_bytes[peer];
  }
  layout.sends = flows[0];
  layout.receives = flows[1];
  layout.send_count = layout.receive_count = world;
  check(rails_prepare(group, &layout, 0, &prepared), "preparing");
  fill(rails_segment_data(buffers->send), ROUNDS);
  memset(rails_segment_data(buffers->receive), 0, rails_segment_length(buffers->receive));
  check(rails_submit_prepared(prepared, send_bytes, receive_bytes, NULL, &job), "submitting what is prepared");
  finish(job);
  check_bytes(rails_segment_data(buffers->receive), ROUNDS);
  rails_prepared_free(prepared);
}

int main(int argc, char **argv) {
  rails_client_options client_options = RAILS_CLIENT_OPTIONS_INIT;
  rails_group_options group_options = RAILS_GROUP_OPTIONS_INIT;
  rails_job_options job_options = RAILS_JOB_OPTIONS_INIT;
  rails_buffers buffers = RAILS_BUFFERS_INIT;
  rails_client *client = NULL;
  rails_group *group = NULL;
  uint64_t sent = 0, received = 0;
  uint32_t peer;
  unsigned round;

  if (argc != 4) return fprintf(stderr, "usage: all_to_all SOCKET_DIR WORLD RANK\n"), 2;
  world = (uint32_t)atoi(argv[2]);
  rank = (uint32_t)atoi(argv[3]);
  if (world > MAX_WORLD) return fprintf(stderr, "WORLD is over %d\n", MAX_WORLD), 2;
  for (peer = 0; peer < world; ++peer) {
    sent += send_bytes[peer] = length(rank, peer);
    received += receive_bytes[peer] = length(peer, rank);
  }

  client_options.socket_dir = argv[1];
  client_options.client_name = "all_to_all.c";
  check(rails_connect(&client_options, &client), "connecting");
  check(rails_segment_alloc(client, sent, NULL, &buffers.send), "the send segment");
  check(rails_segment_alloc(client, received, NULL, &buffers.receive), "the receive segment");
  buffers.send_bytes = send_bytes;
  buffers.receive_bytes = receive_bytes;

  group_options.name = "all_to_all.c";
  group_options.world_size = world;
  group_options.rank = rank;
  check(rails_join(client, &group_options, &group), "joining");

  for (round = 0; round < ROUNDS; ++round) {
    rails_job *job = NULL;
    fill(rails_segment_data(buffers.send), round);
    job_options.tag = round;
    check(rails_all_to_all_v(group, &buffers, &job_options, &job), "submitting");
    finish(job);
    check_bytes(rails_segment_data(buffers.receive), round);
  }
  run_prepared(group, &buffers);
  printf("rank %u: every byte is right\n", rank);

  rails_group_free(group);
  rails_segment_free(buffers.send);
  rails_segment_free(buffers.receive);
  rails_close(client);
  return 0;
}
