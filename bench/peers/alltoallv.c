/* One rank of the same all-to-all jobs through MPI: MPI_Alltoallv back to back. Compiled by the benchmark with mpicc.
 *
 *   alltoallv BYTES JOBS WARMUP
 *
 * In each job a rank sends BYTES in equal parts to all other ranks. Rank 0 prints one JSON object. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, world;

static unsigned char content(int source, int destination, size_t offset) {
  return (unsigned char)(source * 31 + destination * 7 + offset * 3 + (offset >> 8));
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return x < y ? -1 : x > y;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (argc != 4 || world < 2) {
    fprintf(stderr, "alltoallv BYTES JOBS WARMUP, two ranks at least\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const long bytes = atol(argv[1]), jobs = atol(argv[2]), warmup = atol(argv[3]);
  const int part = (int)(bytes / (world - 1));
  unsigned char* send = malloc((size_t)world * part + 1);
  unsigned char* receive = calloc((size_t)world * part + 1, 1);
  int* counts = malloc(world * sizeof(int));
  int* places = malloc(world * sizeof(int));
  double* seconds = malloc(jobs * sizeof(double));
  if (!send || !receive || !counts || !places || !seconds) MPI_Abort(MPI_COMM_WORLD, 3);
  for (int other = 0; other < world; ++other) {
    counts[other] = other == rank ? 0 : part;
    places[other] = other * part;
    for (int i = 0; i < part; ++i) send[(size_t)places[other] + i] = content(rank, other, i);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (long job = -warmup; job < jobs; ++job) {
    const double begin = MPI_Wtime();
    MPI_Alltoallv(send, counts, places, MPI_BYTE, receive, counts, places, MPI_BYTE, MPI_COMM_WORLD);
    if (job >= 0) seconds[job] = MPI_Wtime() - begin;
  }
  long wrong = 0, all_wrong = 0;
  for (int other = 0; other < world; ++other) {
    if (other == rank) continue;
    for (int i = 0; i < part; ++i) wrong += receive[(size_t)places[other] + i] != content(other, rank, i);
  }
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    qsort(seconds, jobs, sizeof(double), ascending);
    printf("{\"p50_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, \"wrong_bytes\": %ld}\n", seconds[jobs / 2] * 1e6,
           seconds[jobs * 99 / 100] * 1e6, seconds[0] * 1e6, all_wrong);
  }
  MPI_Finalize();
  return 0;
}
