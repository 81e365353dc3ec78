/* One rank of the same all-to-all jobs through MPI. The benchmarks compile it with the mpicc of each MPI.
 *
 *   alltoallv JOBS WARMUP collective|isend each|steps MATRIX...
 *
 * MATRIX is a CSV file of bytes from each rank to each rank. `each`: jobs run back to back, and their times at rank 0
 * count. `steps`: all ranks meet before each job, and the time from the first rank's begin to the last rank's end counts;
 * all ranks are on one machine and share its clock. Every byte of every job in `steps`, and of the last one in `each`, is
 * checked. Rank 0 prints one JSON object a line for each matrix, as soon as its jobs have ended. Processor seconds are
 * those of all ranks between begin and end of the jobs that count. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static int rank, world;

static void require(int ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "alltoallv: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 2);
}

/* What `source` sends to `destination` in the job with this number, made of words so that checks cost little. */
static unsigned long long content(long job, int source, int destination, size_t word) {
  return ((unsigned long long)job << 48) ^ ((unsigned long long)source << 40) ^ ((unsigned long long)destination << 32) ^
         (word * 2654435761ULL);
}

static void fill(unsigned char* bytes, size_t length, long job, int source, int destination) {
  for (size_t at = 0; at < length; at += 8) {
    const unsigned long long value = content(job, source, destination, at / 8);
    memcpy(bytes + at, &value, length - at < 8 ? length - at : 8);
  }
}

static long wrong_bytes(const unsigned char* bytes, size_t length, long job, int source, int destination) {
  long wrong = 0;
  for (size_t at = 0; at < length; at += 8) {
    const unsigned long long value = content(job, source, destination, at / 8);
    if (memcmp(bytes + at, &value, length - at < 8 ? length - at : 8) != 0) ++wrong;
  }
  return wrong;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

/* Reads a square CSV with a row for each rank. */
static void read_matrix(const char* path, double* cells) {
  FILE* file = fopen(path, "r");
  require(file != NULL, "the matrix cannot be opened");
  for (int i = 0; i < world * world; ++i) {
    require(fscanf(file, "%lf", &cells[i]) == 1, "the matrix has too few cells");
    if (fscanf(file, " ,") < 0) break;
  }
  fclose(file);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double processor_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

struct job {
  unsigned char *send, *receive;
  int *send_counts, *send_at, *receive_counts, *receive_at;
  MPI_Request* requests;
  MPI_Status* statuses;
};

static void exchange(const struct job* job, int isend) {
  if (!isend) {
    MPI_Alltoallv(job->send, job->send_counts, job->send_at, MPI_BYTE, job->receive, job->receive_counts, job->receive_at,
                  MPI_BYTE, MPI_COMM_WORLD);
    return;
  }
  int count = 0;
  for (int i = 1; i < world; ++i) {
    const int from = (rank + world - i) % world;
    if (job->receive_counts[from] > 0) {
      MPI_Irecv(job->receive + job->receive_at[from], job->receive_counts[from], MPI_BYTE, from, 0, MPI_COMM_WORLD,
                &job->requests[count++]);
    }
  }
  for (int i = 1; i < world; ++i) {
    const int to = (rank + i) % world;
    if (job->send_counts[to] > 0) {
      MPI_Isend(job->send + job->send_at[to], job->send_counts[to], MPI_BYTE, to, 0, MPI_COMM_WORLD, &job->requests[count++]);
    }
  }
  MPI_Waitall(count, job->requests, job->statuses);
}

static void run(const char* path, long jobs, long warmup, int isend, int steps) {
  double* cells = malloc((size_t)world * world * sizeof(double));
  double* seconds = malloc(jobs * sizeof(double));
  struct job all = {0};
  all.send_counts = calloc(world, sizeof(int)), all.send_at = calloc(world, sizeof(int));
  all.receive_counts = calloc(world, sizeof(int)), all.receive_at = calloc(world, sizeof(int));
  all.requests = malloc(2 * world * sizeof(MPI_Request)), all.statuses = malloc(2 * world * sizeof(MPI_Status));
  read_matrix(path, cells);
  size_t send_bytes = 0, receive_bytes = 0;
  for (int other = 0; other < world; ++other) {
    all.send_at[other] = (int)send_bytes;
    all.receive_at[other] = (int)receive_bytes;
    all.send_counts[other] = (int)cells[rank * world + other];
    all.receive_counts[other] = (int)cells[other * world + rank];
    send_bytes += all.send_counts[other];
    receive_bytes += all.receive_counts[other];
  }
  all.send = malloc(send_bytes + 1), all.receive = malloc(receive_bytes + 1);
  require(all.send && all.receive && all.requests && all.statuses && seconds, "out of memory");

  long wrong = 0;
  double used = 0;
  for (long job = -warmup; job < jobs; ++job) {
    const long mark = steps ? job + warmup : 0;
    if (steps || job == -warmup) {
      for (int other = 0; other < world; ++other) fill(all.send + all.send_at[other], all.send_counts[other], mark, rank, other);
      memset(all.receive, 0x55, receive_bytes);
      MPI_Barrier(MPI_COMM_WORLD);
    }
    const double used_before = processor_seconds();
    double begin = now();
    exchange(&all, isend);
    double end = now();
    if (job >= 0) used += processor_seconds() - used_before;
    if (steps) {
      MPI_Allreduce(MPI_IN_PLACE, &begin, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
      MPI_Allreduce(MPI_IN_PLACE, &end, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    if (job >= 0) seconds[job] = end - begin;
    if (!steps && job + 1 < jobs) continue;
    for (int other = 0; other < world; ++other) {
      wrong += wrong_bytes(all.receive + all.receive_at[other], all.receive_counts[other], mark, other, rank);
    }
  }
  long all_wrong = 0;
  double all_used = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  MPI_Reduce(&used, &all_used, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"wrong_words\": %ld, \"processor_seconds\": %.6f, \"seconds\": [", all_wrong, all_used);
    if (!steps) qsort(seconds, jobs, sizeof(double), ascending);
    for (long job = 0; job < jobs; ++job) printf("%s%.9f", job > 0 ? ", " : "", seconds[job]);
    printf("]}\n");
    fflush(stdout);
  }
  free(all.send), free(all.receive), free(all.send_counts), free(all.send_at), free(all.receive_counts), free(all.receive_at);
  free(all.requests), free(all.statuses), free(cells), free(seconds);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  require(argc >= 6, "JOBS WARMUP collective|isend each|steps MATRIX...");
  const long jobs = atol(argv[1]), warmup = atol(argv[2]);
  require(jobs > 0, "JOBS is not above zero");
  for (int i = 5; i < argc; ++i) run(argv[i], jobs, warmup, strcmp(argv[3], "isend") == 0, strcmp(argv[4], "steps") == 0);
  MPI_Finalize();
  return 0;
}
