/* Fills the rows of a batch. Nothing in this file touches Python, so no lock is needed.
 *
 * The values of a batch lie anywhere in large files, and a processor waits for each of them that is in none of its
 * caches. So the values some way ahead are asked for while those of a span are copied, and all that is known of a
 * token is written in one pass:
 *
 *     span       h i j k l m n o | r s t u v          (of two places in the files)
 *                  ^ copied    ^ asked for            x, y, mask, and once a text ends, its numbers and positions
 */

#include "_kernel_rows.h"
#include <string.h>

/* Processors of the last ten years have wider vectors than every x86-64; the dynamic linker chooses the function. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WIDE_VECTORS
#endif

#if defined(__GNUC__)
#define ASK_FOR(address) __builtin_prefetch(address, 0, 3) /* into the first cache, which holds AHEAD values easily */
#else
#define ASK_FOR(address) ((void)(address))
#endif

enum { BLOCK = 128, AHEAD = 1024, COMPARED = 128 }; /* values that are copied, asked for in advance, compared at once */
enum { LINE = 64, VECTOR = 32 };                     /* bytes */

/* ------------------------------------------------------------------ values ahead */

typedef struct {
    const Rows *rows;
    Py_ssize_t span, at; /* the first value that was not asked for */
} Ahead;

/* Ask for the lines of `n` values; for the line of the last one only if the span ends there, else the next call does. */
static void ask_for(Values values, Py_ssize_t from, Py_ssize_t n, int span_ends)
{
    if (values.at == NULL)
        return;
    const char *const end = values.at + (from + n) * values.width;
    for (const char *at = values.at + from * values.width; at < end; at += LINE)
        ASK_FOR(at);
    if (span_ends)
        ASK_FOR(end - 1);
}

static void ask_for_next(Ahead *ahead, Py_ssize_t n)
{
    while (n > 0 && ahead->span < ahead->rows->n) {
        const Span *const span = ahead->rows->spans + ahead->span;
        const Py_ssize_t left = span->length - ahead->at, taken = left < n ? left : n;
        ask_for(span->ids, ahead->at, taken, taken == left);
        ask_for(span->mask, ahead->at, taken, taken == left);
        ask_for(span->segments, ahead->at, taken, taken == left);
        ahead->at += taken;
        n -= taken;
        if (taken == left) {
            ahead->span++;
            ahead->at = 0;
        }
    }
}

/* ------------------------------------------------------------------ ids */

/* How many of `n` values come before the first that begins a vector. Vectors that are written across two lines of the
 * cache take longer, and compilers do not avoid it. */
static Py_ssize_t before_vector(const void *to, Py_ssize_t width, Py_ssize_t n)
{
    const Py_ssize_t before = (Py_ssize_t)(-(uintptr_t)to % VECTOR) / width;
    return before < n ? before : n;
}

/* Copy `n` unsigned values as int64 to two places. The result is negative if one of them is above `most`.
 *
 * A value is at another place among the vectors of x than of y, one further, so each has a loop of its own. The second
 * one finds the values in the processor's first cache. */
#define WIDEN(name, type)                                                                                              \
    WIDE_VECTORS static int64_t name(const type *restrict from, Py_ssize_t n, int64_t *x, int64_t *y, int64_t most)    \
    {                                                                                                                  \
        const Py_ssize_t before_x = before_vector(x, sizeof *x, n), before_y = before_vector(y, sizeof *y, n);         \
        int64_t sign = 0;                                                                                              \
        for (Py_ssize_t k = 0; k < before_x; k++) {                                                                    \
            x[k] = (int64_t)from[k];                                                                                   \
            sign |= most - x[k]; /* no comparison: vector units of every processor subtract 64-bit numbers */          \
        }                                                                                                              \
        for (Py_ssize_t k = before_x; k < n; k++) {                                                                    \
            const int64_t value = (int64_t)from[k];                                                                    \
            x[k] = value;                                                                                              \
            sign |= most - value;                                                                                      \
        }                                                                                                              \
        for (Py_ssize_t k = 0; k < before_y; k++)                                                                      \
            y[k] = (int64_t)from[k];                                                                                   \
        for (Py_ssize_t k = before_y; k < n; k++)                                                                      \
            y[k] = (int64_t)from[k];                                                                                   \
        return sign;                                                                                                   \
    }
WIDEN(widen_8, uint8_t)
WIDEN(widen_16, uint16_t)
WIDEN(widen_32, uint32_t)

static int64_t id_at(Values ids, Py_ssize_t k)
{
    if (ids.width == 4)
        return ((const uint32_t *)ids.at)[k];
    return ids.width == 2 ? ((const uint16_t *)ids.at)[k] : ((const uint8_t *)ids.at)[k];
}

/* Values k to k + n - 1 of a span are tokens `column` on of a row: token c is the input c and the target c - 1. */
static void fill_ids(Rows *rows, const Span *span, Py_ssize_t k, Py_ssize_t n, Py_ssize_t column)
{
    int64_t *const x = rows->x + span->row * rows->T, *const y = rows->y + span->row * rows->T;
    if (column == 0) { /* an input only */
        const int64_t value = id_at(span->ids, k);
        if (rows->T > 0)
            x[0] = value;
        rows->sign |= rows->most - value;
        k++, n--, column++;
    }
    if (n > 0 && column + n > rows->T) { /* the last token of a full row: a target only */
        const int64_t value = id_at(span->ids, k + n - 1);
        if (rows->T > 0)
            y[rows->T - 1] = value;
        rows->sign |= rows->most - value;
        n--;
    }
    if (n <= 0)
        return;
    if (span->ids.width == 4)
        rows->sign |= widen_32((const uint32_t *)span->ids.at + k, n, x + column, y + column - 1, rows->most);
    else if (span->ids.width == 2)
        rows->sign |= widen_16((const uint16_t *)span->ids.at + k, n, x + column, y + column - 1, rows->most);
    else
        rows->sign |= widen_8((const uint8_t *)span->ids.at + k, n, x + column, y + column - 1, rows->most);
}

/* ------------------------------------------------------------------ masks */

/* Copy at most 255 mask values as float32; the result has their sum and, from the 17th bit on, all their bits. */
WIDE_VECTORS static uint32_t copy_mask(const uint8_t *restrict from, Py_ssize_t n, float *restrict to)
{
    uint32_t sum = 0;
    uint8_t bits = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        to[k] = (float)from[k];
        bits |= from[k];
        sum += from[k];
    }
    return sum | (uint32_t)bits << 16;
}

/* The same without the copy. */
WIDE_VECTORS static uint32_t count_mask(const uint8_t *restrict from, Py_ssize_t n)
{
    uint32_t sum = 0;
    uint8_t bits = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        bits |= from[k];
        sum += from[k];
    }
    return sum | (uint32_t)bits << 16;
}

static void fill_ones(float *to, Py_ssize_t n)
{
    for (Py_ssize_t k = 0; k < n; k++)
        to[k] = 1;
}

/* As `fill_ids`; how many targets are trained. */
static Py_ssize_t fill_mask(Rows *rows, const Span *span, Py_ssize_t k, Py_ssize_t n, Py_ssize_t column)
{
    const uint8_t *const values = (const uint8_t *)span->mask.at;
    if (column == 0) {
        rows->bits |= values == NULL ? 0 : values[k]; /* no target, but it must be a mask value, too */
        k++, n--, column++;
    }
    if (n <= 0)
        return 0;
    float *const to = rows->mask == NULL ? NULL : rows->mask + span->row * rows->T + column - 1;
    if (values == NULL) { /* no masks: every target is trained */
        if (to != NULL)
            fill_ones(to, n);
        return n;
    }
    const uint32_t found = to == NULL || span->copied ? count_mask(values + k, n) : copy_mask(values + k, n, to);
    rows->bits |= (uint8_t)(found >> 16);
    if (!span->copied)
        return found & 0xFFFF;
    if (to != NULL)
        memset(to, 0, (size_t)n * sizeof(float));
    return 0;
}

/* ------------------------------------------------------------------ texts */

/* The row that is filled. */
typedef struct {
    Py_ssize_t number, column; /* of the row; and how many tokens it has so far */
    Py_ssize_t trained, episodes;
    Py_ssize_t text;    /* the column where the last text begins, or -1 */
    Py_ssize_t sees;    /* of that text */
    Py_ssize_t first;   /* the column where the last episode begins */
    int32_t texts;      /* how many have an input */
    uint32_t segment;   /* the last token's segment id */
    int64_t *of_batch;  /* the batch's part of `totals`, or NULL */
} Row;

WIDE_VECTORS static void fill_numbers(int32_t *restrict numbers, Py_ssize_t n, int32_t value)
{
    const Py_ssize_t before = before_vector(numbers, sizeof *numbers, n);
    for (Py_ssize_t k = 0; k < before; k++)
        numbers[k] = value;
    for (Py_ssize_t k = before; k < n; k++)
        numbers[k] = value;
}

WIDE_VECTORS static void fill_positions(int64_t *restrict positions, Py_ssize_t n, int64_t first)
{
    const Py_ssize_t before = before_vector(positions, sizeof *positions, n);
    for (Py_ssize_t k = 0; k < before; k++)
        positions[k] = first + k;
    for (Py_ssize_t k = before; k < n; k++)
        positions[k] = first + k;
}

WIDE_VECTORS static void fill_values(int64_t *restrict to, Py_ssize_t n, int64_t value)
{
    const Py_ssize_t before = before_vector(to, sizeof *to, n);
    for (Py_ssize_t k = 0; k < before; k++)
        to[k] = value;
    for (Py_ssize_t k = before; k < n; k++)
        to[k] = value;
}

/* Inputs `begin` to `end` - 1 are a sequence: a text, or with the number 0 the padding. */
static void end_sequence(Rows *rows, Row *row, Py_ssize_t begin, Py_ssize_t end, int32_t number, Py_ssize_t sees)
{
    const Py_ssize_t at = row->number * rows->T + begin;
    if (rows->numbers != NULL) {
        fill_numbers(rows->numbers + at, end - begin, number);
        fill_positions(rows->positions + at, end - begin, sees);
    }
    if (rows->bounds != NULL)
        rows->bounds[rows->n_bounds++] = (int32_t)(row->number % rows->rows_of_batch * rows->T + begin);
    if (row->of_batch != NULL) {
        row->of_batch[SEQUENCES]++;
        if (end - begin > row->of_batch[LONGEST])
            row->of_batch[LONGEST] = end - begin;
    }
}

static void end_text(Rows *rows, Row *row, Py_ssize_t column)
{
    const Py_ssize_t end = column < rows->T ? column : rows->T;
    if (row->text >= 0 && row->text < end) /* else its only token is the row's last target */
        end_sequence(rows, row, row->text, end, ++row->texts, row->sees);
}

/* A text begins with value k of a span, in a column; nothing in it predicts its first token. */
static void begin_text(Rows *rows, Row *row, const Span *span, Py_ssize_t k, Py_ssize_t column)
{
    end_text(rows, row, column);
    row->text = column;
    row->sees = rows->shares ? span->sees : 0;
    if (rows->places != NULL)
        rows->places[rows->n_places++] = row->number * (rows->T + 1) + column;
    if (!rows->counts || column == 0)
        return;
    const uint8_t *const mask = (const uint8_t *)span->mask.at;
    const uint8_t value = mask == NULL ? 1 : span->copied ? 0 : mask[k];
    rows->lost |= rows->shares && mask != NULL && k == 0 && span->sees > 0 && value > 0;
    row->trained -= value;
    if (rows->mask != NULL)
        rows->mask[row->number * rows->T + column - 1] = 0;
}

static uint32_t segment_at(Values segments, Py_ssize_t k)
{
    return segments.at == NULL ? 0 : (uint32_t)id_at(segments, k);
}

/* Whether one of COMPARED values differs from the one before it. */
#define DIFFERS(name, type)                                                                                            \
    WIDE_VECTORS static int name(const type *values)                                                                   \
    {                                                                                                                  \
        type differ = 0;                                                                                               \
        for (Py_ssize_t k = 0; k < COMPARED; k++)                                                                      \
            differ |= values[k] ^ values[k - 1];                                                                       \
        return differ != 0;                                                                                            \
    }
DIFFERS(differs_8, uint8_t)
DIFFERS(differs_16, uint16_t)
DIFFERS(differs_32, uint32_t)

static int differs(Values values, Py_ssize_t at)
{
    if (values.width == 4)
        return differs_32((const uint32_t *)values.at + at);
    return values.width == 2 ? differs_16((const uint16_t *)values.at + at) : differs_8((const uint8_t *)values.at + at);
}

/* The index of the first of `n` values, from `at` on, that differs from the one before it, or `n`. */
static Py_ssize_t next_change(Values values, Py_ssize_t at, Py_ssize_t n)
{
    while (at + COMPARED <= n && !differs(values, at)) /* few values differ */
        at += COMPARED;
    while (at < n && id_at(values, at) == id_at(values, at - 1))
        at++;
    return at;
}

/* The texts that begin in a span: with an episode, and where the segment id is not that of the token before. */
static void begin_texts(Rows *rows, Row *row, const Span *span)
{
    if (span->begins)
        row->first = row->column;
    if (span->begins || rows->shares || segment_at(span->segments, 0) != row->segment)
        begin_text(rows, row, span, 0, row->column);
    if (span->segments.at == NULL) {
        row->segment = 0;
        return;
    }
    for (Py_ssize_t k = 1; (k = next_change(span->segments, k, span->length)) < span->length; k++)
        begin_text(rows, row, span, k, row->column + k);
    row->segment = segment_at(span->segments, span->length - 1);
}

/* The columns that the values of a span see: those of its episode's first span. */
static void fill_columns(Rows *rows, const Row *row, const Span *span)
{
    const Py_ssize_t stop = row->column + span->length;
    const int32_t begin = span->sees > 0 ? (int32_t)row->first : 0, end = begin + (int32_t)span->sees;
    int32_t *const pairs = rows->columns + 2 * row->number * rows->T;
    for (Py_ssize_t column = row->column; column < stop && column < rows->T; column++) {
        pairs[2 * column] = begin;
        pairs[2 * column + 1] = end;
    }
}

/* ------------------------------------------------------------------ rows */

static void fill_span(Rows *rows, Row *row, const Span *span, Ahead *ahead)
{
    for (Py_ssize_t k = 0; k < span->length; k += BLOCK) {
        const Py_ssize_t left = span->length - k, n = left < BLOCK ? left : BLOCK;
        ask_for_next(ahead, n);
        if (rows->x != NULL)
            fill_ids(rows, span, k, n, row->column + k);
        if (rows->counts)
            row->trained += fill_mask(rows, span, k, n, row->column + k);
    }
    begin_texts(rows, row, span);
    if (rows->columns != NULL)
        fill_columns(rows, row, span);
    row->column += span->length;
    row->episodes += span->begins;
}

/* What comes after the last token of a row. */
static void fill_padding(Rows *rows, Row *row)
{
    const Py_ssize_t T = rows->T, column = row->column < T ? row->column : T;
    const Py_ssize_t targets = row->column > 0 ? row->column - 1 : 0, begin = row->number * T;
    end_text(rows, row, row->column);
    if (rows->x != NULL) {
        fill_values(rows->x + begin + column, T - column, rows->pad);
        fill_values(rows->y + begin + targets, T - targets, rows->pad);
    }
    if (rows->mask != NULL)
        memset(rows->mask + begin + targets, 0, (size_t)(T - targets) * sizeof(float));
    if (rows->columns != NULL)
        memset(rows->columns + 2 * (begin + column), 0, (size_t)(T - column) * 2 * sizeof(int32_t));
    if (column < T)
        end_sequence(rows, row, column, T, 0, 0);
}

void fill_rows(Rows *rows)
{
    Ahead ahead = {.rows = rows};
    Py_ssize_t at = 0;
    if (rows->totals != NULL && rows->rows_of_batch > 0)
        memset(rows->totals, 0, (size_t)(rows->rows / rows->rows_of_batch) * TOTALS * sizeof(int64_t));
    ask_for_next(&ahead, AHEAD);
    for (Py_ssize_t number = 0; number < rows->rows; number++) {
        Row row = {.number = number, .text = -1};
        if (rows->totals != NULL)
            row.of_batch = rows->totals + number / rows->rows_of_batch * TOTALS;
        for (; at < rows->n && rows->spans[at].row == number; at++)
            fill_span(rows, &row, rows->spans + at, &ahead);
        fill_padding(rows, &row);
        if (rows->trained != NULL)
            rows->trained[number] = row.trained;
        if (row.of_batch != NULL) {
            row.of_batch[TRAINED] += row.trained;
            row.of_batch[TOKENS] += row.column;
            row.of_batch[EPISODES] += row.episodes;
        }
        if (rows->bounds != NULL && (number + 1) % rows->rows_of_batch == 0)
            rows->bounds[rows->n_bounds++] = (int32_t)(rows->rows_of_batch * rows->T);
    }
}
