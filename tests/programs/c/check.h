/* What the parts of the test program share: checks that end the process, and the world of a rank.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/c/tutti.h>

#define EXPECT(condition)                                                                      \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: not true: %s\nlast error: %s\n", __FILE__, __LINE__, #condition, \
              tutti_last_error());                                                             \
      exit(1);                                                                                 \
    }                                                                                          \
  } while (0)
#define OK(call) EXPECT((call) == TUTTI_OK)
/* The call fails with this code, and its text has these words. */
#define FAILS(call, code, words)                         \
  do {                                                   \
    EXPECT((call) == (code));                            \
    EXPECT(strstr(tutti_last_error(), (words)) != NULL); \
  } while (0)

#define MAX_RANKS 4

/* What a rank passes to the parts. */
typedef struct world {
  tutti_group* group;
  tutti_store* store; /* Null under a launcher. */
  const char* backend;
  int32_t rank, size;
} world;

void test_verbs(const world* w);
void test_rows(const world* w);
void test_works(const world* w);
void test_groups(const world* w);
void test_errors(const world* w);
void test_structs(const world* w);
void test_reducer(const world* w);
void test_metrics(const world* w);
void test_refusals(const world* w);

/* A group of the same ranks whose failure breaks no other group; null if the program cannot make
   one: over gloo groups that were split from one another share their connections. */
tutti_group* make_breakable(const world* w, const char* name);
/* The caller's own store: a table that all threads share. */
tutti_store* make_own_store(void);

#endif
