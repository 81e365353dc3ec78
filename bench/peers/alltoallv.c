/* One rank of the same all-to-all jobs through MPI. The benchmarks compile it with the mpicc of each MPI.
 *
 *   alltoallv MATRIX RANKS_PER_NODE JOBS WARMUP collective|isend each|steps
 *
 * MATRIX is a CSV file of bytes from each node to each node; the bytes of a pair of nodes are spread evenly over its
 * pairs of ranks. `each`: jobs run back to back, and their times at rank 0 count. `steps`: all ranks meet before each
 * job, and the time of the slowest counts. Every byte of every job in `steps`, and of the last one in `each`, is checked.
 * Rank 0 prints one JSON object. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Reads a square CSV of `nodes` rows. */
static void read_matrix(const char* path, int nodes, double* cells) {
  FILE* file = fopen(path, "r");
  require(file != NULL, "the matrix cannot be opened");
  for (int i = 0; i < nodes * nodes; ++i) {
    require(fscanf(file, "%lf", &cells[i]) == 1, "the matrix has too few cells");
    if (fscanf(file, " ,") < 0) break;
  }
  fclose(file);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  require(argc == 7, "MATRIX RANKS_PER_NODE JOBS WARMUP collective|isend each|steps");
  const int per_node = atoi(argv[2]);
  const long jobs = atol(argv[3]), warmup = atol(argv[4]);
  const int isend = strcmp(argv[5], "isend") == 0, steps = strcmp(argv[6], "steps") == 0;
  require(per_node > 0 && jobs > 0 && world % per_node == 0, "the ranks do not fill whole nodes");
  const int nodes = world / per_node;
  double* cells = malloc((size_t)nodes * nodes * sizeof(double));
  read_matrix(argv[1], nodes, cells);

  int *send_counts = calloc(world, sizeof(int)), *send_at = calloc(world, sizeof(int));
  int *receive_counts = calloc(world, sizeof(int)), *receive_at = calloc(world, sizeof(int));
  size_t send_bytes = 0, receive_bytes = 0;
  for (int other = 0; other < world; ++other) {
    const int mine = rank / per_node, theirs = other / per_node;
    send_at[other] = (int)send_bytes;
    receive_at[other] = (int)receive_bytes;
    if (mine != theirs) {
      send_counts[other] = (int)(cells[mine * nodes + theirs] / per_node / per_node);
      receive_counts[other] = (int)(cells[theirs * nodes + mine] / per_node / per_node);
    }
    send_bytes += send_counts[other];
    receive_bytes += receive_counts[other];
  }
  unsigned char *send = malloc(send_bytes + 1), *receive = malloc(receive_bytes + 1);
  MPI_Request* requests = malloc(2 * world * sizeof(MPI_Request));
  double* seconds = malloc(jobs * sizeof(double));
  require(send && receive && requests && seconds, "out of memory");

  long wrong = 0;
  for (long job = -warmup; job < jobs; ++job) {
    const long mark = steps ? job + warmup : 0;
    if (steps || job == -warmup) {
      for (int other = 0; other < world; ++other) fill(send + send_at[other], send_counts[other], mark, rank, other);
      memset(receive, 0x55, receive_bytes);
      MPI_Barrier(MPI_COMM_WORLD);
    }
    const double begin = MPI_Wtime();
    if (isend) {
      int count = 0;
      for (int i = 1; i < world; ++i) {
        const int from = (rank + world - i) % world;
        if (receive_counts[from] > 0) {
          MPI_Irecv(receive + receive_at[from], receive_counts[from], MPI_BYTE, from, 0, MPI_COMM_WORLD, &requests[count++]);
        }
      }
      for (int i = 1; i < world; ++i) {
        const int to = (rank + i) % world;
        if (send_counts[to] > 0) {
          MPI_Isend(send + send_at[to], send_counts[to], MPI_BYTE, to, 0, MPI_COMM_WORLD, &requests[count++]);
        }
      }
      MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    } else {
      MPI_Alltoallv(send, send_counts, send_at, MPI_BYTE, receive, receive_counts, receive_at, MPI_BYTE, MPI_COMM_WORLD);
    }
    double time = MPI_Wtime() - begin;
    if (steps) MPI_Allreduce(MPI_IN_PLACE, &time, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (job >= 0) seconds[job] = time;
    if (!steps && job + 1 < jobs) continue;
    for (int other = 0; other < world; ++other) {
      wrong += wrong_bytes(receive + receive_at[other], receive_counts[other], mark, other, rank);
    }
  }
  long all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("{\"wrong_words\": %ld, \"seconds\": [", all_wrong);
    if (!steps) qsort(seconds, jobs, sizeof(double), ascending);
    for (long job = 0; job < jobs; ++job) printf("%s%.9f", job > 0 ? ", " : "", seconds[job]);
    printf("]}\n");
  }
  MPI_Finalize();
  return 0;
}
