/* What a batch costs where nothing is checked and no Python runs: values are read, and the arrays of a batch written.
 *
 * Rows of T + 1 values begin at `starts`: values 0 to T - 1 are the inputs, 1 to T the targets. A row's values are asked
 * for while the row before it is copied, as many a step: without this, the loops take a third longer. */

#include <stdint.h>
#include <string.h>

enum { STEP = 64, LINE = 64 }; /* values; bytes */

/* Ask for the values of the next row that stand where those of this one are copied. */
static void ask_for(const void *values, int64_t at, int64_t width)
{
    for (int64_t byte = at * width; byte < (at + STEP) * width; byte += LINE)
        __builtin_prefetch((const char *)values + byte, 0, 3);
}

static void widen(const uint32_t *restrict from, int64_t n, int64_t *restrict x, int64_t *restrict y)
{
    for (int64_t k = 0; k < n; k++) {
        x[k] = from[k];
        y[k] = from[k + 1];
    }
}

static void weigh(const uint8_t *restrict from, int64_t n, float *restrict mask)
{
    for (int64_t k = 0; k < n; k++)
        mask[k] = from[k];
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void windows(const uint32_t *ids, const int64_t *starts, int64_t B, int64_t T, int64_t *x, int64_t *y)
{
    for (int64_t b = 0; b < B; b++) {
        for (int64_t k = 0; k < T; k += STEP) {
            if (b + 1 < B)
                ask_for(ids + starts[b + 1], k, 4);
            widen(ids + starts[b] + k, least(STEP, T - k), x + b * T + k, y + b * T + k);
        }
    }
}

/* Rows of `lengths[b]` values, of 1 to T + 1, and padding. */
void padded(const uint32_t *ids, const uint8_t *masks, const int64_t *starts, const int64_t *lengths, int64_t B,
            int64_t T, int64_t pad, int64_t *x, int64_t *y, float *mask)
{
    for (int64_t b = 0; b < B; b++) {
        const int64_t own = lengths[b] - 1, at = b * T; /* the last value is a target only */
        for (int64_t k = 0; k < own; k += STEP) {
            if (b + 1 < B && k < lengths[b + 1]) {
                ask_for(ids + starts[b + 1], k, 4);
                ask_for(masks + starts[b + 1], k, 1);
            }
            widen(ids + starts[b] + k, least(STEP, own - k), x + at + k, y + at + k);
            weigh(masks + starts[b] + k + 1, least(STEP, own - k), mask + at + k);
        }
        for (int64_t k = own; k < T; k++)
            x[at + k] = y[at + k] = pad;
        if (own < T)
            x[at + own] = ids[starts[b] + own];
        memset(mask + at + own, 0, (size_t)(T - own) * sizeof(float));
    }
}

/* Full rows; the numbers of texts are those in the file, positions are counted through the whole row. */
void packed(const uint32_t *ids, const uint8_t *masks, const uint16_t *segments, const int64_t *starts, int64_t B,
            int64_t T, int64_t *x, int64_t *y, float *mask, int32_t *numbers, int64_t *positions)
{
    for (int64_t b = 0; b < B; b++) {
        for (int64_t k = 0; k < T; k += STEP) {
            const int64_t n = least(STEP, T - k), from = starts[b] + k, at = b * T + k;
            if (b + 1 < B) {
                ask_for(ids + starts[b + 1], k, 4);
                ask_for(masks + starts[b + 1], k, 1);
                ask_for(segments + starts[b + 1], k, 2);
            }
            widen(ids + from, n, x + at, y + at);
            weigh(masks + from + 1, n, mask + at);
            for (int64_t j = 0; j < n; j++)
                numbers[at + j] = segments[from + j];
            for (int64_t j = 0; j < n; j++)
                positions[at + j] = k + j;
        }
    }
}
