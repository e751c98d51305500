/* What `_kernel_rows.c`, which checks the arguments, hands to `_kernel_fill.c`, which fills the rows. */

#ifndef NIELS_GPT_KERNEL_ROWS_H
#define NIELS_GPT_KERNEL_ROWS_H

#include "_kernel.h"
#include <stdint.h>

/* One kind of a span's values, `length` of them, which were proven to be inside their file. */
typedef struct {
    const char *at;   /* NULL: not read */
    Py_ssize_t width; /* bytes of a value */
} Values;

typedef struct {
    Values ids, mask, segments;
    Py_ssize_t row, length;
    Py_ssize_t sees; /* how many values of its episode's first span its text sees besides its own */
    int begins;      /* an episode begins with it */
    int copied;      /* trained in another episode */
} Span;

/* Sums of the rows of a batch, in the order of the columns of `totals`. */
enum { TRAINED, TOKENS, EPISODES, SEQUENCES, LONGEST, TOTALS };

/* Spans, and arrays for rows of `T` inputs and targets. NULL: not wanted. All have room for what the spans hold. */
typedef struct {
    const Span *spans;
    Py_ssize_t n, rows, T, rows_of_batch;
    int64_t pad, most;
    int counts;     /* the mask of the targets is wanted, or sums of it */
    int shares;     /* each span is a text of its own, which sees others; else episodes are texts */
    int64_t *x, *y; /* rows of T */
    float *mask;
    int32_t *numbers;
    int64_t *positions;
    int32_t *columns;    /* rows of T pairs */
    int64_t *places;     /* one for each text */
    int32_t *bounds;     /* one for each text and row, and one for each batch */
    int64_t *trained;    /* one for each row */
    int64_t *totals;     /* TOTALS for each batch */
    int64_t sign;        /* result: negative if an id is above `most` */
    uint8_t bits;        /* result: above 1 if a value of a mask is */
    int lost;            /* result: the first token of a text that sees others is trained, but nothing predicts it */
    Py_ssize_t n_places; /* result */
    Py_ssize_t n_bounds; /* result */
} Rows;

void fill_rows(Rows *rows);

#endif
