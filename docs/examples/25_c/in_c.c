/* Collectives of processes, in C99: rows of different numbers, an async reduction, an error. */
#include <stdio.h>
#include <stdlib.h>

#include <tutti/c/tutti.h>

static void check(tutti_status status) {
  if (status == TUTTI_OK) return;
  fprintf(stderr, "%s\n", tutti_last_error());
  exit(1);
}

/* Rank r has r + 1 rows of two numbers. No rank knows how many the others have. */
static void gather_rows(tutti_group* group, int32_t rank) {
  float own[] = {1, 2, 3, 4, 5, 6};
  tutti_array local = tutti_vector(own, TUTTI_F32, rank + 1), all;
  tutti_result* result;
  local.ndim = 2;
  local.dims[1] = 2;
  check(tutti_all_gather_rows(group, &local, 1, NULL, NULL, &result, NULL));
  TUTTI_INIT(all);
  check(tutti_result_array(result, 0, &all));
  printf("gathered [%d, %d], the last number is %g\n", (int)all.dims[0], (int)all.dims[1],
         ((float*)all.data)[all.dims[0] * all.dims[1] - 1]);
  check(tutti_result_free(result));
}

/* A gradient is averaged while the program computes something else. */
static void average(tutti_group* group, int32_t rank) {
  double gradient[] = {rank, 10.0 * rank};
  const tutti_array data = tutti_vector(gradient, TUTTI_F64, 2);
  tutti_call_options options;
  tutti_work* work;
  TUTTI_INIT(options);
  options.name = "gradient";
  check(tutti_all_reduce(group, &data, &data, TUTTI_AVG, &options, &work));
  check(tutti_work_wait(work));
  check(tutti_work_free(work));
  printf("mean gradient %g %g\n", gradient[0], gradient[1]);
}

/* The ranks disagree about the operation. Nothing is sent, and the group works on. */
static void disagree(tutti_group* group, int32_t rank) {
  int64_t x = rank;
  const tutti_array data = tutti_vector(&x, TUTTI_I64, 1);
  const tutti_status status =
      tutti_all_reduce(group, &data, &data, rank == 0 ? TUTTI_MAX : TUTTI_SUM, NULL, NULL);
  printf("%s\n", tutti_status_name(status));
  if (status != TUTTI_OK && rank == 0) printf("%s\n", tutti_last_error());
  check(tutti_barrier(group, NULL, NULL));
}

int main(void) {
  tutti_group* group;
  tutti_group_options options;
  int32_t rank;
  TUTTI_INIT(options);
  options.backend = "shm";
  check(tutti_init(&options, &group));
  check(tutti_group_rank(group, &rank));
  gather_rows(group, rank);
  average(group, rank);
  disagree(group, rank);
  check(tutti_group_free(group));
  return 0;
}
